"""CPU time of the commands that read a log: start-up, and ``explain`` and ``report`` of a long log.

The log is made with ``testing.JobDriver``, so every decision in it is the production engine's: 1,000 nodes, a fault
every 17,000 events, progress samples between. The first ``explain`` of a file reads the whole log and keeps an
overview, the second continues from it; an exported file contains one, and so does the newest snapshot of a log in a
store, which a master writes. ``report`` reads all events each time, but collects again only what the overview lacks;
of a file without one, a second process collects the overview meanwhile, so its CPU time is that of two processes.
The limit is one pass over the same file, in the same run, that
splits lines and decodes them to plain values with msgspec. The limit of a start-up is an empty program of the same
Python.
Figures are user and system CPU time, the least of several runs: other processes disturb them less than wall time. The
peak memory is that of the larger process.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import attrs
from results import table, write

from ftcore.events.job import JobProgressed
from ftcore.ids import JobName, Seq
from ftcore.launch.overview import LogOverview
from ftcore.logs import open_store
from ftcore.logs.archive import ArchiveWriter, read_events
from ftcore.ports import Candidate
from ftcore.runtime.master.overview import SnapshotOverview
from ftcore.runtime.master.retention import Sizes
from ftcore.states.fold import fold
from ftcore.states.model import JobState
from ftcore.states.snapshot import pack, seal
from ftcore.testing.driver import JobDriver

EVENTS, QUICK_EVENTS = 1_000_000, 50_000
NODES, QUICK_NODES = 1_000, 100
FAULT_EVERY = 17_000
"""Events between two faults: 60 faults in the whole log."""

COMMIT_EVERY = 500
"""Steps between two checkpoints."""

MESSAGES = ("RuntimeError: CUDA error: an illegal memory access was encountered", "")
MESSAGE_BYTES = 10_000_000
START_UPS = 10
EXPLAIN_S, REPORT_S, REPORT_MIB, START_MS = 1.0, 20.0, 1024, 150
"""Targets."""

PASS = """
import sys
import msgspec
decode = msgspec.json.decode
with open(sys.argv[1], "rb") as file:
    for line in file:
        if not line.startswith(b"{"):
            decode(line.partition(b" ")[2])
"""


@attrs.frozen
class Cost:
    """What one command cost.

    Args:
        cpu_s: user and system CPU seconds.
        peak_mib: the largest resident size.
        wall_s: seconds that passed.
    """

    cpu_s: float
    peak_mib: float
    wall_s: float


def cost(argv: Sequence[str], runs: int) -> Cost:
    """The least CPU time of several runs of a command."""
    found = []
    for _ in range(runs):
        began = time.monotonic()
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.monotonic() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"{' '.join(argv)}: exit code {process.returncode}")
        found.append(Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, wall_s))
    return min(found, key=lambda each: each.cpu_s)


def ftctl(*argv: str) -> list[str]:
    """The command line of ``ftctl``."""
    return [sys.executable, "-m", "ftcore.cli.ftctl", *argv]


def long_log(path: Path, events: int, nodes: int, every: int = FAULT_EVERY) -> None:
    """Write the log of a job that trains and has a fault from time to time."""
    driver = JobDriver(nodes=nodes, slots=8, tick_s=0.02)
    driver.start()
    written = faults = 0
    with ArchiveWriter(path, JobName("long")) as writer:
        while True:
            _train(driver, every - 3 * nodes)
            written += _moved(driver, writer)
            if faults and written >= events:
                break
            driver.fail(f"node{7 * faults % nodes}", exitcode=-9 if faults % 2 else 1, message=MESSAGES[faults % 2])
            driver.settle()
            faults += 1
    assert not driver.ended


def _moved(driver: JobDriver, writer: ArchiveWriter) -> int:
    """Move the driver's events to the file."""
    count = len(driver.events)
    for event in driver.events:
        writer.add(event)
    driver.events.clear()
    driver.groups.clear()
    return count


def _train(driver: JobDriver, events: int) -> None:
    for _ in range(events):
        driver.step += 1
        driver.own(JobProgressed(round=driver.state.rounds.newest, step=driver.step, loss=2.0 + 1 / driver.step))
        if driver.step % COMMIT_EVERY == 0:
            driver.commit()


def stored_log(path: Path, store: str, snapshot: int) -> None:
    """Write the events of a file to a store, and the snapshots that a master would make; prints their cost."""
    asyncio.run(_store(path, store, snapshot))


async def _store(path: Path, url: str, every: int) -> None:
    logs, state, spent_s, batch = open_store(url), JobState(), 0.0, []
    log = await logs.open(JobName("long"), create=True)
    lead = await log.campaign(Candidate(host="h", pid=1, address="unix:x"))
    overview = SnapshotOverview(log, LogOverview())
    for event in itertools.chain(read_events(path), [None]):
        if event is not None:
            batch.append(event)
        if batch and (event is None or len(batch) == 1000):
            await log.append(batch, term=lead.term, expected_seq=Seq(state.seq))
            for each in batch:
                fold(state, each)
            batch.clear()
            if state.seq % every == 0:
                began = time.process_time()
                stored = await overview.until(Seq(state.seq))
                spent_s += time.process_time() - began
                await log.save_snapshot(seal(pack(state), stored), term=lead.term)
    await logs.close()
    print(f"overviews in snapshots: {spent_s / state.seq * 1e6:.1f} us of the master's CPU per event", flush=True)


def long_message(path: Path) -> None:
    """Write a short log with a fault whose message has 10 MB."""
    driver = JobDriver(nodes=2, slots=1)
    driver.start()
    driver.fail("node1", message="ValueError: " + "bad batch \n" * (MESSAGE_BYTES // 11))
    driver.settle()
    with ArchiveWriter(path, JobName("message")) as writer:
        _moved(driver, writer)


def start_ups(short: Path) -> str:
    """Measure commands whose work is little."""
    empty = cost([sys.executable, "-c", "pass"], START_UPS)
    rows = [["limit: python -c pass", f"{empty.cpu_s * 1000:.0f} ms", "1", ""]]
    for argv, target in (
        (("--version",), True),
        (("--help",), True),
        (("events", "--help"), True),
        (("completion", "bash"), True),
        (("--store", f"file:{short}", "events"), True),
        (("--store", f"file:{short}", "explain"), False),
    ):
        found = cost(ftctl(*argv), START_UPS)
        name = f"ftctl {argv[-1] if argv[0] == '--store' else ' '.join(argv)}"
        verdict = "" if not target else "yes" if found.cpu_s * 1000 < START_MS else "no"
        rows.append([name, f"{found.cpu_s * 1000:.0f} ms", f"{found.cpu_s / empty.cpu_s:.1f}", verdict])
    return table(("command", "CPU", "of the limit", f"< {START_MS} ms"), rows)


def readings(path: Path, store: str, message: Path, page: Path) -> str:
    """Measure commands that read a long log."""
    once = cost([sys.executable, "-c", PASS, str(path)], 2)
    took = f"{once.wall_s:.1f} s"
    rows = [["limit: one pass with msgspec", f"{once.cpu_s:.1f} s", took, f"{once.peak_mib:.0f} MiB", "1", ""]]
    exported = path.with_name("exported.ftlog")
    file = f"file:{path}"
    report = ftctl("--store", file, "report", "-o", str(page))
    unknown = ["sh", "-c", 'rm -rf "$0" && XDG_CACHE_HOME="$0" exec "$@"', str(path.with_name("empty")), *report]
    report_aim = f"{REPORT_S:g} s, {REPORT_MIB} MiB"
    for what, command, runs, target in (
        (
            "explain, a live log, first reading",
            ftctl("--store", store, "--job", "long", "explain"),
            1,
            f"{EXPLAIN_S:g} s",
        ),
        ("explain, a file, first reading", ftctl("--store", file, "explain"), 1, ""),
        ("explain, a file, second reading", ftctl("--store", file, "explain"), 3, f"{EXPLAIN_S:g} s"),
        ("goodput, a file, third reading", ftctl("--store", file, "goodput"), 3, ""),
        ("export", ftctl("--store", file, "export", "-o", str(exported)), 1, ""),
        ("explain, exported file", ftctl("--store", f"file:{exported}", "explain"), 3, f"{EXPLAIN_S:g} s"),
        ("report, a file, first reading", unknown, 2, report_aim),
        ("report, a file, later reading", report, 2, report_aim),
        ("report, a live log", ftctl("--store", store, "--job", "long", "report", "-o", str(page)), 2, report_aim),
        ("report, exported file", ftctl("--store", f"file:{exported}", "report", "-o", str(page)), 2, report_aim),
    ):
        found = cost(command, runs)
        spent = f"{found.cpu_s:.2f} s"
        took, peak = f"{found.wall_s:.2f} s", f"{found.peak_mib:.0f} MiB"
        rows.append([f"ftctl {what}", spent, took, peak, f"{found.cpu_s / once.cpu_s:.2f}", target])
    found = cost(ftctl("--store", f"file:{message}", "explain"), 2)
    name = f"ftctl explain, a message of {MESSAGE_BYTES // 1_000_000} MB"
    rows.append([name, f"{found.cpu_s:.1f} s", f"{found.wall_s:.1f} s", f"{found.peak_mib:.0f} MiB", "", ""])
    return table(("what", "CPU", "wall", "peak memory", "of the limit", "target"), rows)


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small log; print, and do not change RESULTS.md")
    parser.add_argument("--dry", action="store_true", help="print, and do not change RESULTS.md")
    args = parser.parse_args()
    events, nodes = (QUICK_EVENTS, QUICK_NODES) if args.quick else (EVENTS, NODES)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # for the overviews of this run alone
        path, message, short = (Path(folder) / f"{name}.ftlog" for name in ("long", "message", "short"))
        store = f"sqlite:{folder}/store"
        for make, *what in (
            (long_log, path, events, nodes),
            (stored_log, path, store, Sizes().snapshot),
            (long_message, message),
            (long_log, short, 1, 4, 100),
        ):
            process = multiprocessing.get_context("spawn").Process(target=make, args=what)
            process.start()  # a child begins with the peak memory of its parent, so this process stays small
            process.join()
        parts = [
            f"A log of {events:,} events and {nodes:,} nodes with a fault every {FAULT_EVERY:,} events; "
            f"{path.stat().st_size / 1e6:.0f} MB. CPU time, user and system, the least of several runs.",
            start_ups(short),
            readings(path, store, message, Path(folder) / "page.html"),
        ]
    if args.quick or args.dry:
        print("\n\n".join(parts))
    else:
        write("Reading a log", "python benchmarks/reading.py", "\n\n".join(parts))


if __name__ == "__main__":
    main()

"""Failover time after SIGKILL of the master, by the length of the log.

A real job (one agent, no standby, so the next master is a new process) runs on a log that was first filled with
progress samples. Its master is killed; the time is until the next ``master.elected`` can be read: with the master's
snapshots, and without any, so that the new master replays the whole log. The last column is their ratio; the shortest
log is the lower bound. A quick run prints and does not change RESULTS.md.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import cast

from results import spread, table, write

from ftcore.events.envelope import Event, EventId
from ftcore.events.job import JobProgressed
from ftcore.events.registry import Kind
from ftcore.ids import Nanoseconds, Seq, Term
from ftcore.logs import open_log
from ftcore.ports import Candidate
from ftcore.states.fold import fold
from ftcore.states.model import JobState
from ftcore.states.snapshot import pack, seal

LENGTHS = (1_000, 100_000, 1_000_000)
QUICK_LENGTHS = (1_000, 20_000)
GROUP = 1_000
PATIENCE_S = 180.0
JOB = "failover"
SCRIPT = "import time\nwhile True: time.sleep(0.1)\n"


def sample(seq: int, term: Term) -> Event:
    return Event(
        seq=Seq(seq),
        id=EventId("master", str(term), seq),
        time=Nanoseconds(time.time_ns()),
        type="job.progressed",
        kind=Kind.FACT,
        source="master",
        term=term,
        data=JobProgressed(round=0, step=seq, loss=2.5),
    )


async def fill(url: str, length: int, snapshots: bool) -> None:
    """Write that many events to a new log."""
    log = await open_log(url, JOB, create=True)
    leadership = await log.campaign(Candidate(host="filler", pid=os.getpid(), address="unix:/nowhere"))
    state = JobState()
    for first in range(1, length + 1, GROUP):
        events = [sample(seq, leadership.term) for seq in range(first, min(first + GROUP, length + 1))]
        await log.append(events, term=leadership.term, expected_seq=Seq(first - 1))
        for event in events:
            fold(state, event)
    if snapshots:
        await log.save_snapshot(seal(pack(state)), term=leadership.term)
    await leadership.resign()
    await log.close()


async def take_over_s(url: str, home: Path) -> float:
    """Run a job on the log, kill its master, and wait for the next one."""
    (home / "train.py").write_text(SCRIPT)
    log = await open_log(url, JOB)
    last = await log.last_seq()
    never = str(1 << 40)  # no snapshots other than those of the filler
    command = [sys.executable, "-m", "ftcore.cli.ftrun", "--store", url, "--job", JOB, "--no-preload"]
    command += ["--snapshot-events", never, "train.py"]
    environ = os.environ | {"XDG_STATE_HOME": str(home)}
    job = subprocess.Popen(command, cwd=home, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    killed = 0.0
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            contextlib.aclosing(cast(AsyncGenerator[Event], log.follow(last))) as events,
        ):
            master = 0
            async for event in events:
                if event.type == "master.elected":
                    if killed:
                        return time.perf_counter() - killed
                    master = event.data.pid
                elif event.type == "workers.started" and not killed:
                    killed = time.perf_counter()
                    os.kill(master, signal.SIGKILL)
        raise AssertionError("the log cannot end")
    finally:
        job.terminate()
        job.wait(PATIENCE_S)
        await log.close()


@contextlib.contextmanager
def stores(home: Path) -> Iterator[dict[str, str]]:
    """Return the URL of a store of each kind; etcd only if it is installed."""
    found = {"sqlite": f"sqlite://{home}/logs"}
    binary = shutil.which("etcd")
    server = None
    if binary is not None:
        port, peer = 23790, 23800
        client, peers = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer}"
        urls = ["--listen-client-urls", client, "--advertise-client-urls", client]
        urls += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
        urls += ["--initial-cluster", f"default={peers}", "--quota-backend-bytes", str(4 << 30)]
        with (home / "etcd.log").open("wb") as said:
            server = subprocess.Popen([binary, "--data-dir", str(home / "etcd"), *urls], stdout=said, stderr=said)
        found["etcd"] = f"etcd://127.0.0.1:{port}"
    try:
        yield found
    finally:
        if server is not None:
            server.terminate()
            server.wait()


async def measure(url: str, home: Path, length: int, snapshots: bool) -> float:
    await fill(url, length, snapshots)
    return await take_over_s(url, home)


def main() -> None:
    """Measure, print, and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short logs, once; does not change RESULTS.md")
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as root, stores(Path(root)) as found:
        for store, url in found.items():
            for length in QUICK_LENGTHS if args.quick else LENGTHS:
                came: dict[bool, list[float]] = {True: [], False: []}
                for _ in range(1 if args.quick else args.repeat):
                    for snapshots, times in came.items():
                        home = Path(tempfile.mkdtemp(dir=root))
                        place = f"{url}/{uuid.uuid4().hex}"
                        times.append(asyncio.run(measure(place, home, length, snapshots)))
                ratio = statistics.median(came[False]) / statistics.median(came[True])
                rows.append((store, f"{length:,}", spread(came[True], "s"), spread(came[False], "s"), f"{ratio:.1f}"))
                print(*rows[-1], flush=True)
    body = table(("store", "events", "with snapshots", "without", "ratio"), rows)
    if args.quick:
        print(body)
    else:
        write(
            "Master failover",
            f"python benchmarks/failover.py --repeat {args.repeat}",
            f"{(__doc__ or '').split(chr(10) * 2)[1]}\n\n{body}",
        )


if __name__ == "__main__":
    main()

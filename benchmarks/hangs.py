"""Hang detection: how many healthy loops are restarted, and how soon hung loops are.

Each case of ``scripts/loop.py`` is a job of two ranks under ``ftrun``. A healthy case completes no step for longer than
``hang_idle_s``; ``--scale`` shortens all time constants of hangs. A hung case is measured from its last progress to the
decision. ``--defaults`` runs the named cases with the default time constants.

``--generated N`` runs N generated noisy jobs in virtual time instead (``tests/hang_runs.py``), with the default time
constants, then as many jobs for each kind of hang. Its figures do not depend on the machine.
"""

import argparse
import asyncio
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import attrs

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import hang_runs
from results import table, write

from ftcore.events.envelope import Event
from ftcore.ids import JobName, Seq
from ftcore.logs import open_store
from ftcore.timing import DEFAULT

LOOP = Path(__file__).with_name("scripts") / "loop.py"
HANGS = ("hang_look_s", "hang_idle_s", "hang_busy_s", "hang_ceiling_s")
LIMIT_S = 3000.0
LONGER = 1.3
"""Time without a step of a healthy case, as a multiple of ``hang_idle_s``."""


@attrs.frozen
class Outcome:
    """Result of a case.

    Args:
        case: its name.
        stuck: it hangs.
        restarts: number of incidents of the job.
        alerts: number of alerts in its log.
        delay_s: seconds from its last progress to the report; None: it was not reported.
        cause: the reported cause.
        code: exit code of ``ftrun``.
    """

    case: str
    stuck: bool
    restarts: int
    alerts: int
    delay_s: float | None
    cause: str
    code: int | None


def cases() -> dict[str, bool]:
    """Return all cases, and whether they hang."""
    found: dict[str, bool] = {}
    lines = LOOP.read_text().splitlines()
    for mark, line in itertools.pairwise(lines):
        if mark in ("@healthy", "@stuck"):
            found[line.removeprefix("def ").partition("(")[0]] = mark == "@stuck"
    return found


async def run(case: str, stuck: bool, scale: float) -> Outcome:
    """Run one job."""
    timing = {name: getattr(DEFAULT, name) * scale for name in HANGS}
    with tempfile.TemporaryDirectory(prefix="hangs-") as root:
        home, notes = Path(root) / "home", Path(root) / "notes"
        env = os.environ | {"XDG_STATE_HOME": str(home), "FTCORE_TIMING": json.dumps(timing), "OMP_NUM_THREADS": "1"}
        argv = ("-m", "ftcore.cli.ftrun", "--job", "loop", "--standalone", "--nproc-per-node", "2", str(LOOP))
        last = (case, root, f"{LONGER * timing['hang_idle_s']:g}")
        with (Path(root) / "output").open("w") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *argv, *last, env=env, cwd=root, stdout=output, stderr=output
            )
            store = f"sqlite://{home}/ftcore"
            events: list[Event] = []
            try:
                async with asyncio.timeout(LIMIT_S):
                    while process.returncode is None and not _reported_finished(events):
                        await asyncio.sleep(1.0)
                        events = await _read(store)
            except TimeoutError:
                pass
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            code = await process.wait()
            events = await _read(store)
        return _outcome(case, stuck, events, notes.read_text() if notes.exists() else "", code)


def _reported_finished(events: list[Event]) -> bool:
    return any(event.type == "standstill.judged" and event.data.cause == "finished" for event in events)


async def _read(store: str) -> list[Event]:
    opened = open_store(store)
    try:
        if "loop" not in await opened.jobs():
            return []
        log = await opened.open(JobName("loop"))
        try:
            return [event async for event in log.read(Seq(0))]
        finally:
            await log.close()
    except Exception:  # the log is just being created
        return []
    finally:
        await opened.close()


def _outcome(case: str, stuck: bool, events: list[Event], notes: str, code: int) -> Outcome:
    faults = [float(line.split()[0]) for line in notes.splitlines() if " fault " in line]
    judged = [event for event in events if event.type == "standstill.judged"]
    reports = [event for event in judged if event.data.verdict == "hang" or event.data.cause == "finished"]
    return Outcome(
        case,
        stuck,
        sum(event.type == "incident.opened" for event in events),
        sum(event.data.verdict == "alert" for event in judged),
        reports[0].time / 1e9 - max(faults) if reports and faults else None,
        reports[0].data.cause if reports else "",
        code,
    )


async def run_all(names: dict[str, bool], scale: float, at_once: int) -> list[Outcome]:
    """Run the cases, a few at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(case: str, stuck: bool) -> Outcome:
        async with room:
            found = await run(case, stuck, scale)
            print(found, file=sys.stderr, flush=True)
            return found

    return list(await asyncio.gather(*(one(case, stuck) for case, stuck in names.items())))


NOISY_H, BEFORE_H = 8.0, 0.5
"""Virtual hours of a generated healthy job, and before a generated hang."""

TIMEOUT_S = 1800.0
"""Default timeout of a process group of gloo; also the default ceiling."""


def run_generated(count: int) -> int:
    """Run generated jobs; returns the exit code."""
    alarms, rows, missed = 0, [], 0
    for seed in range(count):
        found = hang_runs.watched(seed, hang_runs.healthy(seed, NOISY_H))
        alarms += found is not None
        print(f"healthy {seed}: {hang_runs.result(found)}", file=sys.stderr, flush=True)
    for name in hang_runs.HANGS:
        verdicts = [hang_runs.watched(seed, hang_runs.hung(seed, name, BEFORE_H)) for seed in range(count)]
        found_in_time = [each for each in verdicts if each is not None and each.part.hang == name]
        missed += count - len(found_in_time)
        delays = sorted(each.after_s for each in found_in_time)
        causes = ", ".join(sorted({each.cause for each in found_in_time}))
        median, worst = statistics.median(delays), delays[-1]
        rows.append((name, causes, f"{median:.0f} s", f"{worst:.0f} s", f"{TIMEOUT_S / median:.1f}"))
        print(rows[-1], file=sys.stderr, flush=True)
    words = (
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. {count} noisy jobs of {NOISY_H:g} h in virtual time: "
        f"{alarms} false alarms. Then {count} jobs for each hang, after {BEFORE_H:g} h: {missed} missed. The ratio is "
        f"that of {TIMEOUT_S:g} s, the timeout of a process group of gloo and the least ceiling, to the median."
    )
    head = ("hang", "cause", "median from hang to decision", "longest", "ratio")
    command = f"python benchmarks/hangs.py --generated {count}"
    write("Hangs of generated jobs", command, words + "\n\n" + table(head, rows))
    return 1 if alarms or missed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1, help="times the default time constants of hangs")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at a time")
    parser.add_argument("--defaults", action="store_true", help="with the default time constants; short for --scale 1")
    parser.add_argument("--generated", type=int, metavar="N", help="N generated jobs in virtual time instead")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: all of {', '.join(cases())}")
    args = parser.parse_args()
    if args.generated:
        return run_generated(args.generated)
    scale = 1.0 if args.defaults else args.scale
    known = cases()
    names = {case: known[case] for case in args.cases or known}
    found = asyncio.run(run_all(names, scale, args.at_once))
    rows = []
    for one in sorted(found, key=lambda one: one.stuck):
        delay = "-" if one.delay_s is None else f"{one.delay_s:.1f} s"
        rows.append(
            (one.case, "stuck" if one.stuck else "healthy", one.restarts, one.alerts, one.cause or "-", delay, one.code)
        )
    false = sum(one.restarts for one in found if not one.stuck)
    missed = [one.case for one in found if one.stuck and one.delay_s is None]
    idle = DEFAULT.hang_idle_s * scale
    words = (
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. {len(found)} loops, "
        f"time constants of hangs times {scale:g}; healthy ones complete no step for "
        f"{LONGER * idle:g} s. False restarts: {false}; missed: {', '.join(missed) or 'none'}."
    )
    head = ("loop", "is", "restarts", "alerts", "reported cause", "from hang to decision", "exit code")
    command = " ".join(["python benchmarks/hangs.py", *sys.argv[1:]])
    write("Hangs" if scale != 1 else "Hangs, default time constants", command, words + "\n\n" + table(head, rows))
    return 1 if false or missed else 0


if __name__ == "__main__":
    sys.exit(main())

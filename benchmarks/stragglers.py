"""Stragglers by rank: steps until a slow rank is named, and false names, in real jobs of four ranks over gloo.

Each case of ``scripts/uneven.py`` is a job on two local nodes: DDP, FSDP2, and a pipeline of two stages with two
replicas. In a slow case one rank is slower from the first step on, in one phase or in all of them; in an even case none
is. A name is false if it is another rank, or any rank of an even case.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

import attrs
from results import table, write

from ftcore.events.worker import FaultObserved
from ftcore.ids import JobName, Seq
from ftcore.logs import open_store

SCRIPT = Path(__file__).with_name("scripts") / "uneven.py"
KINDS = ("ddp", "fsdp2", "pipeline")
SLOW = ((1, "all", 1.05), (2, "backward", 1.2), (3, "data", 3.0))
"""Slow rank, phase and factor."""

EVEN = (-1, "", 1.0)
LIMIT_S = 1200.0


@attrs.frozen
class Case:
    """A job: the kind of training, and its slow rank (-1: none), slow phase and factor."""

    kind: str
    rank: int
    phase: str
    factor: float


@attrs.frozen
class NamedRanks:
    """What was named in a job.

    Args:
        step: the step after which the slow rank was named; None: it was not.
        phase: the phase that was named with it.
        false: number of other ranks that were named.
        slower: number of reported slowdowns of the whole job.
        code: exit code of ``ftrun``.
    """

    step: int | None
    phase: str
    false: int
    slower: int
    code: int | None


async def run(case: Case, steps: int) -> NamedRanks:
    """Run one job."""
    with tempfile.TemporaryDirectory(prefix="stragglers-") as root:
        env = os.environ | {"XDG_STATE_HOME": f"{root}/home", "OMP_NUM_THREADS": "1"}
        flags = ("--job", "uneven", "--standalone", "--local-nodes", "2", "--nproc-per-node", "2")
        work = (case.kind, str(steps), str(case.rank), case.phase or "all", str(case.factor), "1")
        argv = (sys.executable, "-m", "ftcore.cli.ftrun", *flags, str(SCRIPT), *work)
        with (Path(root) / "output").open("w") as output:
            process = await asyncio.create_subprocess_exec(*argv, env=env, cwd=root, stdout=output, stderr=output)
            try:
                async with asyncio.timeout(LIMIT_S):
                    code = await process.wait()
            except TimeoutError:
                process.terminate()
                code = await process.wait()
        return _named(case, code, await _observed(f"sqlite://{root}/home/ftcore"))


async def _observed(store: str) -> list[FaultObserved]:
    opened = open_store(store)
    try:
        log = await opened.open(JobName("uneven"))
        try:
            return [event.data async for event in log.read(Seq(0)) if isinstance(event.data, FaultObserved)]
        finally:
            await log.close()
    finally:
        await opened.close()


def _named(case: Case, code: int | None, found: list[FaultObserved]) -> NamedRanks:
    slow = [each for each in found if each.kind == "straggler"]
    right = next((each for each in slow if each.rank == case.rank), None)
    others = {each.rank for each in slow} - {case.rank}
    step, phase = (right.step, right.phase) if right is not None else (None, "")
    return NamedRanks(step, phase, len(others), sum(each.kind == "slowdown" for each in found), code)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one slow and no even case of each kind; writes nothing")
    parser.add_argument("--steps", type=int, default=400, help="steps of each job")
    args = parser.parse_args()
    cases = [Case(kind, *slow) for kind in KINDS for slow in (SLOW[:1] if args.quick else (*SLOW, EVEN))]
    rows, false, missed = [], 0, 0
    for case in cases:
        found = asyncio.run(run(case, args.steps))
        print(case, found, file=sys.stderr, flush=True)
        slow = f"rank {case.rank}, {case.phase}, {case.factor:g}x" if case.rank >= 0 else "none"
        named = "-" if found.step is None else f"after {found.step} steps, in {found.phase}"
        rows.append((case.kind, slow, named, found.false, found.slower, found.code))
        false += found.false
        missed += case.rank >= 0 and found.step is None
    text = table(("training", "slow rank", "named", "false names", "slowdowns", "exit code"), rows)
    words = (
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. Jobs of {args.steps} steps, four ranks; a step has "
        f"100 ms of work, which is slept. Missed: {missed}; false names: {false}."
    )
    if args.quick:
        print(f"{words}\n\n{text}")
    else:
        write("Stragglers", " ".join(["python benchmarks/stragglers.py", *sys.argv[1:]]), f"{words}\n\n{text}")
    return 1 if false or missed else 0


if __name__ == "__main__":
    sys.exit(main())

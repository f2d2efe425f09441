"""Training loops as they are written for torchrun run unchanged: counted steps, long phases, resumed losses.

By default a selection in which each loop, each phase and each mishap occurs; ``make long`` runs all of them.
"""

import itertools
import os
import re
import signal
from pathlib import Path

import pytest
from harness import Ftrun, Run, ftrun, kill, wait_until

LOOPS = ("plain", "accumulation", "amp", "gan", "lbfgs", "zero", "backward", "fsdp", "functional", "compile")
MISHAPS = ("kill", "stop", "exception")
PHASES = ("", "evaluation", "save")
SELECTED = {
    ("plain", "stop", "evaluation"),
    ("accumulation", "exception", ""),
    ("amp", "kill", ""),
    ("gan", "kill", "save"),
    ("lbfgs", "exception", ""),
    ("zero", "kill", ""),
    ("backward", "exception", ""),
    ("fsdp", "kill", ""),
    ("functional", "exception", "evaluation"),
}
LONG = os.environ.get("FTCORE_LONG_TESTS") == "1"
TIMING = {"hang_look_s": 1.0}
"""Agents look at workers without progress after a second, so a phase of three seconds is looked at, and must go on."""

cases = [case for case in itertools.product(LOOPS, MISHAPS, PHASES) if LONG or case in SELECTED]


def start(job: Ftrun, *args: str, mishap: str = "", **more: object) -> Run:
    job.env["MISHAP"] = mishap
    return job.start("--nproc-per-node", "2", script="loops.py", preload=False, args=args, **more)


def losses(job: Ftrun) -> dict[tuple[int, int], set[str]]:
    """The losses that each rank computed, by rank and step; equal ones once."""
    found: dict[tuple[int, int], set[str]] = {}
    for rank in range(2):
        for line in (job.cwd / f"losses.{rank}").read_text().splitlines():
            step, _, loss = line.partition(" ")
            found.setdefault((rank, int(step)), set()).add(loss)
    return found


def check_counts(run: Run) -> None:
    """The script's own steps, in all and of the last process, are those that ftcore counted."""
    lines = re.findall(r"rank \d own (\d+) (\d+) counted (\d+) (\d+)", run.stdout())
    assert len(lines) == 2
    for own, here, counted, counted_here in lines:
        assert (own, here) == (counted, counted_here)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, dict[tuple[int, int], set[str]]]:
    """Losses of runs to which nothing happens, by loop, as far as they were needed."""
    return {}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("loop", "mishap", "phase"), cases)
def test_a_loop_is_counted_and_resumes_with_the_same_losses(
    tmp_path: Path, undisturbed: dict[str, dict[tuple[int, int], set[str]]], loop: str, mishap: str, phase: str
) -> None:
    """A rank is killed, stopped or raises in step 9, and a long evaluation or save ends no round.

    Steps 6 to 8 are computed again and have the same losses; with ``make long`` all losses equal those of another run.
    """
    if LONG and loop not in undisturbed:
        with ftrun(tmp_path / "undisturbed", timing=TIMING) as job:
            run = start(job, loop)
            assert run.end() == 0
            check_counts(run)
            undisturbed[loop] = losses(job)
    with ftrun(tmp_path / "disturbed", timing=TIMING) as job:
        run = start(job, loop, *([phase] if phase else []), mishap=f"{mishap}:9:1")
        assert run.end() == 0
        check_counts(run)
        assert len(job.of("world.formed")) == 2, "one restart, for the mishap"
        found = losses(job)
        assert {rank_step: each for rank_step, each in found.items() if len(each) > 1} == {}
        assert len(found) == 24 and (not LONG or found == undisturbed[loop])


def test_a_killed_job_is_started_again_and_resumes(tmp_path: Path) -> None:
    """``ftrun`` is killed with all that it started; the same command continues from the script's checkpoint."""
    with ftrun(tmp_path, timing=TIMING) as job:
        first = start(job, "plain", mishap="hold:8:1")
        job.stepped(1)
        wait_until((job.cwd / "happened").exists, "step 8")
        agent = job.agent()
        first.signal(signal.SIGKILL)
        first.end()
        kill(agent)
        wait_until(lambda: not [pid for pid in job.pids(1) if pid in job.processes()], "the end of the workers")
        (job.cwd / "go").touch()
        second = start(job, "plain")
        assert second.end() == 0
        check_counts(second)
        assert all(len(each) == 1 for each in losses(job).values()) and len(losses(job)) == 24

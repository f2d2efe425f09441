"""Training loops as they are written for torchrun run unchanged: counted steps, long phases, resumed losses.

By default a selection in which each loop, each phase and each mishap occurs; ``make long`` runs the product.
"""

import itertools
import signal
from pathlib import Path

import pytest
from harness import ftrun, kill, wait_until
from loop_checks import TIMING, Losses, check_counts, losses, start

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
    ("compile", "stop", ""),
}
cases = [
    pytest.param(*case, marks=[] if case in SELECTED else pytest.mark.long)
    for case in itertools.product(LOOPS, MISHAPS, PHASES)
]

SCRIPT = "loops.py"


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, Losses]:
    """Losses of runs to which nothing happens, by loop, as far as they were needed."""
    return {}


@pytest.mark.longer
@pytest.mark.parametrize(("loop", "mishap", "phase"), cases)
def test_a_loop_is_counted_and_resumes_with_the_same_losses(
    tmp_path: Path, undisturbed: dict[str, Losses], longer: bool, loop: str, mishap: str, phase: str
) -> None:
    """A rank is killed, stopped or raises in step 9, and a long evaluation or save ends no round.

    Steps 6 to 8 are computed again and have the same losses; with ``make long`` all losses equal those of another run.
    """
    if longer and loop not in undisturbed:
        with ftrun(tmp_path / "undisturbed", timing=TIMING) as job:
            run = start(job, SCRIPT, loop)
            assert run.end() == 0
            check_counts(run, numbered=loop != "lbfgs")
            undisturbed[loop] = losses(job)
    with ftrun(tmp_path / "disturbed", timing=TIMING) as job:
        run = start(job, SCRIPT, loop, *([phase] if phase else []), mishap=f"{mishap}:9:1")
        assert run.end() == 0
        check_counts(run, numbered=loop != "lbfgs")
        assert len(job.of("world.formed")) == 2, "one restart, for the mishap"
        found = losses(job)
        assert {rank_step: each for rank_step, each in found.items() if len(each) > 1} == {}
        assert len(found) == 24 and (not longer or found == undisturbed[loop])


def test_a_killed_job_is_started_again_and_resumes(tmp_path: Path) -> None:
    """``ftrun`` is killed with all that it started; the same command continues from the script's checkpoint."""
    with ftrun(tmp_path, timing=TIMING) as job:
        first = start(job, SCRIPT, "plain", mishap="hold:8:1")
        job.stepped(1)
        wait_until((job.cwd / "happened").exists, "step 8")
        agent = job.agent()
        first.signal(signal.SIGKILL)
        first.end()
        kill(agent)
        wait_until(lambda: not [pid for pid in job.pids(1) if pid in job.processes()], "the end of the workers")
        (job.cwd / "go").touch()
        second = start(job, SCRIPT, "plain")
        assert second.end() == 0
        check_counts(second)
        assert all(len(each) == 1 for each in losses(job).values()) and len(losses(job)) == 24

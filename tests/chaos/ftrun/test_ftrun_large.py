"""Four ranks whose large messages are cut in the middle: processes are killed at moments that no step knows."""

import random
import signal
import time
from pathlib import Path

import pytest
from harness import Ftrun, Run, ftrun, kill, wait_until
from in_place_runs import ends, remedies

STEPS, MB = 24, 32
KILLS = (4, 9, 14, 19)


def start(job: Ftrun) -> Run:
    return job.start("--nproc-per-node", "4", script="large.py", preload=False, args=(str(STEPS), str(MB)))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The weights of a run to which nothing happens."""
    with ftrun(tmp_path_factory.mktemp("undisturbed")) as job:
        run = start(job)
        assert run.end() == 0
        return {digest for _, digest in ends(run).values()}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_processes_are_killed_in_the_middle_of_a_collective(tmp_path: Path, undisturbed: set[str], seed: int) -> None:
    """Each is swapped, and a half-reduced gradient never reaches the weights."""
    dice = random.Random(seed)
    with ftrun(tmp_path) as job:
        run = start(job)
        for number, at in enumerate(KILLS, 1):
            job.wait("workers.stepped", round=number)
            wait_until(lambda at=at: job.step(0) >= at, f"step {at}")
            time.sleep(dice.uniform(0, 0.2))  # somewhere in a step, which takes about as long
            kill(dice.choice(job.pids(number)), signal.SIGKILL)
        assert run.end() == 0
        assert {digest for _, digest in ends(run).values()} == undisturbed
        assert len(undisturbed) == 1
        assert remedies(job) == ["hot_swap"] * len(KILLS)
        assert len({pid for number in range(1, len(KILLS) + 2) for pid in job.pids(number)}) == 4 + len(KILLS)

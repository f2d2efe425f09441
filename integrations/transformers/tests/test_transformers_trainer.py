"""A ``Trainer`` under ``ftrun``: counted steps, long phases, mishaps, pauses; resumed runs equal undisturbed ones.

By default a selection; ``make long`` runs the product.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import ftcore_transformers
import pytest
from harness import JOBS
from loop_checks import LONG, FrameworkRuns

SCRIPT = Path(__file__).with_name("jobs") / "trainer.py"
WHATS = ("", "accumulation evaluation save sleep", "accumulation", "compile", "evaluation", "save")
MISHAPS = ("kill", "stop", "exception")
SELECTED = {("accumulation evaluation save sleep", "kill")}

cases = [case for case in itertools.product(WHATS, MISHAPS) if LONG or case in SELECTED]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> FrameworkRuns:
    return FrameworkRuns(SCRIPT, tmp_path_factory.mktemp("runs"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("what", "mishap"), cases)
def test_a_mishap_changes_no_loss(tmp_path: Path, runs: FrameworkRuns, what: str, mishap: str) -> None:
    """A rank is killed, stopped or raises in step 9: losses and weights are those of an undisturbed run, to the bit.

    Evaluation and save take three seconds on rank 0 after step 7, and are not taken for a hang.
    """
    runs.check_mishap(tmp_path, set(what.split()), f"{mishap}:9:1")


@pytest.mark.timeout(180)
def test_a_pause_a_save_and_a_new_start(tmp_path: Path, runs: FrameworkRuns) -> None:
    """All ranks wait behind the same step; a save on request is the state from which the next run continues."""
    runs.check_pause_and_storage(tmp_path, {"accumulation", "evaluation", "save"})


def test_outside_ftrun_nothing_changes(tmp_path: Path) -> None:
    """The same script runs without a launcher and saves nothing of ftcore's."""
    env = {**os.environ, "PYTHONPATH": str(JOBS)}
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "rank 0 own 14 14" in done.stdout and "ftcore" not in done.stderr


def test_another_training_loop_is_refused() -> None:
    """A trainer without the private function that ``attach`` replaces is refused with a remedy."""

    class Old:
        def train(self) -> None: ...

    with pytest.raises(RuntimeError, match="install transformers"):
        ftcore_transformers.attach(Old())

"""A ``Trainer`` under ``ftrun``: counted steps, long phases, mishaps, pauses; resumed runs equal undisturbed ones.

By default a selection of the mishaps; ``make long`` runs the product.
"""

import itertools
from pathlib import Path

import ftcore_transformers
import pytest
from loop_checks import FrameworkRuns, check_outside

SCRIPT = Path(__file__).with_name("jobs") / "trainer.py"
WHATS = ("", "accumulation evaluation save sleep", "accumulation", "compile", "evaluation", "save")
MISHAPS = ("kill", "stop", "exception")
SELECTED = {("accumulation evaluation save sleep", "kill")}

cases = [
    pytest.param(*case, marks=[] if case in SELECTED else pytest.mark.long)
    for case in itertools.product(WHATS, MISHAPS)
]


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


def test_a_pause_a_save_and_a_new_start(tmp_path: Path, runs: FrameworkRuns) -> None:
    """All ranks wait behind the same step; a save on request is the state from which the next run continues."""
    runs.check_pause_and_storage(tmp_path, {"accumulation", "evaluation", "save"})


def test_a_mishap_after_a_start_from_a_checkpoint_of_the_trainer(tmp_path: Path, runs: FrameworkRuns) -> None:
    """It is of the middle of an epoch, in which the mishap comes, too: no sample is trained twice."""
    what = {"accumulation", "evaluation", "save"}
    runs.check_own_checkpoint(tmp_path, what, "out/checkpoint-7", 7, "kill:10:1")


def test_outside_ftrun_nothing_changes(tmp_path: Path) -> None:
    """The same script runs without a launcher and saves nothing of ftcore's."""
    check_outside(SCRIPT, tmp_path)


def test_another_training_loop_is_refused() -> None:
    """A trainer without the private function that ``attach`` replaces is refused with a remedy."""

    class Old:
        def train(self) -> None: ...

    with pytest.raises(RuntimeError, match="install transformers"):
        ftcore_transformers.attach(Old())

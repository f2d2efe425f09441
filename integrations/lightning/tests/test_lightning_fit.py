"""Lightning under ``ftrun``: counted steps, long phases, mishaps, pauses; resumed runs equal undisturbed ones.

By default a selection of the mishaps; ``make long`` runs the product.
"""

import itertools
from pathlib import Path

import pytest
from loop_checks import FrameworkRuns, check_outside

SCRIPT = Path(__file__).with_name("jobs") / "fit.py"
WHATS = (
    "",
    "accumulation evaluation save sleep",
    "accumulation",
    "compile",
    "evaluation",
    "save",
    "early evaluation",
    "gan",
    "lbfgs",
    "stateful",
    "stream",
    "workers",
)
MISHAPS = ("kill", "stop", "exception")
SELECTED = {("accumulation evaluation save sleep", "kill"), ("gan", "exception")}

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
    """A rank is killed, stopped or raises: losses and weights are those of an undisturbed run, to the bit.

    Evaluation and save take three seconds on rank 0, and are not taken for a hang.
    """
    runs.check_mishap(tmp_path, set(what.split()), f"{mishap}:{5 if what.startswith('early') else 9}:1")


def test_a_pause_a_save_and_a_new_start(tmp_path: Path, runs: FrameworkRuns) -> None:
    """All ranks wait behind the same step; a save on request is the state from which the next run continues."""
    runs.check_pause_and_storage(tmp_path, {"accumulation", "evaluation", "save"})


def test_a_mishap_after_a_start_from_a_checkpoint_of_lightning(tmp_path: Path, runs: FrameworkRuns) -> None:
    """It is of the middle of an epoch, and has the state of a loader."""
    saved = "out/epoch=1-step=9.ckpt"
    runs.check_own_checkpoint(tmp_path, {"stateful", "save"}, saved, 9, "kill:12:1")


def test_outside_ftrun_nothing_changes(tmp_path: Path) -> None:
    """The same script runs without a launcher and saves nothing of ftcore's."""
    check_outside(SCRIPT, tmp_path)

"""Tests of files that a script cannot read: which file, and what is at fault."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from ftcore.events.incident import Fault
from ftcore.faults.taxonomy import CLASSES, LINK_CUT, UNREADABLE, UNREADABLE_FILE, FaultClass, facts_of, title_of
from ftcore.runtime.warm import files
from ftcore.states import faultkey


def test_fold_and_taxonomy_use_the_same_detail() -> None:
    """The fold does not import the taxonomy; both mean the same details."""
    assert tuple(map(str, UNREADABLE_FILE)) == faultkey.UNREADABLE_FILE
    assert tuple(map(str, LINK_CUT)) == faultkey.LINK_CUT


@pytest.mark.parametrize(("step", "counted"), [(None, False), (7, True)])
def test_before_any_step_no_node_is_at_fault(step: int | None, counted: bool) -> None:
    """After a step the disk may be at fault."""
    fault = Fault(cls="storage", detail="checkpoint-file", nodes=("a",), ranks=(), root=1, summary="", step=step)
    assert faultkey.is_of_no_node(fault) is not counted
    assert (facts_of(*UNREADABLE_FILE, step) is UNREADABLE) is not counted
    assert facts_of(FaultClass.STORAGE, "full", step) is CLASSES[FaultClass.STORAGE]


def test_a_signal_is_not_called_a_preemption() -> None:
    """SIGKILL does not name its sender: the OOM killer, a scheduler or an operator."""
    assert title_of("signal-preemption", "sigkill") == title_of("signal-preemption", "sigterm") == "external signal"
    for detail in ("preempted", "preemption-notice", "node-left"):
        assert title_of("signal-preemption", detail) == "signal-preemption"
    assert "OOM killer" in facts_of(FaultClass.SIGNAL_PREEMPTION, "sigkill").advice


def load_torch(path: Path) -> None:
    torch.save({"a": torch.zeros(100)}, path)
    os.truncate(path, path.stat().st_size // 2)
    torch.load(path)


def load_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(list(range(1000)))[:100])
    with path.open("rb") as file:
        pickle.load(file)


def fail(path: Path) -> None:
    with path.open("w") as file:
        raise ValueError(file.name)


@pytest.mark.parametrize(("load", "named"), [(load_torch, True), (load_pickle, True), (fail, False)])
def test_which_file_was_read(load, named: bool, tmp_path: Path) -> None:
    """From torch's argument or the open file of the reading frame; a written file does not count."""
    path = tmp_path / "last.pt"
    with pytest.raises(Exception) as caught:
        load(path)
    assert files.read_by(caught.value, caught.value.__traceback__) == (str(path) if named else "")

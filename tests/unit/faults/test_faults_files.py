"""A file that a script cannot read: which one, and whose fault it is."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from ftcore.events.incident import Fault
from ftcore.faults.taxonomy import CLASSES, LINK_CUT, UNREADABLE, UNREADABLE_FILE, FaultClass, facts_of
from ftcore.runtime.warm import files
from ftcore.states import faultkey


def test_one_name_in_both_rooms() -> None:
    """The fold may not know the taxonomy; both mean the same details."""
    assert tuple(map(str, UNREADABLE_FILE)) == faultkey.UNREADABLE_FILE
    assert tuple(map(str, LINK_CUT)) == faultkey.LINK_CUT


@pytest.mark.parametrize(("step", "counted"), [(None, False), (7, True)])
def test_before_any_step_no_node_is_at_fault(step: int | None, counted: bool) -> None:
    """Behind a step the disk may be."""
    fault = Fault(cls="storage", detail="checkpoint-file", nodes=("a",), ranks=(), root=1, summary="", step=step)
    assert faultkey.is_of_no_node(fault) is not counted
    assert (facts_of(*UNREADABLE_FILE, step) is UNREADABLE) is not counted
    assert facts_of(FaultClass.STORAGE, "full", step) is CLASSES[FaultClass.STORAGE]


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
    """By torch's argument or by the open file of the frame that reads; a file that is written is none."""
    path = tmp_path / "last.pt"
    with pytest.raises(Exception) as caught:
        load(path)
    assert files.read_by(caught.value, caught.value.__traceback__) == (str(path) if named else "")

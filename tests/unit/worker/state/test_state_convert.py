"""Checkpoints of torch become checkpoints of ftcore and the other way round, and no foreign code runs."""

import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from conftest import Ranks
from safetensors.torch import load_file
from states import loaded, same, whole
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.errors import CheckpointError
from ftcore.worker.state.convert import export_model, import_checkpoint
from ftcore.worker.state.reader import FtcoreStorageReader

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:.*non-tensor:UserWarning"),
]


def small() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_model_is_exported(ranks: Ranks, tmp_path: Path) -> None:
    """The file has the whole tensors of a split model under their names, tied ones too, and safetensors opens it."""
    first = ranks("session", 3, layout="fsdp2")
    export_model(f"{ranks.keeper.url}/step-000000003-r1", str(tmp_path / "model.safetensors"))
    found = load_file(tmp_path / "model.safetensors")
    expected = {name.removeprefix("model/"): each for name, each in whole(first, "end", "model/").items()}
    assert torch.equal(found.pop("head.weight"), expected["token.weight"])
    assert same(found, expected)


def test_export_names_what_is_missing(ranks: Ranks, tmp_path: Path) -> None:
    """A name that was not registered, and a checkpoint that does not exist."""
    ranks("session", layout="plain", until=1)
    with pytest.raises(CheckpointError, match="no tensors of 'ema'"):
        export_model(f"{ranks.keeper.url}/step-000000001-r1", str(tmp_path / "x"), "ema")
    with pytest.raises(CheckpointError, match="has no manifest"):
        export_model(f"{ranks.keeper.url}/step-000000002-r1", str(tmp_path / "x"))


@pytest.mark.parametrize("kind", ["file", "directory", "dcp"])
def test_a_checkpoint_of_torch_is_imported(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    """A job of two ranks continues from a file of torch.save, from a directory of dcp.save, and from our writer's."""
    out = ranks("foreign", 2, kind=kind)
    if kind != "dcp":
        directory = import_checkpoint(str(out / kind), ranks.keeper.url, job="demo")
        assert directory == "step-000000009-r0"
    assert verify(Storage(ranks.keeper.url), "step-000000009-r0") == []
    resumed = ranks("session", 2, layout="fsdp2", until=9)
    assert loaded(resumed, 0, "start")["loaded"][:2] == (9, "storage")
    assert same(whole(out, "end"), whole(resumed, "start"))
    assert loaded(resumed, 1, "start")["records"]["optimizer"]["tree"]["param_groups"][0]["weight_decay"] == 0.25
    assert loaded(resumed, 1, "start")["records"]["progress"]["tree"] == {"epoch": 4, "seen": [1, "ü"]}


def test_plain_state_dicts_are_written_and_read_by_dcp(tmp_path: Path) -> None:
    """``dcp.save`` with our writer and ``dcp.load`` with our reader, in one process."""
    from ftcore.worker.state.writer import FtcoreStorageWriter

    model, optimizer = small()
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "step": 4}
    dcp.save(state, storage_writer=FtcoreStorageWriter(str(tmp_path), step=4))
    blank = {"model": {name: torch.zeros_like(each) for name, each in state["model"].items()}}
    dcp.load(blank, storage_reader=FtcoreStorageReader(tmp_path / "step-000000004-r0"))
    assert same(blank["model"], dict(state["model"]))
    export_model(str(tmp_path / "step-000000004-r0"), str(tmp_path / "model.safetensors"))
    assert same(load_file(tmp_path / "model.safetensors"), dict(state["model"]))
    with pytest.raises(dcp.CheckpointException, match="committed"):
        dcp.save({"model": {"x": torch.ones(2)}}, storage_writer=FtcoreStorageWriter(str(tmp_path), step=4))


def test_a_bare_state_dict_is_a_model(tmp_path: Path) -> None:
    """Tensors alone; the prefix of DDP is removed."""
    model, _ = small()
    torch.save(OrderedDict((f"module.{k}", v) for k, v in model.state_dict().items()), tmp_path / "x.pt")
    directory = import_checkpoint(str(tmp_path / "x.pt"), str(tmp_path / "new"), step=3)
    export_model(str(tmp_path / "new" / directory), str(tmp_path / "model.safetensors"))
    assert same(load_file(tmp_path / "model.safetensors"), dict(model.state_dict()))


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("/tmp/ftcore-test-evil"),)


def test_no_foreign_code_runs(tmp_path: Path) -> None:
    """A pickle that would call something is refused, in a file, in metadata, and in a value of a directory."""
    model, _ = small()
    torch.save({"model": model.state_dict(), "x": Evil()}, tmp_path / "x.pt")
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / ".metadata").write_bytes(pickle.dumps(Evil()))
    dotted = b"\x80\x04\x8c\x27torch.distributed.checkpoint.filesystem\x8c\x09os.getpid\x93)R."
    (tmp_path / "dotted").mkdir()
    (tmp_path / "dotted" / ".metadata").write_bytes(dotted)
    dcp.save({"model": model.state_dict(), "x": Evil()}, checkpoint_id=tmp_path / "value")
    Path("/tmp/ftcore-test-evil").unlink(missing_ok=True)
    for name, why in {"x.pt": "", "metadata": ".*Path.touch", "dotted": ".*os.getpid", "value": ""}.items():
        with pytest.raises(CheckpointError, match=f"(?s)cannot be imported{why}"):
            import_checkpoint(str(tmp_path / name), str(tmp_path / "new"))
    assert not Path("/tmp/ftcore-test-evil").exists()
    with pytest.raises(CheckpointError, match="does not exist"):
        import_checkpoint(str(tmp_path / "nothing"), str(tmp_path / "new"))

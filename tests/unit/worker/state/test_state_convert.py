"""Checkpoints of torch become checkpoints of ftcore and the other way round, and no foreign code runs."""

import json
import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from rank_processes import Ranks
from safetensors import safe_open
from safetensors.torch import load_file
from states import loaded, same, whole
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

from ftcore.checkpoint.storage import Storage
from ftcore.checkpoint.verify import verify
from ftcore.cli.ftctl import main
from ftcore.errors import CheckpointError
from ftcore.worker.state import export
from ftcore.worker.state.collect import decoded
from ftcore.worker.state.convert import import_checkpoint
from ftcore.worker.state.export import FILE_BYTES, export_model
from ftcore.worker.state.reader import FtcoreStorageReader
from ftcore.worker.state.writer import FtcoreStorageWriter

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


def opened(directory: Path) -> dict[str, torch.Tensor]:
    """The tensors of a model as ``transformers`` reads them: by the index, or from the only file."""
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return load_file(directory / "model.safetensors")
    named = json.loads(index.read_text())
    found = {file: load_file(directory / file) for file in set(named["weight_map"].values())}
    assert {file.name for file in directory.glob("*.safetensors")} == set(found)
    assert (
        sum(each.nbytes for tensors in found.values() for each in tensors.values()) == named["metadata"]["total_size"]
    )
    return {name: found[file][name] for name, file in named["weight_map"].items()}


def ftctl(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main(["checkpoints", "convert", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("file_bytes", [FILE_BYTES, 300])
def test_a_model_is_exported(ranks: Ranks, tmp_path: Path, file_bytes: int) -> None:
    """The files have the whole tensors of a split model by name, tied ones once, and safetensors opens them."""
    first = ranks("session", 3, layout="fsdp2")
    seen: list[tuple[int, int]] = []
    made = export_model(
        f"{ranks.keeper.url}/step-000000003-r1",
        str(tmp_path / "out"),
        file_bytes=file_bytes,
        progress=lambda *now: seen.append(now),
    )
    found = opened(tmp_path / "out")
    assert same(found, {name.removeprefix("model/"): each for name, each in whole(first, "end", "model/").items()})
    assert (made.step, made.tensors, made.tied) == (3, len(found), {"head.weight": "token.weight"})
    assert (len(made.files) > 1) == (file_bytes == 300)
    assert seen[-1] == (made.bytes, made.bytes) and len(seen) == made.tensors
    assert not list(tmp_path.glob(".out*"))
    file = next(path for path in (tmp_path / "out").glob("*.safetensors") if "token.weight" in load_file(path))
    with safe_open(file, "pt") as one:
        assert one.metadata() == {"format": "pt", "head.weight": "token.weight"}


def test_tensors_that_were_stored_with_another_object_are_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model and its encoder share weights, which are stored as the encoder's: once in the export, and tied."""
    tied = {"model/a.weight": "encoder/weight", "model/b.weight": "encoder/weight"}
    monkeypatch.setattr(export, "decoded", lambda text: {**decoded(text), "tied": tied})
    state = {"encoder": {"weight": torch.arange(4.0)}, "model": {"bias": torch.ones(2)}}
    dcp.save(state, storage_writer=FtcoreStorageWriter(str(tmp_path / "saved"), step=4))
    made = export_model(str(tmp_path / "saved" / "step-000000004-r0"), str(tmp_path / "out"))
    assert same(opened(tmp_path / "out"), {"a.weight": torch.arange(4.0), "bias": torch.ones(2)})
    assert made.tied == {"b.weight": "a.weight"}


def test_the_command_exports_the_newest_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With what is registered as ``config``; nothing is overwritten, and of a failure nothing is left."""
    model, _ = small()
    state = {"model": get_model_state_dict(model), "config": {"model_type": "tiny", "id2label": {0: "no"}}}
    for step in (4, 12):
        dcp.save(state, storage_writer=FtcoreStorageWriter(str(tmp_path / "saved"), step=step))
    saved, out = tmp_path / "saved", tmp_path / "models" / "out"
    code, text, err = ftctl(capsys, saved, out)
    assert (code, err) == (0, "") and f"{out}: 9 tensors of step 12, 176 B in 1 file" in text
    assert same(opened(out), dict(state["model"]))
    assert json.loads((out / "config.json").read_text()) == {"model_type": "tiny", "id2label": {"0": "no"}}
    code, text, err = ftctl(capsys, saved / "step-000000004-r0", out)
    assert (code, text) == (1, "") and f"{out} exists; expected the name of a new directory" in err
    code, text, _ = ftctl(capsys, saved / "step-000000004-r0", tmp_path / "four", "--format", "json")
    about = json.loads(text)
    assert (about["kind"], about["step"], about["files"], about["tied"]) == ("model", 4, ["model.safetensors"], {})
    file = saved / "step-000000004-r0" / "shard-00000-of-00001.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    code, _, err = ftctl(capsys, saved / "step-000000004-r0", tmp_path / "bad")
    assert code == 1 and "damaged" in err
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "models", "four"}


def test_the_command_imports_for_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file with a plain optimizer's state; the checkpoint is complete, and one of the same step is not replaced."""
    model, optimizer = small()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 7}, tmp_path / "x.pt")
    code, text, err = ftctl(capsys, tmp_path / "x.pt", tmp_path / "new", "--job", "demo", "--format", "json")
    about = json.loads(text)
    assert (code, err, about["path"]) == (0, "", f"{tmp_path}/new/step-000000007-r0")
    assert (about["kind"], about["step"], about["objects"], about["job"]) == (
        "checkpoint",
        7,
        ["model", "optimizer"],
        "demo",
    )
    assert verify(Storage(str(tmp_path / "new")), "step-000000007-r0") == []
    code, _, err = ftctl(capsys, tmp_path / "x.pt", tmp_path / "new")
    assert code == 1 and "step-000000007-r0 exists; name another step" in err
    code, _, err = ftctl(capsys, tmp_path / "new", tmp_path / "out", "--job", "other")
    assert code == 4 and "no complete checkpoint of job other in" in err
    (tmp_path / "new" / "step-000000007-r0" / "manifest.json").unlink()
    code, _, err = ftctl(capsys, tmp_path / "x.pt", tmp_path / "new")
    assert code == 1 and "step-000000007-r0 is unfinished: a conversion was cut off" in err
    code, text, _ = ftctl(capsys, tmp_path / "x.pt", tmp_path / "new", "--step", 8)
    assert code == 0 and "a job that registers model, optimizer goes on after step 8: ftrun --checkpoints" in text


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("x.pt",), "TARGET is missing"),
        (("x.pt", "new", "--model", "ema"), "--model has no effect here: x.pt has no checkpoint of ftcore"),
        (("step-000000001-r0", "new", "--step", "3"), "--step has no effect here"),
        (("step-000000001-r0", "s3://bucket/model"), "a model is exported to a local directory"),
        (("x.pt", "new", "--path", "p"), "--path: only list and verify take it"),
    ],
)
def test_arguments_that_do_not_fit(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    argv: tuple[str, ...],
    message: str,
) -> None:
    """One message, exit code 2."""
    monkeypatch.chdir(tmp_path)
    code, _, err = ftctl(capsys, *argv)
    assert code == 2 and message in err


def test_without_torch_the_command_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = ftctl(capsys, "x.pt", "new")
    assert code == 2 and err.count("\n") == 1 and "needs torch" in err and "pip install torch" in err


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
        job = "demo" if kind == "file" else ""
        assert import_checkpoint(str(out / kind), ranks.keeper.url, job=job).directory == "step-000000009-r0"
    assert verify(Storage(ranks.keeper.url), "step-000000009-r0") == []
    resumed = ranks("session", 2, layout="fsdp2", until=9)
    assert loaded(resumed, 0, "start")["loaded"][:2] == (9, "storage")
    assert same(whole(out, "end"), whole(resumed, "start"))
    assert loaded(resumed, 1, "start")["records"]["optimizer"]["tree"]["param_groups"][0]["weight_decay"] == 0.25
    assert loaded(resumed, 1, "start")["records"]["progress"]["tree"] == {"epoch": 4, "seen": [1, "ü"]}


def test_plain_state_dicts_are_written_and_read_by_dcp(tmp_path: Path) -> None:
    """``dcp.save`` with our writer and ``dcp.load`` with our reader, in one process."""
    model, optimizer = small()
    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer), "step": 4}
    dcp.save(state, storage_writer=FtcoreStorageWriter(str(tmp_path), step=4))
    blank = {"model": {name: torch.zeros_like(each) for name, each in state["model"].items()}}
    dcp.load(blank, storage_reader=FtcoreStorageReader(tmp_path / "step-000000004-r0"))
    assert same(blank["model"], dict(state["model"]))
    export_model(str(tmp_path / "step-000000004-r0"), str(tmp_path / "out"))
    assert same(opened(tmp_path / "out"), dict(state["model"]))
    with pytest.raises(dcp.CheckpointException, match="committed"):
        dcp.save({"model": {"x": torch.ones(2)}}, storage_writer=FtcoreStorageWriter(str(tmp_path), step=4))


def test_a_bare_state_dict_is_a_model(tmp_path: Path) -> None:
    """Tensors alone; the prefix of DDP is removed."""
    model, _ = small()
    torch.save(OrderedDict((f"module.{k}", v) for k, v in model.state_dict().items()), tmp_path / "x.pt")
    made = import_checkpoint(str(tmp_path / "x.pt"), str(tmp_path / "new"), step=3)
    export_model(str(tmp_path / "new" / made.directory), str(tmp_path / "out"))
    assert same(opened(tmp_path / "out"), dict(model.state_dict()))


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
    (tmp_path / "text").write_text("hello")
    refusals = {
        "x.pt": ".*an object of getattr, .*torch.load\\(.*weights_only=False\\)",
        "text": ".*not a file of torch.save",
        "metadata": ".*Path.touch",
        "dotted": ".*os.getpid",
        "value": "",
    }
    for name, why in refusals.items():
        with pytest.raises(CheckpointError, match=f"(?s)cannot be imported{why}"):
            import_checkpoint(str(tmp_path / name), str(tmp_path / "new"))
    assert not Path("/tmp/ftcore-test-evil").exists() and not (tmp_path / "new").exists()
    with pytest.raises(CheckpointError, match="does not exist"):
        import_checkpoint(str(tmp_path / "nothing"), str(tmp_path / "new"))

"""``ftctl checkpoints``: what is saved, where, and whether it can be loaded."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from stored_checkpoints import write_checkpoint, write_shards

from ftcore.checkpoint.storage import Storage
from ftcore.cli.ctl_output import size_text
from ftcore.cli.ftctl import main


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A storage with a complete checkpoint, one without a manifest, and one without a shard."""
    root = tmp_path / "my checkpoints"
    storage = Storage(str(root))
    write_checkpoint(storage, 10, 1)
    write_shards(storage, 20, 1, count=3)
    (root / write_checkpoint(storage, 30, 2) / "shard-00001-of-00002.safetensors").unlink()
    return root


def run(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = main(["checkpoints", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def test_checkpoints_are_listed_in_a_table(root: Path, capsys) -> None:
    """Step, round, job, state, number of shards, size, age, directory, and why it is not complete."""
    code, out, err = run(capsys, "--path", root)
    assert (code, err) == (0, f"ftctl: 3 checkpoints in {root}, 1 complete\n")
    header, *lines = out.splitlines()
    assert header.split() == ["STEP", "ROUND", "JOB", "STATE", "SHARDS", "SIZE", "AGE", "DIRECTORY", "REASON"]
    assert lines[0].split()[:5] == ["10", "1", "demo", "complete", "2"]
    assert " KiB " in lines[0]
    assert lines[0].split()[-2:] == ["step-000000010-r1", "-"]
    text = " ".join(out.split())
    assert "unfinished 3" in text and "no manifest: its save was interrupted, or goes on; it has 3 shards" in text
    assert "missing 2" in text and "step-000000030-r2" in text


def test_checkpoints_are_listed_as_json(root: Path, capsys) -> None:
    """With every shard, its rank and replica group, size and where it is."""
    code, out, _ = run(capsys, "list", "--path", root, "--format", "json")
    good, unfinished, broken = json.loads(out)
    assert code == 0
    age = good.pop("age_s")
    assert 0 <= age < 3600
    shards = good.pop("shards")
    assert good == {
        "path": str(root / "step-000000010-r1"),
        "job": "demo",
        "step": 10,
        "round": 1,
        "complete": True,
        "problem": None,
        "reason": None,
        "nodes": None,
        "bytes": sum(file.stat().st_size for file in (root / "step-000000010-r1").iterdir()),
    }
    path = root / "step-000000010-r1" / "shard-00001-of-00002.safetensors"
    assert shards[1] == {"file": str(path), "rank": 1, "group": 1, "bytes": path.stat().st_size}
    assert (unfinished["complete"], unfinished["problem"], len(unfinished["shards"])) == (False, "unfinished", 3)
    assert unfinished["shards"][0]["rank"] is None
    assert (broken["problem"], broken["shards"][1]["bytes"]) == ("missing", 0)


@pytest.mark.parametrize("argv", [("verify", "{}/step-000000010-r1"), ("--path", "{}/step-000000010-r1/", "verify")])
def test_a_good_checkpoint_is_verified(root: Path, capsys, argv: tuple[str, ...]) -> None:
    """Exit code 0; named as PATH, or by a path that is a checkpoint itself."""
    code, out, err = run(capsys, *(arg.format(root) for arg in argv))
    assert (code, out) == (0, f"{root}/step-000000010-r1: complete, and every checksum matches\n")
    assert err == "ftctl: 1 checkpoint verified, 0 cannot be loaded\n"


def test_a_relative_name_is_below_the_path(root: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --path, else below the working directory."""
    assert run(capsys, "--path", root, "verify", "step-000000010-r1")[0] == 0
    monkeypatch.chdir(root)
    assert run(capsys, "verify", "step-000000010-r1/")[0] == 0
    monkeypatch.chdir("/")
    assert run(capsys, "verify", str(root / "step-000000010-r1").lstrip("/"))[0] == 0


def test_every_problem_is_a_line(root: Path, capsys) -> None:
    """All checkpoints of a path: exit code 1 if one cannot be loaded; unfinished ones are mentioned."""
    file = root / "step-000000010-r1" / "shard-00000-of-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 4
    file.write_bytes(data)
    code, out, err = run(capsys, "verify", root)
    assert code == 1
    assert out.splitlines() == [
        f"{file}: its Python values are damaged",
        f"{root}/step-000000030-r2/shard-00001-of-00002.safetensors is missing: the shard of rank 1, replica group 1",
    ]
    assert f"ftctl: {root}/step-000000020-r1: not verified: no manifest" in err
    assert err.endswith("ftctl: 2 checkpoints verified, 2 cannot be loaded\n")
    code, out, _ = run(capsys, "verify", root, "--format", "json")
    assert code == 1
    first, second = json.loads(out)
    assert (first["complete"], first["step"]) == (False, 10)
    assert first["defects"] == [
        {"problem": "damaged", "file": str(file), "reason": f"{file}: its Python values are damaged"}
    ]
    assert second["defects"][0]["problem"] == "missing"


def test_an_unfinished_checkpoint_that_is_named_is_a_problem(root: Path, capsys) -> None:
    """It cannot be loaded."""
    code, out, _ = run(capsys, "verify", root / "step-000000020-r1")
    assert (code, out) == (1, f"{root}/step-000000020-r1 has no manifest.json\n")
    code, out, _ = run(capsys, "verify", root / "step-000000099-r1")
    assert (code, out) == (1, f"{root}/step-000000099-r1 does not exist\n")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (("--path", "odd://x"), 2, "cannot use odd://x: Protocol not known: odd"),
        (("list", "/x"), 2, "PATH /x: only verify takes a PATH; expected: ftctl checkpoints --path URL"),
        (("--path", "/no/such"), 4, "no checkpoints in /no/such: it does not exist"),
        (("verify", "/no/such"), 4, "no checkpoints in /no/such: it does not exist"),
        (("--path", "/proc/version"), 3, "cannot read /proc/version: Not a directory"),
    ],
)
def test_what_cannot_be_read_is_an_error_of_one_line(capsys, argv: tuple[str, ...], code: int, message: str) -> None:
    """With the exit codes of ftctl."""
    found, out, err = run(capsys, *argv)
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(f"ftctl: {message}")


def test_an_empty_directory_has_no_checkpoints(tmp_path: Path, capsys) -> None:
    """To list it is no error; there is nothing to verify."""
    assert run(capsys, "--path", tmp_path) == (0, "", f"ftctl: 0 checkpoints in {tmp_path}, 0 complete\n")
    assert run(capsys, "--path", tmp_path, "--format", "json") == (0, "[]\n", "")
    assert run(capsys, "verify", tmp_path) == (4, "", f"ftctl: no checkpoints in {tmp_path}\n")


def test_names_cannot_control_the_terminal(tmp_path: Path, capsys) -> None:
    """A job's name or a path with escape sequences is printed without them."""
    write_checkpoint(Storage(str(tmp_path / "a\x1b[31m")), job="x\x1b]0;y\x07")
    for action in ("list", "verify"):
        code, out, _ = run(capsys, "--path", tmp_path / "a\x1b[31m", action)
        assert code == 0 and "\x1b" not in out and "\x07" not in out


def test_a_long_verification_is_interrupted(root: Path) -> None:
    """Ctrl-C ends it at once, with its exit code and without a traceback."""
    pipe = root / "step-000000040-r1" / "manifest.json"
    write_checkpoint(Storage(str(root)), 40, 1)
    pipe.unlink()
    os.mkfifo(pipe)
    process = subprocess.Popen(
        [sys.executable, "-m", "ftcore.cli.ftctl", "checkpoints", "verify", str(pipe.parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with pipe.open("wb"):  # waits until it is being read
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (3 << 29, "1.5 GiB"),
        (5 << 40, "5.0 TiB"),
        (2**60, "1024.0 PiB"),
    ],
)
def test_sizes_are_readable(count: int, text: str) -> None:
    """In the unit that fits."""
    assert size_text(count) == text

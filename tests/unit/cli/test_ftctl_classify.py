"""``ftctl classify``: raw text and JSON lines, and input that is neither."""

import io
import json
import sys

import pytest

from ftcore.cli.ftctl import main

NVLINK = "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"


def feed(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_a_text_is_told_for_people(tmp_path, capsys):
    """Class, action, settings and the line it rests on."""
    file = tmp_path / "worker.log"
    file.write_text(f"step 1\n{NVLINK}\n")
    assert main(["classify", str(file)]) == 0
    out = capsys.readouterr().out
    assert "gpu-hw (nvlink)" in out
    assert "replace-node" in out
    assert NVLINK in out


def test_a_text_is_told_as_json(monkeypatch, capsys):
    """One object with the keys of the corpus; half a character is no error."""
    feed(monkeypatch, b"\xff\xc3\nTimed out after 901 seconds waiting for clients. 6/8 clients joined.\n")
    assert main(["classify", "-", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["class"], told["role"], told["action"]) == ("network-rendezvous", "root", "restart-processes")


def test_json_lines_keep_their_keys(monkeypatch, capsys):
    """One object out for one in; what else stands there is kept, and labels are not looked at."""
    items = [{"id": 1, "text": NVLINK, "class": "wrong"}, {"id": 2, "text": "KeyError: 'x'", "note": "é"}]
    feed(monkeypatch, "\n\n".join(json.dumps(item) for item in items).encode())
    assert main(["classify", "--jsonl", "-"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(t["id"], t["class"]) for t in told] == [(1, "gpu-hw"), (2, "user-code")]
    assert told[1]["note"] == "é"
    assert told[1]["text"] == "KeyError: 'x'"


def test_rules_of_a_policy_file(tmp_path, monkeypatch, capsys):
    """``--policy`` adds the job's own rules."""
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\nfaults:\n  rules:\n    - {name: licence, pattern: licence gone, class: config-env}\n")
    feed(monkeypatch, b"licence gone\n")
    assert main(["classify", "-", "--policy", str(file), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rule"] == "licence"


@pytest.mark.parametrize(
    ("argv", "data", "told"),
    [
        (["-"], b"", "-: is empty"),
        (["-"], bytes(range(256)) * 8, "control characters"),
        (["--jsonl", "-"], b"", "-: is empty"),
        (["--jsonl", "-"], b"\n\n", "-: is empty"),
        (["--jsonl", "-"], b'{"text": "a"}\n{"text"', "-: line 2: not JSON"),
        (["--jsonl", "-"], b"[1]", "line 1: expected an object with the key text"),
        (["--jsonl", "-"], b'{"text": 1}', "line 1: expected an object with the key text"),
        (["--jsonl", "-"], b'{"text": "\xff"}', "line 1: not JSON"),
        (["/nowhere/at/all"], b"", "cannot be read (No such file or directory)"),
        (["/"], b"", "cannot be read (Is a directory)"),
        (["-", "--policy", "/nowhere"], b"x", "cannot be read as a policy file"),
    ],
)
def test_bad_input_is_told(monkeypatch, capsys, argv, data, told):
    """One message with the place, exit 2."""
    feed(monkeypatch, data)
    assert main(["classify", *argv]) == 2
    assert told in capsys.readouterr().err


def test_a_long_text_is_streamed(monkeypatch, capsys):
    """A line of megabytes and many lines: read, and the end still counts."""
    feed(monkeypatch, b"x" * (3 << 20) + b"\n" + b"step\n" * 20_000 + NVLINK.encode())
    assert main(["classify", "-", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["class"] == "gpu-hw"

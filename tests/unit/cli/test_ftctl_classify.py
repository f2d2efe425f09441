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
        (["--jsonl", "-"], b"[1]", "line 1: expected an object whose key text is a string"),
        (["--jsonl", "-"], b'{"text": 1}', "line 1: expected an object whose key text is a string"),
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


def told(monkeypatch, capsys, text: str) -> dict:
    feed(monkeypatch, text.encode())
    assert main(["classify", "-", "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


GOOD = "\n".join(
    [
        "W1122 22:10:01.120000 123 torch/distributed/run.py:851] Setting OMP_NUM_THREADS environment variable to 1",
        "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
        *(f"step {step} loss {2.0 - step / 100:.3f} grad_norm 0.8" for step in range(40)),
        "ftcore: the job has finished: every worker ended with code 0",
    ]
)


def test_a_log_without_a_fault_is_an_answer_of_its_own(monkeypatch, capsys, tmp_path):
    """Neither an unknown fault nor a restart: class, role and action are none."""
    found = told(monkeypatch, capsys, GOOD)
    assert (found["class"], found["role"], found["action"]) == ("none", "none", "none")
    (tmp_path / "x.log").write_text(GOOD)
    assert main(["classify", str(tmp_path / "x.log")]) == 0
    out = capsys.readouterr().out
    assert "none: no fault was found" in out and "restart" not in out


def test_an_unknown_failure_asks_for_evidence(monkeypatch, capsys):
    """Not for a restart: what the text does not have is named, and only that."""
    found = told(monkeypatch, capsys, "step 1\nthe frobnicator failed badly\n")
    assert (found["class"], found["action"], found["certain"]) == ("unknown", "none", False)
    assert any("traceback" in what for what in found["missing"])
    assert "dmesg" in found["advice"]
    ended = told(monkeypatch, capsys, "ChildFailedError:\n  exitcode  : 3 (pid: 12)\n")
    assert ended["class"] == "unknown" and not any("exit code" in what for what in ended["missing"])


def test_a_broken_link_condemns_neither_end(monkeypatch, capsys, tmp_path):
    """Status 12 says that no answer came: the reporter, the peer and the link between them are as likely."""
    line = (
        "node-2:1:2 [2] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<32049> with "
        "status=12 opcode=0 len=0 vendor err 129"
    )
    found = told(monkeypatch, capsys, line)
    assert (found["detail"], found["root_rank"]) == ("ib-link", "node-2 or 10.0.0.1")
    assert not found["certain"] and "peer" in found["reason"]
    (tmp_path / "x.log").write_text(line)
    assert main(["classify", str(tmp_path / "x.log")]) == 0
    assert "check the pair to find out which" in capsys.readouterr().out


def test_a_wait_does_not_call_its_root_a_victim(monkeypatch, capsys):
    """One rank's watchdog says who waited; that it began with that rank is not said beside it."""
    found = told(
        monkeypatch,
        capsys,
        "[rank3]: [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for "
        "600044 ms",
    )
    assert (found["role"], found["certain"], found["root_rank"]) == ("root", False, "")
    assert "victim" not in found["reason"]


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("ModuleNotFoundError: No module named 'nemo'", ""),
        ("NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory", "memlock"),
        ("OSError: [Errno 28] No space left on device", "checkpoints"),
        (NVLINK, "dcgmi"),
    ],
)
def test_settings_are_those_of_the_detail(monkeypatch, capsys, line, settings):
    """An import that fails is told nothing of NCCL's interfaces."""
    found = told(monkeypatch, capsys, line)["settings"]
    assert settings in found if settings else found == ""

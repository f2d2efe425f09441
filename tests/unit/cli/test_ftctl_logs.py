"""``ftctl failures`` and ``ftctl logs``."""

import io
import json
import os
import socket
from pathlib import Path

import msgspec
import pytest
from ftctl_logs import archive, driven, run_json

from ftcore.cli.ctl_log_text import BLOCK_BYTES, LONG_CHARS, TAIL_BYTES, copied
from ftcore.cli.ftctl import main
from ftcore.events.envelope import Event
from ftcore.events.node import NodeJoined
from ftcore.events.worker import WorkerFailed, WorkersStarted
from ftcore.faults.failure import MESSAGE_CHARS_MAX
from ftcore.testing.driver import JobDriver


def placed(events: list[Event], root: Path, host: str | None = None, started: bool = True) -> list[Event]:
    """The events of a driver, with directories of output on a host."""
    made = []
    for event in events:
        data = event.data
        if isinstance(data, NodeJoined):
            data = msgspec.structs.replace(data, host=host or socket.gethostname())
        elif isinstance(data, WorkersStarted) and started:
            data = msgspec.structs.replace(data, log_dir=str(root / f"round_{data.round}"))
        elif isinstance(data, WorkerFailed):
            data = msgspec.structs.replace(data, log_dir=str(root / f"round_{data.round}" / f"rank_{data.rank}"))
        made.append(msgspec.structs.replace(event, data=data))
    return made


def written(root: Path, rank: int, text: str, round_: int = 1, name: str = "stderr.log") -> Path:
    path = root / f"round_{round_}" / f"rank_{rank}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_failures_are_one_line_and_one_object(store, capsys):
    """The process, its node, how it ended, how many followed; JSON says the same."""
    assert main(["--store", store, "failures"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith("i1 2023-11-14T")
    assert line.endswith(
        "Z rank 1 (local 1) on node0 failed first: killed by SIGKILL; 1 more failure followed, on node1"
    )
    made = run_json(capsys, "--store", store, "failures")
    assert (made["incident"], made["first"]["rank"], made["first"]["node"], made["first"]["exitcode"]) == (
        "i1",
        1,
        "node0",
        -9,
    )
    assert made["followed"] == {"node1": 1} and line.endswith(made["what"])


def test_more_failures_than_the_diagnosis_keeps_are_counted(tmp_path, capsys):
    """The fold keeps 64 reports; the line, the JSON and the list of outputs have all 80 failures."""
    driver = JobDriver(nodes=80)
    driver.start()
    for number in range(80):
        driver.fail(f"node{number}", message="ValueError: x")
    driver.settle()
    store = archive(tmp_path / "demo.ftlog", placed(driver.events, tmp_path))
    assert main(["--store", store, "failures"]) == 0
    line = capsys.readouterr().out
    assert "79 more failures followed" in line and "the diagnosis used the first 64" in line
    made = run_json(capsys, "--store", store, "failures")
    assert sum(made["followed"].values()) == 79 and made["followed"]["node79"] == 1
    for rank in range(80):
        written(tmp_path, rank, "ValueError: x\n")
    files = run_json(capsys, "--store", store, "logs", "i1", "--all")["files"]
    assert [each["order"] for each in files] == [*range(80)]


def test_what_is_made_to_be_pasted_has_no_secrets(tmp_path, capsys):
    """Neither the line nor the JSON of failures and logbook."""
    driver = driven()
    driver.fail("node0", message="RuntimeError: login failed: password=hunter2secret")
    driver.settle()
    cut = "x" * (MESSAGE_CHARS_MAX - 45)
    driver.fail("node0", message=f"RuntimeError: {cut} login failed: password=hunter2secret{'y' * 900}")
    driver.settle()
    store = archive(tmp_path / "demo.ftlog", driver.events)
    for argv in (["failures"], ["failures", "--format", "json"], ["logbook"], ["logbook", "--format", "json"]):
        assert main(["--store", store, *argv]) == 0
        out = capsys.readouterr().out
        assert "login failed" in out and "hunter" not in out


@pytest.mark.parametrize("option", [["--all"], ["--since", "1"]])
def test_one_incident_is_not_several(store, capsys, option):
    assert main(["--store", store, "failures", "i1", *option]) == 2
    problem = capsys.readouterr().err
    assert "i1 names one incident" in problem and option[0] in problem


def test_failures_of_all_incidents(tmp_path, capsys):
    """``--all`` and ``--since`` give a line for each fault, requests aside; an unknown incident is exit code 4."""
    driver = driven()
    driver.command("pause")
    driver.fail("node0", message="ValueError: bad \x1b[31mbatch", tail="")
    driver.settle()
    store = archive(tmp_path / "demo.ftlog", driver.events)
    assert main(["--store", store, "failures", "--all"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("i1 ") and "exit code 1: ValueError: bad  [31mbatch" in second
    assert [each["incident"] for each in run_json(capsys, "--store", store, "failures", "--since", "40")] == ["i3"]
    assert main(["--store", store, "failures", "i9"]) == 4
    assert "no incident 'i9'; there are i1 to i3" in capsys.readouterr().err


def test_a_job_without_failures(tmp_path, capsys):
    """Nothing on standard output, a message, and null in JSON; the exit code is 0."""
    driver = JobDriver(nodes=1)
    driver.start()
    store = archive(tmp_path / "demo.ftlog", driver.events)
    assert main(["--store", store, "failures"]) == 0
    assert capsys.readouterr() == ("", "ftctl: no failure\n")
    assert run_json(capsys, "--store", store, "failures") is None
    assert main(["--store", store, "logs"]) == 4


def test_logs_begin_with_the_rank_that_failed_first(tmp_path, capsys):
    """The ends of the files of all ranks, secrets replaced, control characters as escapes."""
    for rank in range(4):
        lines = [f"rank {rank} line {number}" for number in range(30)]
        written(tmp_path, rank, "\n".join([*lines, f"token=abcdef12345{rank} \x1b[31mred\x1b]0;title\x07"]) + "\n")
    written(tmp_path, 1, "", name="stdout.log")
    store = archive(tmp_path / "demo.ftlog", placed(driven().events, tmp_path))
    assert main(["--store", store, "logs", "i1", "--lines", "3"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out and "abcdef" not in out
    heads = [line for line in out.splitlines() if line.startswith("==>")]
    assert [head.split(" on ")[0] for head in heads] == [
        "==> rank 1 (local 1)",
        "==> rank 2 (local 0)",
        "==> rank 0 (local 0)",
        "==> rank 3 (local 1)",
    ]
    assert "failed first, round 1" in heads[0] and "failed later" in heads[1] and "failed" not in heads[2].split(":")[0]
    assert "rank 1 line 29\ntoken=[redacted] \\x1b[31mred\\x1b]0;title\\x07" in out and "line 27" not in out


def test_logs_of_another_host_are_named(tmp_path, capsys):
    """A file that is not here is named with host and path; without any file the exit code is 4."""
    store = archive(tmp_path / "demo.ftlog", placed(driven().events, tmp_path / "gone", host="gpu17"))
    assert main(["--store", store, "logs"]) == 4
    out, err = capsys.readouterr()
    assert out.count("==>") == 0
    assert f"rank 1 on node0: on another host: gpu17:{tmp_path}/gone/round_1/rank_1" in err
    assert "no log file of i1 can be read on this host" in err
    here = archive(tmp_path / "here.ftlog", placed(driven().events, tmp_path / "gone"))
    assert main(["--store", here, "logs"]) == 4
    assert "rank 1 on node0: no file on this host: " in capsys.readouterr().err


def test_a_log_of_an_earlier_release(tmp_path, capsys):
    """Without the directory of the round, only files beside that of a failed worker are known; the others are named."""
    for rank in range(4):
        written(tmp_path, rank, f"rank {rank}\n")
    events = placed(driven().events, tmp_path, started=False)
    without = [
        msgspec.structs.replace(event, data=msgspec.structs.replace(event.data, log_dir=""))
        if isinstance(event.data, WorkerFailed) and event.data.node == "node1"
        else event
        for event in events
    ]
    assert main(["--store", archive(tmp_path / "demo.ftlog", without), "logs"]) == 0
    out, err = capsys.readouterr()
    assert out.count("==>") == 2 and "rank 0\n" in out and "rank 1\n" in out
    assert "rank 2 on node1: the log does not say where its output is" in err


def test_copies(tmp_path, capsys):
    """Whole files with their order in the name, redacted, and an index; a directory with files in it is refused."""
    for rank in range(4):
        written(tmp_path, rank, "password: hunter2\n" + "x" * 10_000 + "\n" + f"rank {rank}\x1b[0m\n")
    store, target = archive(tmp_path / "demo.ftlog", placed(driven().events, tmp_path)), tmp_path / "copies"
    made = run_json_with_message(capsys, "--store", store, "logs", "-o", str(target))
    names = sorted(path.name for path in target.iterdir())
    assert names[0] == "0000-round1-rank1-node0-stderr.log" and names[-1] == "index.json" and len(names) == 5
    text = (target / names[0]).read_text()
    assert text == "password: [redacted]\n" + "x" * 10_000 + "\nrank 1\\x1b[0m\n"
    assert json.loads((target / "index.json").read_text()) == made
    assert [file["copy"] for file in made["files"]] == names[:4] and made["rounds"] == [1]
    assert main(["--store", store, "logs", "-o", str(target)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_file_name_that_is_no_text(tmp_path, capsys):
    """Its bytes are escapes in JSON and in the heading; the copy has a name of its own, and only its owner reads it."""
    directory = written(tmp_path, 1, "rank 1\n").parent
    (directory / os.fsdecode(b"bad\xff \n.log")).write_text("odd\n")
    store, target = archive(tmp_path / "demo.ftlog", placed(driven().events, tmp_path)), tmp_path / "copies"
    assert main(["--store", store, "logs"]) == 0
    assert f"{directory}/bad\\xff  | .log (4 B" in capsys.readouterr().out
    assert main(["--store", store, "logs", "-o", str(target), "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["files"][1]["path"] == f"{directory}/bad\\xff \n.log"
    assert made["files"][1]["copy"] == "0001-round1-rank1-node0-bad___.log"
    assert (target / made["files"][1]["copy"]).read_text() == "odd\n"
    assert json.loads((target / "index.json").read_text()) == made
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o600}


@pytest.mark.parametrize("lines", ["0", "-1", "1000001", "9" * 25, "9" * 5000])
def test_a_number_of_lines_that_no_file_has(store, capsys, lines):
    """Exit code 2, and what is accepted."""
    with pytest.raises(SystemExit) as ended:
        main(["--store", store, "logs", "--lines", lines])
    assert ended.value.code == 2
    if lines != "-1":
        assert "expected a whole number from 1 to 1000000" in " ".join(capsys.readouterr().err.split())


def run_json_with_message(capsys: pytest.CaptureFixture[str], *argv: str):
    assert main([*argv, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert "wrote 4 files and index.json" in err
    return json.loads(out)


def test_symbolic_links_and_huge_lines(tmp_path, capsys):
    """A link is not followed; of a line longer than what is read, the end is printed."""
    written(tmp_path, 1, "first" + "x" * 3_000_000 + " token=abcdef12345 last")
    (tmp_path / "round_1" / "rank_1" / "stdout.log").symlink_to("/etc/passwd")
    store = archive(tmp_path / "demo.ftlog", placed(driven().events, tmp_path))
    assert main(["--store", store, "logs"]) == 0
    out = capsys.readouterr().out
    assert "root:x" not in out and len(out) < 5000 and out.endswith("xx token=[redacted] last\n") and "\n…xx" in out


def test_a_progress_bar(tmp_path, capsys):
    """Of thousands of updates on one line the last one is printed, with the lines before it; copies have all."""
    bar = "".join(f"\r{number:4d}/6000" for number in range(6000))
    path = written(tmp_path, 1, f"start\r\nready\n{bar}")
    store = archive(tmp_path / "demo.ftlog", placed(driven().events, tmp_path))
    assert main(["--store", store, "logs", "--lines", "2"]) == 0
    assert capsys.readouterr().out.endswith(")\nready\n5999/6000\n")
    path.write_bytes(f"{bar * 20} password=hunter2 at the end\r\nKilled\r".encode())
    assert path.stat().st_size > TAIL_BYTES
    assert main(["--store", store, "logs"]) == 0
    assert capsys.readouterr().out.endswith(")\n5999/6000 password=[redacted] at the end\nKilled\n")
    assert main(["--store", store, "logs", "-o", str(tmp_path / "copies")]) == 0
    copy = (tmp_path / "copies" / "0000-round1-rank1-node0-stderr.log").read_text()
    assert copy.startswith("\n   0/6000\n   1/6000\n") and copy.count("\n") == 20 * 6000 + 2
    assert copy.endswith("5999/6000 password=[redacted] at the end\nKilled\n")


@pytest.mark.parametrize("line", ["x" * 97, "ä" * 50 + " a"], ids=["without spaces", "not ASCII"])
def test_a_file_of_one_line_is_copied_in_parts(line):
    """What is held of it is bounded; secrets at any place are replaced, and nothing else changes."""
    secret = " token=abcdef12345 "
    text = (line * 1000 + secret) * 20 + line * 30_000
    file = io.BytesIO(text.encode())
    parts = [*copied(file)]
    assert max(map(len, parts)) <= LONG_CHARS + BLOCK_BYTES and len(parts) > 3
    assert "".join(parts) == text.replace("abcdef12345", "[redacted]") + "\n"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n"])
def test_line_ends_beside_the_parts_of_a_file(end):
    """Every way to end a line is one line end, wherever the file is divided."""
    lines = [f"{'y' * (number % 90)} password=hunter{number}" for number in range(9000)]
    found = "".join(copied(io.BytesIO(end.join(lines).encode())))
    assert found == "".join(f"{'y' * (number % 90)} password=[redacted]\n" for number in range(9000))

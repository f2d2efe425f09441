"""Clocks that disagree, files that are cut off, huge lines, markup and terminal codes: never a crash, never a guess."""

import gzip
import json
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from imported import DATA, imported, rank_at_root

from ftcore.cli.ftctl import main
from ftcore.errors import UsageError
from ftcore.importing.files import LINE_MAX

_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)([ _])(\d\d:\d\d:\d\d)")


def shift(folder: Path, seconds: int) -> None:
    """Change the clock of a host: all times in its files."""

    def later(found: re.Match[str]) -> str:
        moment = datetime.fromisoformat(f"{found[1]} {found[3]}") + timedelta(seconds=seconds)
        return f"{moment:%Y-%m-%d}{found[2]}{moment:%H:%M:%S}"

    def glog(found: re.Match[str]) -> str:
        moment = datetime.strptime(f"2026{found[2]} {found[3]}", "%Y%m%d %H:%M:%S") + timedelta(seconds=seconds)
        return f"{found[1]}{moment:%m%d %H:%M:%S}"

    for path in folder.rglob("*"):
        if path.suffix == ".log":
            text = _STAMP.sub(later, path.read_text())
            path.write_text(re.sub(r"(?m)^([WE])(\d{4}) (\d\d:\d\d:\d\d)", glog, text))
        elif path.name == "error.json":
            error = json.loads(path.read_text())
            extra = error["message"]["extraInfo"]
            extra["timestamp"] = str(int(extra["timestamp"]) + seconds)
            path.write_text(json.dumps(error))


@pytest.mark.parametrize("seconds", [90, -90, 3600])
def test_clocks_that_disagree(tmp_path: Path, seconds: int) -> None:
    """The steps that both hosts report show how far their clocks are apart; the culprit's time is corrected."""
    shutil.copytree(DATA / "two", tmp_path / "job")
    right = imported(tmp_path / "job").failure.time
    shift(tmp_path / "job" / "node-b", seconds)
    result = imported(tmp_path / "job")
    assert result.found.shifts["node-b"] == pytest.approx(-seconds, abs=0.5)
    assert abs(result.failure.time - right) < 1e9
    assert (result.incidents[0].cls, rank_at_root(result)) == ("signal-preemption", 3)
    cited = result.cited(result.failure).data
    assert cited.clock == "node-b"
    assert cited.shift_s == pytest.approx(-seconds, abs=0.5)
    assert any("clock of node-b" in note for note in result.found.collected.notes)


def test_clocks_without_evidence_stay(tmp_path: Path) -> None:
    """Two hosts without a common step: nothing is corrected, and a note says so."""
    shutil.copytree(DATA / "two", tmp_path / "job")
    for path in (tmp_path / "job" / "node-b").rglob("stdout.log"):
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[-2:]))
    result = imported(tmp_path / "job")
    assert not result.found.shifts
    assert any("not compared" in note for note in result.found.collected.notes)


def test_a_local_zone_is_found(tmp_path: Path) -> None:
    """torchrun's summary is in local time, the error file in absolute time: two hours ahead of UTC."""
    shutil.copytree(DATA / "exception", tmp_path / "job")
    right = imported(tmp_path / "job").failure.time
    errors = {path: path.read_text() for path in (tmp_path / "job").rglob("error.json")}
    shift(tmp_path / "job", 7200)
    for path, text in errors.items():
        path.write_text(text)
    result = imported(tmp_path / "job")
    assert abs(result.failure.time - right) < 1e9
    assert any("UTC +2 h" in note for note in result.found.collected.notes)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.95])
def test_files_that_are_cut_off(tmp_path: Path, share: float) -> None:
    """Every file ends in the middle: what is left is read."""
    shutil.copytree(DATA / "exception", tmp_path / "job")
    for path in (tmp_path / "job").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(data[: int(len(data) * share)])
    result = imported(tmp_path / "job")
    assert result.events
    assert all(one.cls in ("user-code", "collateral", "network-rendezvous") for one in result.incidents)


def test_a_line_of_ten_megabytes(tmp_path: Path) -> None:
    """Its ends are kept; the error at its end is found, and memory is bounded by the cut."""
    head = "2026-11-24 01:00:00 step 5\n2026-11-24 01:00:01 step 6\n2026-11-24 01:00:02 "
    text = head + "x" * (10 << 20) + " RuntimeError: CUDA error: an illegal memory access was encountered\n"
    (tmp_path / "job.log").write_text(text)
    result = imported(tmp_path)
    (file,) = result.found.collected.files
    assert (file.lines, file.long) == (3, 1)
    assert result.incidents[0].cls == "cuda-sticky"
    assert max(len(str(event.data)) for event in result.events) < LINE_MAX


def test_markup_and_terminal_codes_are_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HTML stays text; no escape sequence of a log reaches the terminal."""
    shutil.copytree(DATA / "exception", tmp_path / "job")
    evil = "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script>"
    for path in (tmp_path / "job").rglob("*"):
        if path.is_file():
            path.write_text(path.read_text().replace("sample 7", json.dumps(evil)[1:-1] + " sample 7"))
    (tmp_path / "job" / f"x{evil.partition('/')[0]}.log").write_text("2026-11-25 22:33:24 hello\n")
    log = tmp_path / "job.ftlog"
    assert main(["import", str(tmp_path / "job"), "-o", str(log)]) == 0
    for command in ("incidents", "explain", "events"):
        assert main(["--store", f"file:{log}", command]) == 0
    printed = capsys.readouterr().out
    assert "<script>" in printed
    assert "\x1b" not in printed


def test_compressed_files(tmp_path: Path) -> None:
    """``.gz`` is read; one that is cut off is named."""
    text = (DATA / "kill" / "torchrun.log").read_bytes()
    (tmp_path / "torchrun.log.gz").write_bytes(gzip.compress(text))
    assert imported(tmp_path).failure.data.exitcode == -9
    (tmp_path / "b.log.gz").write_bytes(gzip.compress(text * 50)[:300])
    notes = imported(tmp_path).found.collected.notes
    assert any("b.log.gz" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.log", b"", "is empty"),
        ("a.log", b"\x00\x01\x02" * 500, "is not text"),
        ("a.log", b"hello\n", "no line shows"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    """What, where, and what was expected."""
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=words):
        imported(tmp_path)


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one line each."""
    (tmp_path / "a.log").write_text("2026-11-24 01:00:00 step 5\n")
    out = ["-o", str(tmp_path / "o.ftlog")]
    for argv in (
        [str(tmp_path / "none"), *out],
        [str(tmp_path), *out, "--steps", "step ("],
        [str(tmp_path), *out, "--steps", "step"],
        [str(tmp_path), "-o", str(tmp_path / "no" / "o.ftlog")],
        [str(tmp_path), "-o", "-"],
        [str(tmp_path), "-o", str(tmp_path / "a.log")],
    ):
        assert main(["import", *argv]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "a.log").read_text().startswith("2026")


def test_a_text_without_any_time(tmp_path: Path) -> None:
    """The time of the file's last change is taken for all, and said to be that."""
    (tmp_path / "job.log").write_text("step 5\nstep 6\nRuntimeError: CUDA error: device-side assert triggered\n")
    result = imported(tmp_path)
    assert result.incidents[0].cls == "cuda-sticky"
    assert any("no line has a time" in note for note in result.found.collected.notes)
    assert {event.data.basis for event in result.of("source.cited")} == {"bound"}
    changed = (tmp_path / "job.log").stat().st_mtime
    assert abs(result.events[0].time / 1e9 - changed) < 1
    assert datetime.fromtimestamp(changed, UTC)

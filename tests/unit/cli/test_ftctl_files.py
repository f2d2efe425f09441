"""Files that ``ftctl`` writes, and Ctrl-C while it does: nothing is lost that was there, nothing is left behind."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ftcore.cli.ftctl import main
from ftcore.ids import JobName
from ftcore.logs.archive import ArchiveWriter, read_events
from ftcore.testing.driver import JobDriver

SMALL = ["simulate", "--nodes", "2", "--days", "1", "--rate", "0"]
LONG = ["simulate", "--nodes", "64", "--days", "3660", "--rate", "2"]


@pytest.fixture
def export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that exports a small log, less where to."""
    monkeypatch.delenv("FTCORE_JOB", raising=False)
    driver = JobDriver()
    driver.start()
    with ArchiveWriter(tmp_path / "demo.ftlog", JobName("demo")) as writer:
        for event in driver.events:
            writer.add(event)
    return ["--store", f"file:{tmp_path / 'demo.ftlog'}", "export", "-o"]


def test_a_device_is_written_and_stays(export, tmp_path, capsys):
    """A full device is an error that names it; one that takes everything is none; both are devices afterwards."""
    assert main([*export, "/dev/full"]) == 3
    assert "ftctl: no space to write /dev/full" in capsys.readouterr().err
    assert main([*export, "/dev/null"]) == 0
    assert all(Path(path).is_char_device() for path in ("/dev/full", "/dev/null"))


def test_a_pipe_is_written_and_stays(export, tmp_path):
    """The reader of a named pipe gets a whole archive."""
    pipe, got = tmp_path / "pipe", tmp_path / "got.ftlog"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.write_bytes(pipe.read_bytes()))
    reader.start()
    assert main([*export, str(pipe)]) == 0
    reader.join()
    assert pipe.is_fifo()
    assert len(list(read_events(got))) == len(list(read_events(tmp_path / "demo.ftlog")))


def test_a_link_stays_a_link(export, tmp_path, capsys):
    """What it leads to is written: something new, or an archive, which keeps its mode and is said to be replaced."""
    link, target = tmp_path / "link.ftlog", tmp_path / "dir" / "target.ftlog"
    target.parent.mkdir()
    link.symlink_to(target)
    assert main([*export, str(link)]) == 0
    assert "in place of" not in capsys.readouterr().err
    target.chmod(0o640)
    assert main([*export, str(link)]) == 0
    assert "the archive of that name was overwritten" in capsys.readouterr().err
    assert link.is_symlink() and stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [*target.parent.iterdir()] == [target]


def test_standard_output_is_a_place(export, tmp_path, capsysbinary):
    """``-`` gives the archive to a pipe, and makes no file of that name."""
    assert main([*export, "-"]) == 0
    out, err = capsysbinary.readouterr()
    assert out == (tmp_path / "demo.ftlog").read_bytes()
    assert err.endswith(b"to standard output\n")


def test_another_file_is_not_replaced(export, tmp_path, capsys):
    """A file of another kind is left as it is; a directory, too; an empty file is taken."""
    other = tmp_path / "policy.yaml"
    other.write_text("version: 1\n")
    for argv in ([*export, str(other)], [*SMALL, "--log", str(other)]):
        assert main(argv) == 2
        assert f"{other} exists and is not an archive" in capsys.readouterr().err
    assert other.read_text() == "version: 1\n"
    assert main([*export, str(tmp_path)]) == 2
    assert "it is a directory" in capsys.readouterr().err
    other.write_text("")
    assert main([*export, str(other)]) == 0


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--log", "x", "--plot", "./x"], "--log and --plot: found x for both"),
        (["--log", "-"], "--log: found -; expected a file"),
        (["--plot", "-"], "--plot: found -"),
        (["--plot", "x.png"], "--plot: found x.png; expected a file name that ends in .svg"),
    ],
)
def test_outputs_of_a_simulation_that_cannot_be(args, told, tmp_path, capsys, monkeypatch):
    """Two outputs are two files, a picture is SVG, and nothing comes between the lines of the report."""
    monkeypatch.chdir(tmp_path)
    assert main([*SMALL, *args]) == 2
    assert told in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


def test_ctrl_c_ends_a_simulation_at_once(tmp_path):
    """The first one, in the middle of a computation: exit 130, nothing said, no draft left, what was there is."""
    pipe, picture = tmp_path / "pipe", tmp_path / "plot.svg"
    os.mkfifo(pipe)
    picture.write_text("<svg old")
    process = subprocess.Popen(
        [sys.executable, "-m", "ftcore.cli.ftctl", *LONG, "--log", str(pipe), "--plot", str(picture)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with pipe.open("rb") as log:
        assert log.read(8192)  # by now it computes
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130
    assert sorted(tmp_path.iterdir()) == [pipe, picture] and picture.read_text() == "<svg old"


def test_ctrl_c_ends_a_verification_at_once(tmp_path):
    """What reads a log ends as quickly, though it never waits for anything."""
    argv = ["simulate", "--nodes", "64", "--days", "3", "--rate", "1", "--log", str(tmp_path / "sim.ftlog")]
    assert main(argv) == 0
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from ftcore.cli.ftctl import main; from ftcore.replay.verification import Verifier\n"
            "feed = Verifier.feed\n"
            "Verifier.feed = lambda self, event: (feed(self, event), event.seq == 50 and print('.', flush=True))\n"
            "sys.exit(main())",
            *("--store", f"file:{tmp_path / 'sim.ftlog'}", "replay", "--verify"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdout.readline() == b".\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130

"""``ftctl top``: its screen at every size, once and as JSON, on a terminal, and what it does when something is away."""

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ftctl_logs import driven, run_json
from rich.cells import cell_len

from ftcore.cli.ftctl import main
from ftcore.cli.top_screen import HELP, TopPage, cut, plain, screen
from ftcore.ids import SECOND
from ftcore.logs import open_log
from ftcore.ports import Candidate, EventLog
from ftcore.replay.live import LiveReader, LiveView
from ftcore.replay.live.view import moment_text
from ftcore.testing.driver import JobDriver

PATIENCE_S = 60.0
EVIL = "\x1b[2J\x1b]0;title\x07<b>\u202egnp\u0000"


def view_of(driver: JobDriver) -> LiveView:
    reader = LiveReader("demo")
    for event in driver.events:
        reader.feed(event)
    return reader.view(driver.events[-1].time + SECOND)


def open_incident(message: str = "") -> JobDriver:
    driver = JobDriver(nodes=4, slots=2, tick_s=0.02)
    driver.start()
    driver.make_steps(9)
    driver.fail("node1", message=message) if message else driver.fail("node1", exitcode=-9)
    return driver


@pytest.mark.parametrize("name", ["main", "nodes", "events", "keys"])
def test_every_size_is_filled_and_not_exceeded(name: str) -> None:
    """No line is wider than the terminal, and there are never more lines than it has."""
    view = view_of(open_incident("RuntimeError: 日本語 " * 30))
    for width in (20, 79, 80, 200):
        for height in (1, 2, 5, 12, 24, 50):
            lines = plain(screen(view, TopPage(name=name), width, height, lambda text: text))
            assert len(lines) == height and all(cell_len(line) <= width for line in lines), (width, height)


def test_an_80_by_24_terminal_has_what_counts() -> None:
    """State, step, the incident with its running clock, who is asked next, nodes by state, the newest event."""
    text = "\n".join(plain(screen(view_of(open_incident()), TopPage(), 80, 24, lambda text: text)))
    for what in ("demo  RECOVERING", "step ", "incident    i1, open for 1.0 s: external signal", "[stop 1.0 s]",
                 "now: process_restart: restart 1 of", "asked next, if need be: shrink, stop", "waits for: node0",
                 "stopping        4", "spares: none", "i1: process_restart: restart 1 of", "q quit"):  # fmt: skip
        assert what in text, what


def test_what_a_worker_wrote_does_not_steer_the_terminal() -> None:
    """Escape sequences, control characters and changes of the direction of writing do not reach the screen."""
    view = view_of(open_incident(f"RuntimeError: {EVIL}"))
    for name in ("main", "nodes", "events"):
        text = "".join(plain(screen(view, TopPage(name=name), 120, 40, lambda text: text)))
        assert text.isprintable()
    assert "<b>" in "".join(plain(screen(view, TopPage(), 120, 40, lambda text: text)))


def test_cut() -> None:
    """Cells are counted, not characters."""
    assert (cut("abc", 3), cut("abcd", 3), cut("日本語", 5), cut("日本語", 4)) == ("abc", "ab…", "日本…", "日…")
    assert cut("abc", 0) == ""


def test_keys_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` and the list of keys name the same ones."""
    with pytest.raises(SystemExit):
        main(["top", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    for keys, _ in HELP:
        assert all(key in told for key in re.split(r"[, ]+", keys)), keys


def test_once(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal, one screen without colour; ``--format json`` has the same, for a program."""
    assert main(["--store", store, "top"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and out.startswith("demo  RUNNING")
    found = run_json(capsys, "--store", store, "top", "--once")
    assert (found["job"], found["state"], found["open_incident"]) == ("demo", "running", None)
    assert [group["state"] for group in found["groups"]] == ["running"]
    assert found["newest_events"][-1]["text"] in out
    assert main(["--store", store, "--job", "other", "top", "--once"]) == 4
    assert "no job 'other'" in capsys.readouterr().err


def test_the_link_has_a_token_of_its_own(
    store: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of the page has a token that follows from the job's, and is not the job's."""
    monkeypatch.setenv("FTCORE_TOKEN", "the-token-of-the-job")
    assert main(["--store", store, "top", "--link", "https://head:9401"]) == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"https://head:9401/#token=[0-9a-f]{40}\n", out) and "the-token" not in out
    assert main(["--store", store, "top", "--link", "head:9401"]) == 2
    assert "expected the address of the page" in capsys.readouterr().err


# -- on a terminal


class Terminal:
    """``ftctl top`` on a pseudo terminal, which keeps the lines of the screen."""

    def __init__(self, store: str, home: Path, columns: int = 80, lines: int = 24, **env: str) -> None:
        self.columns, self.lines = columns, lines
        master, slave = pty.openpty()
        self._fd = master
        self.resize(columns, lines)
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        command = [sys.executable, "-m", "ftcore.cli.ftctl", "--store", store, "--job", "demo", "top"]
        environ = {**os.environ, "XDG_STATE_HOME": str(home), "TERM": "xterm", "COLUMNS": "70", "LINES": "20", **env}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environ, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.raw = b""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def wait(self, text: str) -> None:
        """Wait until a text is written."""
        deadline = time.monotonic() + PATIENCE_S
        while text.encode() not in self.raw:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} is not in {self.raw[-3000:]!r}"
            ready, _, _ = select.select([self._fd], [], [], min(1.0, left))
            if ready:
                with contextlib.suppress(OSError):
                    self.raw += os.read(self._fd, 1 << 16)

    def seen(self, text: str) -> None:
        """Wait for a text from now on."""
        self.raw = b""
        self.wait(text)

    def end(self) -> int:
        self.wait("\x1b[?1049l")
        return self.process.wait(PATIENCE_S)

    def restored(self) -> bool:
        return termios.tcgetattr(self._slave) == self.before

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
        os.close(self._slave)


@contextlib.contextmanager
def on_terminal(store: str, home: Path, **options: Any) -> Iterator[Terminal]:
    terminal = Terminal(store, home, **options)
    try:
        yield terminal
    finally:
        terminal.close()


async def appended(log: EventLog, groups: list[Any], at: int) -> None:
    leadership = await log.campaign(Candidate(host="h", pid=1, address="unix:nowhere"))
    for group in groups:
        last = await log.last_seq()
        await log.append(group, term=leadership.term, expected_seq=last)
    await leadership.resign()


def write(store: str, groups: list[Any]) -> None:
    async def main() -> None:
        log = await open_log(store, "demo", create=True)
        await appended(log, groups, 0)
        await log.close()

    asyncio.run(main())


def test_a_terminal_from_start_to_end(tmp_path: Path) -> None:
    """Waits for the job, follows it, shows pages, survives a resize and a store that goes and comes, ends on `q`."""
    driver, directory = open_incident(), tmp_path / "log"
    store = f"sqlite://{directory}"
    with on_terminal(store, tmp_path) as terminal:
        terminal.wait("WAITING")
        terminal.wait("no job 'demo'")
        write(store, driver.groups)
        terminal.wait("RECOVERING")
        terminal.wait("[stop ")
        terminal.press("n")
        terminal.seen("OWN WORK")
        terminal.press("?")
        terminal.seen("quit; so does Ctrl-C")
        terminal.resize(100, 30)
        terminal.press("m")
        terminal.seen("\x1b[30;1H")
        before = len(driver.groups)
        driver.settle()
        write(store, driver.groups[before:])
        terminal.wait("i1: resolved by process_restart")
        directory.rename(tmp_path / "away")
        terminal.seen("log store: unreachable since")
        (tmp_path / "away").rename(directory)
        before = len(driver.groups)
        driver.finish()
        driver.settle()
        write(store, driver.groups[before:])
        terminal.seen("the job has ended: succeeded")
        assert not terminal.restored()
        terminal.press("q")
        assert terminal.end() == 0
        assert terminal.restored()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, 130)])
def test_a_signal_leaves_the_terminal_as_it_was(store: str, tmp_path: Path, number: int, code: int) -> None:
    """The main screen, the cursor and the keyboard are back; the exit code is that of the signal."""
    with on_terminal(store, tmp_path) as terminal:
        terminal.wait("RUNNING")
        terminal.process.send_signal(number)
        assert terminal.end() == code
        assert terminal.restored()
        assert terminal.raw.endswith(b"\x1b[?1049l")


def test_no_colour_and_dumb_terminals(store: str, tmp_path: Path) -> None:
    """NO_COLOR: no colour. TERM=dumb: lines, no cursor movement. The meaning is in the text."""
    with on_terminal(store, tmp_path, NO_COLOR="1") as terminal:
        terminal.wait("q quit")
        terminal.press("q")
        assert terminal.end() == 0
        assert not re.search(rb"\x1b\[[0-9;]*m", terminal.raw)
    with on_terminal(store, tmp_path, TERM="dumb") as terminal:
        terminal.wait("events")
        assert b"\x1b" not in terminal.raw


def test_a_moment_is_that_of_the_log(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Events of another day carry it."""
    assert main(["--store", store, "top"]) == 0
    now = time.time_ns()
    assert moment_text(driven().events[-1].time, now) in capsys.readouterr().out

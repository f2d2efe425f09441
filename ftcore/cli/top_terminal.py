"""A terminal that shows a screen of lines and reads single keys: for ``ftctl top``.

The screen is the alternate one, so the lines before the command are there again after it. Only lines that changed are
written: little goes over a slow connection. Ctrl-Z, a resize and a signal leave the terminal as it was.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable
from typing import Any, Final

from ftcore.cli.ctl_output import paint
from ftcore.cli.top_screen import Line

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[H\x1b[2J"
"""Alternate screen, cursor hidden, no automatic line break."""

_LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"

_NAMED: Final = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b[5~": "page up",
    b"\x1b[6~": "page down",
    b"\x1b[H": "home",
    b"\x1bOH": "home",
    b"\x1b[1~": "home",
    b"\x1b[F": "end",
    b"\x1bOF": "end",
    b"\x1b[4~": "end",
    b"\x1b": "escape",
}


class KeyTerminal:
    """The terminal of this process, as a context manager.

    Args:
        colour: lines are coloured.
        on_key: called with each key: a character, or a name as ``page up``.
        on_resize: called when the size has changed, or the process continues after Ctrl-Z.
    """

    def __init__(self, *, colour: bool, on_key: Callable[[str], None], on_resize: Callable[[], None]) -> None:
        self._colour, self._on_key, self._on_resize = colour, on_key, on_resize
        self._before: list[Any] | None = None
        self._shown: list[str] = []
        self._keys = sys.stdin is not None and sys.stdin.isatty()

    def __enter__(self) -> "KeyTerminal":
        loop = asyncio.get_running_loop()
        self._open()
        if self._keys:
            loop.add_reader(sys.stdin.fileno(), self._read)
        loop.add_signal_handler(signal.SIGWINCH, self._resized)
        loop.add_signal_handler(signal.SIGTSTP, self._stopped)
        return self

    def __exit__(self, *exc: object) -> None:
        loop = asyncio.get_running_loop()
        if self._keys:
            loop.remove_reader(sys.stdin.fileno())
        for number in (signal.SIGWINCH, signal.SIGTSTP):
            loop.remove_signal_handler(number)
        self._close()

    @staticmethod
    def size() -> tuple[int, int]:
        """Columns and lines of the terminal itself: COLUMNS and LINES keep their values when it is resized."""
        with contextlib.suppress(OSError):
            found = os.get_terminal_size(sys.stdout.fileno())
            if found.columns and found.lines:
                return found.columns, found.lines
        return shutil.get_terminal_size()

    def draw(self, lines: list[Line]) -> None:
        """Show these lines, from the first line of the screen."""
        texts = ["".join(paint(text, style, self._colour) for text, style in line) for line in lines]
        changed = [  # erased first: after a full line, the cursor still stands on its last character
            f"\x1b[{at + 1};1H\x1b[K{text}"
            for at, text in enumerate(texts)
            if at >= len(self._shown) or self._shown[at] != text
        ]
        if len(texts) < len(self._shown):
            changed.append(f"\x1b[{len(texts) + 1};1H\x1b[J")
        self._shown = texts
        if changed:
            self._write("".join(changed))

    def _open(self) -> None:
        if self._keys:
            self._before = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())  # Ctrl-C and Ctrl-Z keep their meaning
        self._write(_ENTER)
        self._shown = []

    def _close(self) -> None:
        self._write(_LEAVE)
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 64)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._on_key("q")
            return
        if data in _NAMED:
            self._on_key(_NAMED[data])
        elif data[:1] != b"\x1b":
            for char in data.decode(errors="ignore"):
                self._on_key(char)

    def _resized(self) -> None:
        self._shown = []
        self._write("\x1b[2J")
        self._on_resize()

    def _stopped(self) -> None:
        self._close()
        os.kill(os.getpid(), signal.SIGSTOP)  # goes on here after `fg`
        self._open()
        self._on_resize()

    @staticmethod
    def _write(text: str) -> None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()

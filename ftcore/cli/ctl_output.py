"""Output of ``ftctl``: tables, JSON, messages, times in UTC, colour if the terminal supports it."""

import datetime
import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ftcore.ids import SECOND

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

STYLES = {"bad": "31", "good": "32", "warn": "33", "quiet": "2", "strong": "1", "": ""}
"""Terminal codes by meaning; ``console`` has rich styles of the same names."""

_RICH = {"bad": "red", "good": "green", "warn": "yellow", "quiet": "dim", "strong": "bold"}

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")

PIPE_COLUMNS = 200
"""Width of tables if stdout is not a terminal."""


def print_json(value: Any) -> None:
    """Print a JSON value on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def indented(value: Any) -> str:
    """A JSON value on several lines for people: characters that could control a terminal are escapes."""
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return text if text.isascii() else "".join(_json_char(char) for char in text)


def _json_char(char: str) -> str:
    return char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1]


def say(text: str) -> None:
    """Print a message on stderr."""
    print(f"ftctl: {text}", file=sys.stderr)


def written(path: Path | None, instead: str) -> str:
    """The destination of an output, for a message.

    Args:
        path: None for standard output.
        instead: the kind of file that was overwritten; empty if there was none.
    """
    where = "standard output" if path is None else str(path)
    return f"{where}; {instead} of that name was overwritten" if instead else where


def size_text(count: int) -> str:
    """A size, as ``812 B`` or ``3.5 GiB``."""
    if count < 1024:
        return f"{count} B"
    power = 1
    while power < len(_UNITS) and count >= 1023.95 * 1024**power:
        power += 1
    return f"{count / 1024**power:.1f} {_UNITS[power - 1]}"


def wants_colour() -> bool:
    """Whether stdout is a terminal that supports colour, and NO_COLOR is not set (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int | None:
    """The terminal's width; None if stdout is not a terminal, so lines are not cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def paint(text: str, style: str, colour: bool) -> str:
    """The text in a style of ``STYLES``."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if colour and style else text


def console() -> "Console":
    """A rich console for tables on stdout."""
    from rich.console import Console
    from rich.theme import Theme

    class Uncut(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **{"crop": False, **options})

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with code 1; ``ftctl.main`` ends it with 0

    return Uncut(
        theme=Theme(_RICH),
        width=columns() or PIPE_COLUMNS,
        no_color=not wants_colour(),
        force_terminal=sys.stdout.isatty(),
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def table(
    *headers: str, right: tuple[str, ...] = (), flexible: tuple[str, ...] = (), spare: tuple[str, ...] = ()
) -> "Table":
    """An empty table that fits the terminal's width; see ``ctl_table``.

    Args:
        headers: column titles.
        right: columns aligned to the right.
        flexible: columns that may be folded onto several lines.
        spare: columns that are omitted, in this order, if there is no room.
    """
    from ftcore.cli.ctl_table import Fitted

    return Fitted(*headers, right=right, flexible=flexible, spare=spare)


def date(time_ns: int) -> str:
    """The day in UTC."""
    return f"{datetime.datetime.fromtimestamp(time_ns // SECOND, datetime.UTC):%Y-%m-%d}"


def clock(time_ns: int) -> str:
    """The time of day in UTC, with milliseconds."""
    moment = datetime.datetime.fromtimestamp(time_ns // SECOND, datetime.UTC)
    return f"{moment:%H:%M:%S}.{time_ns % SECOND // 1_000_000:03d}"

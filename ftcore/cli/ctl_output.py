"""Printing: tables for people, JSON for programs, times in UTC, colour only where it is wanted."""

import datetime
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
"""Meanings and their terminal codes; the same words name rich styles in ``console``."""

_RICH = {"bad": "red", "good": "green", "warn": "yellow", "quiet": "dim", "strong": "bold"}

PIPE_COLUMNS = 200
"""Width of tables that do not go to a terminal."""


def print_json(value: Any) -> None:
    """One JSON value on a line of its own."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def say(text: str) -> None:
    """A message, for people, on stderr."""
    print(f"ftctl: {text}", file=sys.stderr)


def written(path: Path | None, instead: str) -> str:
    """Where something was written, for a message.

    Args:
        path: None for standard output.
        instead: what it replaced; empty if nothing was there.
    """
    where = "standard output" if path is None else str(path)
    return f"{where}, in place of {instead} that was there" if instead else where


def wants_colour() -> bool:
    """Whether stdout is a terminal whose user did not object (https://no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def columns() -> int | None:
    """The terminal's width; None if stdout is no terminal and nothing need be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def paint(text: str, style: str, colour: bool) -> str:
    """The text in a style of ``STYLES``."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if colour and style else text


def console() -> "Console":
    """Where tables are printed."""
    from rich.console import Console
    from rich.theme import Theme

    class Uncut(Console):
        def print(self, *objects: Any, **options: Any) -> None:
            super().print(*objects, **{"crop": False, **options})

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would end the process with 1; ``ftctl.main`` ends all commands alike

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
    """An empty table, which fits itself to where it is printed; see ``ctl_table``.

    Args:
        headers: column titles.
        right: columns of numbers.
        flexible: columns that may be folded onto several lines; all others stay whole.
        spare: columns that are left out where there is no room, the first one first.
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

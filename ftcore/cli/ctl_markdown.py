"""Untrusted text in Markdown: shown as it is, never interpreted.

Rules of CommonMark (https://spec.commonmark.org/0.31.2/#backslash-escapes): a backslash before ASCII punctuation makes
it a literal character. ``<``, ``>`` and ``&`` become entities, so that no reader can take a text for HTML. Control
characters are removed (``wording.printable``), so that ``cat`` of the file cannot control a terminal.
"""

import re

from ftcore.wording import printable

_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_MARKS = re.compile(r"[\\`*_\[\]{}|~$!]|(?<=[A-Za-z]):(?=//)|(?<=\bwww)\.")
_BLOCK = re.compile(r"^(\s*)([#+=-]|\d+(?=[.)]))")

CHARS_MAX = 20_000
"""Most characters of one text."""


def plain(text: str) -> str:
    """A text on one line that Markdown and HTML show as it is."""
    cut = printable(text[:CHARS_MAX])
    cut = _MARKS.sub(lambda found: f"\\{found[0]}", cut)
    return re.sub(r"[&<>]", lambda found: _ENTITIES[found[0]], cut)


def quoted(text: str) -> list[str]:
    """A text of several lines as the lines of a block quote; empty lines stay."""
    return [f"> {_line(line)}".rstrip() for line in text[:CHARS_MAX].splitlines()] or [">"]


def _line(line: str) -> str:
    """A line that begins no list, heading or rule."""
    block = _BLOCK.match(line)
    if block is None:
        return f"{plain(line.strip())}  " if line.strip() else ""
    mark = block[2]
    rest = plain(line[block.end() :])
    return f"{mark}\\{rest}  " if mark.isdigit() else f"\\{mark}{rest}  "

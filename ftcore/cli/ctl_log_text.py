"""Text of log files for people: without secrets, in bounded memory, and with control characters as escapes.

House rules: a line ends with ``\\n``, ``\\r`` or both: a progress bar writes one ``\\r`` for each update. Secrets are
replaced before anything is cut, since a part of a secret is not found.
"""

import codecs
import os
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO

from ftcore.redaction import OVERLAP_CHARS, Redactor

TAIL_BYTES = 1 << 20
"""End of a file from which the last lines are taken."""

BLOCK_BYTES = 1 << 17
"""Bytes that are read at once."""

LONG_CHARS = 1 << 19
"""Characters of a line that are kept until its end is read; a longer line is divided."""

LINE_CHARS_MAX = 4000
"""Most characters of a printed line: its end; copies have the whole line."""


def copied(file: BinaryIO) -> Iterator[str]:
    """The text of a file in parts, each update of a progress bar on a line of its own; a last line end is added."""
    last = "\n"
    for block in _blocks(file):
        part = visible(block.replace("\r\n", "\n").replace("\r", "\n"))
        last = part[-1:] or last
        yield part
    if last != "\n":
        yield "\n"


def last_lines(file: BinaryIO, size: int, most: int) -> list[str]:
    """The last lines of a file, of a progress bar the last update, of a long line the end.

    Args:
        file: the file, at its beginning.
        size: its bytes.
        most: of the lines.
    """
    file.seek(max(0, size - TAIL_BYTES))
    raw = file.read(TAIL_BYTES)
    if size > TAIL_BYTES:
        ends = [place for place in (raw.find(b"\n"), raw.find(b"\r")) if place >= 0]
        raw = raw[min([*(end + 1 for end in ends), OVERLAP_CHARS]) :]  # the beginning of a secret may be missing there
    text = Redactor().text(raw.decode("utf-8", "backslashreplace")).replace("\r\n", "\n")
    lines = text.removesuffix("\n").split("\n") if text else []
    return [visible(_end(_last_update(line))) for line in deque(lines, maxlen=most)]


def _last_update(line: str) -> str:
    """What a terminal shows of a line with updates."""
    return next((update for update in reversed(line.split("\r")) if update), "")


def _end(line: str) -> str:
    return line if len(line) <= LINE_CHARS_MAX else f"…{line[1 - LINE_CHARS_MAX :]}"


def _blocks(file: BinaryIO) -> Iterator[str]:
    """The text of a file without its secrets, in parts that end with a line, or within a long one."""
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    redactor = Redactor()
    held = ""
    while data := file.read(BLOCK_BYTES):
        held += decoder.decode(data)
        end = 1 + max(held.rfind("\n"), held.rfind("\r", 0, len(held) - 1))  # a last \r may be that of \r\n
        if end:
            yield redactor.text(held[:end])
            held = held[end:]
        elif len(held) >= LONG_CHARS:
            first, held = redactor.beginning(held)
            yield first
    held += decoder.decode(b"", final=True)
    if held:
        yield redactor.text(held)


def visible(text: str) -> str:
    """The text with control characters, tabs and line feeds aside, written as escapes."""
    if text.isprintable():
        return text
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n"))


def _escaped(line: str) -> str:
    return "".join(char if char.isprintable() or char == "\t" else _escape(ord(char)) for char in line)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def path_text(path: str) -> str:
    """A path as text: bytes of it that are not UTF-8 are escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")

"""The edge: finds files and reads their lines. The only module of the import that reads files.

House rules: a line is kept up to ``LINE_MAX`` bytes: of a longer one the start and the end. A file that is not text, or
cannot be read, is named and left out. Links to folders are not followed, so a loop ends.
"""

import gzip
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import attrs

from ftcore.errors import UsageError

LINE_MAX = 64 << 10
"""Bytes that are kept of a line."""
PIECE = 1 << 20
FILES_MAX = 20_000
"""Most files of a folder; more are refused."""
BINARY_SHARE = 0.1
DOCUMENT_MAX = 256 << 20
"""Largest JSON document that is read."""
_CONTROL = bytes(set(range(32)) - {7, 8, 9, 10, 12, 13, 27})


@attrs.frozen(kw_only=True)
class FoundFile:
    """A file to read.

    Args:
        path: its path.
        name: its name in messages and events: relative to the given folder.
        changed: when it was last changed, in nanoseconds since the epoch.
    """

    path: Path
    name: str
    changed: int

    @property
    def year(self) -> int:
        """The year in which it was last changed."""
        return time.gmtime(self.changed // 1_000_000_000).tm_year


def find_files(arguments: list[str]) -> list[FoundFile]:
    """The files that the arguments name, sorted by name.

    Raises:
        UsageError: an argument is no file or folder that can be read, a folder has too many files, or there is none.
    """
    found: list[FoundFile] = []
    for argument in arguments:
        path = Path(argument)
        try:
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{argument}: cannot be read ({why}); expected a file, or a folder with log files"
            ) from None
        if stat.S_ISDIR(mode):
            found += _inside(path)
        elif stat.S_ISREG(mode):
            found.append(_file(path, path.name))
        else:
            raise UsageError(f"{argument}: is not a regular file; expected a file, or a folder with log files")
        if len(found) > FILES_MAX:
            raise UsageError(f"{argument}: has more than {FILES_MAX} files; name a smaller folder, or single files")
    if not found:
        raise UsageError(f"{', '.join(arguments)}: no file in it; expected a folder with log files")
    return found


def _inside(folder: Path) -> list[FoundFile]:
    found = []
    for base, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = Path(base, name)
            if path.is_file():
                found.append(_file(path, str(path.relative_to(folder))))
        if len(found) > FILES_MAX:
            break
    return found


def _file(path: Path, name: str) -> FoundFile:
    try:
        changed = path.stat().st_mtime
    except OSError:
        changed = 0.0
    name = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return FoundFile(path=path, name=name, changed=round(max(0.0, min(changed, 4e9)) * 1e9))


def read_lines(file: FoundFile) -> Iterator[tuple[int, str, bool]]:
    """Yield number, text and whether it was cut, of every line.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not text.
    """
    with _opened(file.path) as stream:
        number, head, long = 0, b"", False
        first = True
        while piece := stream.readline(PIECE):
            if first:
                _must_be_text(piece)
                first = False
            ended = piece.endswith(b"\n")
            if len(head) + len(piece) > LINE_MAX:
                whole = head + piece
                head, long = whole[: LINE_MAX // 2] + whole[-LINE_MAX // 2 :], True
            else:
                head += piece
            if ended:
                for part in _parts(head):
                    number += 1
                    yield number, part, long
                head, long = b"", False
        if head:
            yield number + 1, _text(head), long


def _parts(line: bytes) -> Iterator[str]:
    """A progress bar returns to the start of its line: what it shows last is one line, and so is what precedes it."""
    text = _text(line)
    yield text.rpartition("\r")[2] or text.replace("\r", " ")


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r\n")


def _opened(path: Path) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    return path.open("rb")


def _must_be_text(piece: bytes) -> None:
    odd = len(piece) - len(piece.translate(None, _CONTROL))
    if odd > BINARY_SHARE * len(piece) and odd > 4:
        raise ValueError(f"is not text: {odd} of its first {len(piece)} bytes are control characters")


def read_document(file: FoundFile) -> bytes:
    """The whole file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is too long.
    """
    with _opened(file.path) as stream:
        data = stream.read(DOCUMENT_MAX + 1)
    if len(data) > DOCUMENT_MAX:
        raise ValueError(f"longer than {DOCUMENT_MAX >> 20} MiB")
    return data


def head_of(file: FoundFile, size: int = 4096) -> bytes:
    """The first bytes of a file.

    Raises:
        OSError: the file cannot be read.
        EOFError: it is compressed and cut off.
    """
    with _opened(file.path) as stream:
        return stream.read(size)

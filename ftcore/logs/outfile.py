"""Files that a user has asked for: there whole or not at all, and never in the place of something else.

| what the path leads to | what is done |
|---|---|
| nothing | a draft beside it is written, synced and renamed |
| a file of the same kind, or an empty one | the same: it is replaced once the new one is whole, and keeps its mode |
| a symbolic link | the link stays; all of this is said of its target |
| a pipe, a character device | what is written goes straight through |
| a file of another kind, a directory, a block device, a socket | refused |

House rules: everything that can be refused is refused when the file is opened, before the work whose result it takes.
A draft is gone when its writer is, unless the process is killed outright.
"""

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import attrs

from ftcore.errors import FtcoreError, LogFull, UsageError

STDOUT = "-"
"""What stands for standard output on a command line."""


@attrs.frozen
class FileKind:
    """A kind of file that is written.

    Args:
        name: for messages, as ``an archive``.
        begins: how such a file begins; another one that is not empty is not replaced.
        mode: of a new file, less the umask.
    """

    name: str
    begins: bytes
    mode: int = 0o666


class OutFile:
    """A file under way: a context manager that leaves a whole file, or, after an error, what was there before.

    Args:
        path: where; None for standard output.
        kind: what will be in it.

    Attributes:
        replaced: there was such a file.

    Raises:
        UsageError: it cannot be written, or something else is there.
        LogFull: no space.
    """

    def __init__(self, path: Path | None, kind: FileKind) -> None:
        self.replaced = False
        self._path, self._kind = path, kind
        self._draft: Path | None = None
        self._target = Path()
        with self._saying_where():
            self._file = self._standard_output() if path is None else self._opened(path)

    def write(self, data: bytes) -> None:
        """Write what comes next."""
        with self._saying_where():
            self._file.write(data)

    def __enter__(self) -> "OutFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self.finish()
        finally:
            self.close()

    def finish(self) -> None:
        """All is written: the file takes its place."""
        with self._saying_where():
            self._file.flush()
            if self._draft is None:
                if self._path is not None:
                    self._file.close()
                return
            os.fsync(self._file.fileno())
            self._file.close()
            self._draft.rename(self._target)
            directory = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def close(self) -> None:
        """Nothing more is written; what was not finished leaves nothing behind."""
        if self._path is not None and not self._file.closed:
            # What is still buffered must not wait for a pipe's reader who will never come.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._file.fileno(), inheritable=False)
            os.close(nowhere)
            self._file.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)

    def _standard_output(self) -> BinaryIO:
        if sys.stdout.isatty():
            raise UsageError(
                f"standard output is a terminal: pipe {self._kind.name} to where it belongs, or name a file"
            )
        sys.stdout.flush()
        return sys.stdout.buffer

    def _opened(self, path: Path) -> BinaryIO:
        try:
            found = path.stat()
        except FileNotFoundError:
            return self._drafted(path, None)
        if stat.S_ISREG(found.st_mode):
            with path.open("rb") as old:
                head = old.read(len(self._kind.begins))
            if head not in (b"", self._kind.begins):
                raise UsageError(f"{path} is there and is not {self._kind.name}: remove it, or name another file")
            self.replaced = head != b""
            return self._drafted(path, found)
        if not (stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)):
            raise UsageError(f"cannot write {path}: it is {_what(found.st_mode)}; name a file")
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")
        if file.isatty():
            file.close()
            raise UsageError(f"{path} is a terminal: name a file")
        return file

    def _drafted(self, path: Path, found: os.stat_result | None) -> BinaryIO:
        self._target = Path(os.path.realpath(path))
        if found is not None and not os.path.samestat(found, self._target.stat()):
            raise UsageError(f"cannot write {path}: it has no name any more; name a file")
        self._draft = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}")
        number = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, self._kind.mode)
        if found is not None:
            os.fchmod(number, stat.S_IMODE(found.st_mode))
        return os.fdopen(number, "wb")

    @contextlib.contextmanager
    def _saying_where(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            if self._path is None:
                raise  # the reader has seen enough
            raise _cannot_write(self._path, error) from error
        except OSError as error:
            raise _cannot_write(self._path or "standard output", error) from error
        except ValueError as error:  # a NUL in the name
            raise UsageError(f"cannot write {str(self._path)!r}: {error}") from error


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, there or not."""
    return os.path.realpath(one) == os.path.realpath(other) or (one.exists() and other.exists() and one.samefile(other))


def _what(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a block device" if stat.S_ISBLK(mode) else "a socket"


def _cannot_write(where: Path | str, error: OSError) -> FtcoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return LogFull(f"no space to write {where}: {error.strerror}")
    return UsageError(f"cannot write {where}: {error.strerror}")

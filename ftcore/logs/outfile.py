"""Output files that a user named: written atomically, and never over a file of another kind.

| the path is | action |
|---|---|
| missing | a draft beside it is written, synced and renamed |
| a file of the same kind, or an empty file | the same; the new file keeps its mode |
| a symbolic link | the link stays, its target is treated by this table |
| a pipe, a character device | written directly |
| a file of another kind, a directory, a block device, a socket | refused |

Refusals come when the file is opened, before the user waits for its contents. A draft is removed on failure, unless
the process is killed.
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

import msgspec

from ftcore.errors import FtcoreError, LogFull, UsageError

STDOUT = "-"
"""Standard output on a command line."""


class FileKind(msgspec.Struct, frozen=True):
    """A kind of output file.

    Args:
        name: for messages, as ``an archive``.
        begins: magic bytes; a nonempty file without them is not overwritten.
        mode: of a new file, before the umask.
    """

    name: str
    begins: bytes
    mode: int = 0o666


class OutFile:
    """A file written atomically: a context manager that changes nothing if it ends with an error.

    Args:
        path: the file; None: standard output.
        kind: the kind of file.

    Attributes:
        replaced: whether an existing file is overwritten.

    Raises:
        UsageError: the file cannot be written, or exists and is of another kind.
        LogFull: no space.
    """

    def __init__(self, path: Path | None, kind: FileKind) -> None:
        self.replaced = False
        self._path, self._kind = path, kind
        self._draft: Path | None = None
        self._target = Path()
        with self._errors_with_path():
            self._file = self._standard_output() if path is None else self._opened(path)

    def write(self, data: bytes) -> None:
        """Write the next bytes."""
        with self._errors_with_path():
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
        """Sync the file and rename it into place."""
        with self._errors_with_path():
            self._file.flush()
            if self._draft is None:
                if self._path is not None:
                    self._file.close()
                return
            os.fsync(self._file.fileno())
            self._file.close()
            self._draft.rename(self._target)
            sync_directory(self._target.parent)

    def close(self) -> None:
        """Close the file; an unfinished draft is removed."""
        if self._path is not None and not self._file.closed:
            # Discard the buffer: writing it to a pipe without a reader would block.
            nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            os.dup2(nowhere, self._file.fileno(), inheritable=False)
            os.close(nowhere)
            self._file.close()
        if self._draft is not None:
            self._draft.unlink(missing_ok=True)

    def _standard_output(self) -> BinaryIO:
        if sys.stdout.isatty():
            raise UsageError(
                f"standard output is a terminal: pipe {self._kind.name} to a program or file, or name a file"
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
                raise UsageError(f"{path} exists and is not {self._kind.name}: remove it, or name another file")
            self.replaced = head != b""
            return self._drafted(path, found)
        if not (stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)):
            raise UsageError(f"cannot write {path}: it is {_file_type(found.st_mode)}; name a file")
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), "wb")
        if file.isatty():
            file.close()
            raise UsageError(f"{path} is a terminal: name a file")
        return file

    def _drafted(self, path: Path, found: os.stat_result | None) -> BinaryIO:
        self._target = Path(os.path.realpath(path))
        if found is not None and not os.path.samestat(found, self._target.stat()):
            raise UsageError(f"cannot write {path}: the open file was deleted; name another file")
        self._draft = self._target.with_name(f".{self._target.name}.{secrets.token_hex(4)}")
        number = os.open(self._draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, self._kind.mode)
        if found is not None:
            os.fchmod(number, stat.S_IMODE(found.st_mode))
        return os.fdopen(number, "wb")

    @contextlib.contextmanager
    def _errors_with_path(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError as error:
            if self._path is None:
                raise  # the reader of the pipe has ended; not an error
            raise _cannot_write(self._path, error) from error
        except OSError as error:
            raise _cannot_write(self._path or "standard output", error) from error
        except ValueError as error:  # a NUL in the name
            raise UsageError(f"cannot write {str(self._path)!r}: {error}") from error


def same_file(one: Path, other: Path) -> bool:
    """Whether two paths name the same file, which may not exist."""
    return os.path.realpath(one) == os.path.realpath(other) or (one.exists() and other.exists() and one.samefile(other))


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable: a file that was created or renamed survives a power failure."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _file_type(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory"
    return "a block device" if stat.S_ISBLK(mode) else "a socket"


def _cannot_write(where: Path | str, error: OSError) -> FtcoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return LogFull(f"no space to write {where}: {error.strerror}")
    return UsageError(f"cannot write {where}: {error.strerror}")

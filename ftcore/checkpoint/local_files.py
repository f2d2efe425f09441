"""Storage on a mounted file system: local, NFS, Lustre.

House rules: a file gets its name by a rename, after its bytes are durable; when ``write`` returns, so is the name.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Final

from ftcore.checkpoint.backend import HIDDEN, Chunk, StoredEntry

_BUFFER_BYTES: Final = 1 << 20


class LocalFiles:
    """Files below a directory of a mounted file system.

    Args:
        root: the directory; made when something is written.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, chunks: Iterable[Chunk], expected: int) -> int:
        """Write a file atomically and durably."""
        path = self._root / name
        _make_durable_directory(path.parent)
        temporary = path.with_name(f"{HIDDEN}{path.name}.{secrets.token_hex(6)}")
        try:
            with temporary.open("xb", buffering=_BUFFER_BYTES) as file:
                count = sum(map(file.write, chunks))
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        sync_directory(path.parent)
        return count

    def read(self, name: str, at: int, size: int) -> bytes:
        """Read up to ``size`` bytes; all if it is negative."""
        with self._open(name) as file:
            if at:
                file.seek(at)
            return file.read(size)

    def read_into(self, name: str, at: int, buffer: memoryview) -> int:
        """Fill a buffer; return the number of bytes."""
        with self._open(name) as file:
            file.seek(at)
            return file.readinto(buffer)

    def size(self, name: str) -> int:
        """Return the size of a file."""
        with self._open(name) as file:
            return os.fstat(file.fileno()).st_size

    def _open(self, name: str) -> BufferedReader:
        """Open a file for reading. NFS remembers for a minute that a file did not exist; listing corrects that."""
        path = self._root / name
        try:
            return path.open("rb")
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                list(path.parent.iterdir())
            return path.open("rb")

    def exists(self, name: str) -> bool:
        """Whether there is such a file or directory."""
        try:
            (self._root / name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def entries(self, directory: str) -> list[StoredEntry]:
        """Return the entries of a directory."""
        found = []
        with os.scandir(self._root / directory) as entries:
            for entry in entries:
                try:
                    about = entry.stat()
                except FileNotFoundError:  # removed meanwhile
                    continue
                except OSError:  # the others are listed all the same
                    found.append(StoredEntry(entry.name, 0, 0.0, is_directory=False))
                    continue
                is_directory = stat.S_ISDIR(about.st_mode)
                size = 0 if is_directory else about.st_size
                found.append(StoredEntry(entry.name, size, about.st_mtime, is_directory))
        return found

    def remove(self, name: str) -> None:
        """Remove a file."""
        path = self._root / name
        path.unlink()
        sync_directory(path.parent)

    def remove_directory(self, directory: str) -> None:
        """Remove a directory with its files."""
        path = self._root / directory
        shutil.rmtree(path)
        sync_directory(path.parent)


def _make_durable_directory(path: Path) -> None:
    """Make a directory and its parents, durably."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        sync_directory(each.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable, where its file system can do that."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # FUSE
            raise
    finally:
        os.close(fd)

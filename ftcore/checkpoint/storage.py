"""Storage of checkpoints: a directory, on a local or shared file system or in an object store.

A file gets its name when all of its bytes are durable, or never:

| storage | how a file is written |
|---|---|
| a path (local, NFS, Lustre) | hidden temporary file, fsync, rename, fsync of the directory |
| an object store (``OBJECT_STORES``) | one upload, which the store makes visible when it is complete |
| another file system of fsspec | temporary name, then move |

House rules: this is the only module that imports fsspec, and only for a URL: the agent never loads it. Errors of the
storage become ``CheckpointError``, with the path and what to do. Nothing is cached: other nodes write here too.
"""

import contextlib
import datetime
import errno
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

from ftcore.checkpoint.backend import HIDDEN, Backend, Chunk, StoredEntry
from ftcore.checkpoint.bandwidth import BandwidthLimit
from ftcore.checkpoint.local_files import LocalFiles
from ftcore.checkpoint.problems import ProblemKind
from ftcore.errors import CheckpointError, StorageFull

OBJECT_STORES: Final = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "tos"})
"""Protocols of fsspec whose uploads are visible when they are complete."""

MANIFEST: Final = "manifest.json"
"""Name of the file that makes a directory a checkpoint."""

UPLOAD_BYTES: Final = 16 << 20
"""Least size of a part of an upload; a store has at most 10,000 parts."""

_UPLOAD_PARTS: Final = 9000
_FULL: Final = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Storage:
    """Files of checkpoints below one URL. Threads may share it: they share its bandwidth too.

    Args:
        url: a path, or a URL of fsspec, for example ``s3://bucket/checkpoints``.
        bandwidth: limit for writing, in bytes per second, of all threads together; 0: none.

    Raises:
        CheckpointError: no such kind of storage, or its package is not installed.
    """

    def __init__(self, url: str, bandwidth: float = 0) -> None:
        self.url = url
        self.bandwidth = bandwidth
        self._limit = BandwidthLimit(bandwidth)
        path = _local_path(url)
        with self._converted("open", ""):
            self._backend: Backend = _RemoteFiles(url) if path is None else LocalFiles(path)

    def where(self, name: str) -> str:
        """The full path or URL of a file, for messages."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url

    def write(self, name: str, chunks: Iterable[Chunk], expected: int = 0) -> int:
        """Write a file. It gets its name when all is durable; an error, or a kill at any time, leaves no such file.

        Args:
            name: its path below the URL; missing directories are made. A file of that name is replaced.
            chunks: its content. What the iteration raises ends the write and is raised.
            expected: its size, if known.

        Returns:
            The number of bytes.

        Raises:
            StorageFull: no space is left, or a quota or a limit of file sizes is reached.
            CheckpointError: it cannot be written.
        """
        source = _Guarded(self._limit.paced(chunks))
        with self._converted("write", name, source):
            return self._backend.write(name, source, expected)

    def read(self, name: str, at: int = 0, size: int = -1) -> bytes:
        """Read a part of a file.

        Args:
            name: its path below the URL.
            at: the first byte.
            size: the number of bytes; -1: up to the end.

        Returns:
            The bytes; fewer if the file ends.

        Raises:
            CheckpointError: there is no such file (kind ``missing``), or it cannot be read.
        """
        with self._converted("read", name):
            return self._backend.read(name, at, size)

    def read_into(self, name: str, at: int, buffer: memoryview) -> int:
        """Read a part of a file into a buffer, on a file system without a copy.

        Args:
            name: its path below the URL.
            at: the first byte.
            buffer: writable bytes.

        Returns:
            The number of bytes; fewer than the buffer's if the file ends.

        Raises:
            CheckpointError: there is no such file (kind ``missing``), or it cannot be read.
        """
        with self._converted("read", name):
            return self._backend.read_into(name, at, buffer)

    def size(self, name: str) -> int:
        """Return the size of a file in bytes.

        Raises:
            CheckpointError: there is no such file (kind ``missing``), or it cannot be read.
        """
        with self._converted("read", name):
            return self._backend.size(name)

    def exists(self, name: str) -> bool:
        """Whether there is such a file or directory; it may be empty.

        Raises:
            CheckpointError: the storage cannot be read.
        """
        with self._converted("read", name):
            return self._backend.exists(name)

    def list(self, directory: str = "") -> list[StoredEntry]:
        """Return the entries of a directory by name, without temporary files; none if there is no such directory.

        Raises:
            CheckpointError: the storage cannot be read.
        """
        with self._converted("read", directory):
            try:
                found = self._backend.entries(directory)
            except FileNotFoundError:
                return []
        return sorted((entry for entry in found if not entry.name.startswith(HIDDEN)), key=lambda entry: entry.name)

    def remove(self, directory: str) -> None:
        """Remove a directory of a checkpoint; the manifest first, so that no half of it looks complete.

        It is no error if the directory does not exist.

        Raises:
            CheckpointError: it cannot be removed.
        """
        assert directory.strip("/."), "the storage itself is not removed"
        with self._converted("remove", directory):
            with contextlib.suppress(FileNotFoundError):
                self._backend.remove(f"{directory}/{MANIFEST}")
            with contextlib.suppress(FileNotFoundError):
                self._backend.remove_directory(directory)

    @contextlib.contextmanager
    def _converted(self, verb: str, name: str, source: "_Guarded | None" = None) -> Iterator[None]:
        """Convert errors of the storage. Errors of the content's source are raised as they are."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:  # a store's library has error classes of its own
            if source is not None and source.error is error:
                raise
            _raise(error, verb, self.where(name))


class _Guarded:
    """Content of a file that remembers the error of its source."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Chunk]:
        try:
            yield from self._chunks
        except Exception as error:
            self.error = error
            raise


class _RemoteFiles:
    """Files below a URL of fsspec.

    Args:
        url: the URL.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._fs, root = url_to_fs(url, use_listings_cache=False)
        self._root = str(root).rstrip("/")
        protocols = self._fs.protocol
        names = {protocols} if isinstance(protocols, str) else set(protocols)
        self._is_object_store = not names.isdisjoint(OBJECT_STORES)

    def write(self, name: str, chunks: Iterable[Chunk], expected: int) -> int:
        path = self._path(name)
        if self._is_object_store:
            return self._upload(path, chunks, expected)
        parent, _, base = path.rpartition("/")
        self._fs.makedirs(parent, exist_ok=True)
        temporary = f"{parent}/{HIDDEN}{base}.{secrets.token_hex(6)}"
        try:
            with self._fs.open(temporary, "wb") as file:
                count = sum(_written(file, chunk) for chunk in chunks)
            if self.exists(name):
                self._fs.rm_file(path)
            self._fs.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(temporary)
            raise
        return count

    def _upload(self, path: str, chunks: Iterable[Chunk], expected: int) -> int:
        """Upload an object. Closing the file would complete it, so it is closed only after the last chunk."""
        file = self._fs.open(path, "wb", block_size=max(UPLOAD_BYTES, expected // _UPLOAD_PARTS))
        try:
            count = sum(_written(file, chunk) for chunk in chunks)
            file.close()
        except BaseException:
            with contextlib.suppress(Exception):
                file.discard()
            file.closed = True  # otherwise its destructor completes it
            raise
        return count

    def read(self, name: str, at: int, size: int) -> bytes:
        if size == 0:
            return b""
        try:
            return bytes(self._fs.cat_file(self._path(name), start=at, end=None if size < 0 else at + size))
        except Exception:
            if self.size(name) <= at:  # an error in some stores, an empty result in others
                return b""
            raise

    def read_into(self, name: str, at: int, buffer: memoryview) -> int:
        found = self.read(name, at, len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def size(self, name: str) -> int:
        return int(self._fs.info(self._path(name))["size"])

    def exists(self, name: str) -> bool:
        path = self._path(name)
        try:
            self._fs.invalidate_cache(path)
            self._fs.info(path)
        except FileNotFoundError:
            return False
        return True

    def entries(self, directory: str) -> list[StoredEntry]:
        path = self._path(directory)
        self._fs.invalidate_cache(path)
        return [
            StoredEntry(
                str(info["name"]).rstrip("/").rpartition("/")[2],
                0 if info["type"] == "directory" else int(info.get("size") or 0),
                _modified(info),
                info["type"] == "directory",
            )
            for info in self._fs.ls(path, detail=True)
            if str(info["name"]).rstrip("/") != path.rstrip("/")  # a marker of the directory itself
        ]

    def remove(self, name: str) -> None:
        self._fs.rm_file(self._path(name))

    def remove_directory(self, directory: str) -> None:
        self._fs.rm(self._path(directory), recursive=True)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root


def _written(file: Any, chunk: Chunk) -> int:
    file.write(chunk)
    return len(chunk)


def _modified(info: dict[str, Any]) -> float:
    """When an object was changed; the stores name it differently."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0


def _local_path(url: str) -> Path | None:
    """The directory that a URL means; None if it is not on a mounted file system."""
    if not url:
        raise CheckpointError("no path for checkpoints: expected a directory, or a URL such as s3://bucket/path")
    for prefix in ("file://", "local://"):
        if url.startswith(prefix):
            return Path(url.removeprefix(prefix)).absolute()
    return None if "://" in url or "::" in url else Path(url).expanduser().absolute()


def _raise(error: Exception, verb: str, path: str) -> NoReturn:
    """Raise the error of ftcore for an error of the storage."""
    number = error.errno if isinstance(error, OSError) else None
    why = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
    if number in _FULL:
        raise StorageFull(f"cannot {verb} {path}: {why}; free space there") from error
    if isinstance(error, FileNotFoundError) and verb == "read":
        raise CheckpointError(f"{path}: no such file", ProblemKind.MISSING) from error
    if isinstance(error, NotADirectoryError) and verb == "read":
        raise CheckpointError(f"cannot read {path}: {why}", ProblemKind.MISSING) from error
    if isinstance(error, ImportError) or (isinstance(error, ValueError) and verb == "open"):
        raise CheckpointError(f"cannot use {path}: {error}") from error
    hints = {
        errno.EACCES: "allow this user to access it",
        errno.EROFS: "mount it for writing",
        errno.ESTALE: "mount the file system again",
    }
    hint = hints.get(number or 0, "check that every node reaches this storage and may use it")
    raise CheckpointError(f"cannot {verb} {path}: {why}; {hint}") from error

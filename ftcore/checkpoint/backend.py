"""What a kind of storage can do."""

from collections.abc import Iterable
from typing import Final, Protocol, TypeAlias

import msgspec

Chunk: TypeAlias = bytes | memoryview

HIDDEN: Final = "."
"""A name that begins with it is a temporary file."""


class StoredEntry(msgspec.Struct, frozen=True):
    """A file or directory in the storage.

    Args:
        name: its name, without a directory.
        bytes: its size; 0 for a directory.
        modified: when it was changed, in seconds since the epoch; 0: unknown.
        is_directory: whether it is a directory.
    """

    name: str
    bytes: int
    modified: float
    is_directory: bool


class Backend(Protocol):
    """What a kind of storage can do; paths are relative to its root. It raises its own errors."""

    def write(self, name: str, chunks: Iterable[Chunk], expected: int) -> int:
        """Write a file atomically."""

    def read(self, name: str, at: int, size: int) -> bytes:
        """Read up to ``size`` bytes."""

    def read_into(self, name: str, at: int, buffer: memoryview) -> int:
        """Fill a buffer; return the number of bytes."""

    def size(self, name: str) -> int:
        """Return the size of a file; ``FileNotFoundError`` if there is none."""

    def exists(self, name: str) -> bool:
        """Whether there is such a file or directory."""

    def entries(self, directory: str) -> list[StoredEntry]:
        """Return the entries of a directory; ``FileNotFoundError`` if there is none."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def remove_directory(self, directory: str) -> None:
        """Remove a directory with its files."""

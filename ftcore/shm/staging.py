"""Staging memory: one memfd that holds one shard of a checkpoint, kept by the node's keeper.

The keeper creates the memfd, with a fixed size, and keeps it: the data outlives the worker. Each rank has two or more,
its *slots*: while one is written, another holds the shard before. The writer is a worker, or for a copy of another
node's shard the keeper that receives it.

| word (8 bytes each) | written by | field | meaning |
|---|---|---|---|
| 0 | keeper | ``magic`` | identifies the memory and its version |
| 1 | worker | ``state`` | 0: empty; 1: being written, so torn if its writer is dead; 2: sealed |
| 2 | worker | ``sequence`` | number of the newest write into this slot |
| 3 | worker | ``step`` | step of the shard |
| 4 | worker | ``round`` | round of the shard |
| 5 | worker | ``index_bytes`` | length of the index, which begins at ``INDEX_AT`` |
| 6 | worker | ``index_crc`` | CRC-32 of the index |
| 7 | worker | ``data_at`` | where the data begins |
| 8 | worker | ``data_bytes`` | length of the data |
| 9 | worker | ``mono`` | monotonic nanoseconds of the seal |
| 16 | keeper | ``pin`` | 0: free; 1: it will be read; 2: it is being read, and should not be overwritten |

A reader pins a sealed slot, remembers its header, and compares it after it has read: if it changed, the writer did not
see the pin or had no other slot, and what was read is dropped.

House rules: this module accesses memory only. A word has one writer. The index is text of the writer (JSON of
``ftcore.checkpoint.layout.ShardIndex``), opaque here.
"""

import contextlib
import fcntl
import mmap
import os
import zlib
from typing import Final

import attrs

MAGIC: Final = 0x3130656761745374  # "tStage01", little-endian
INDEX_AT: Final = 4096
PAGE: Final = 4096

EMPTY, WRITING, SEALED = range(3)
"""Values of ``state``."""

FREE, QUEUED, READ = range(3)
"""Values of ``pin``."""

_MAGIC, _STATE, _SEQUENCE, _STEP, _ROUND, _INDEX_BYTES, _INDEX_CRC, _DATA_AT, _DATA_BYTES, _MONO = range(10)
_PIN: Final = 16
_NAME: Final = "ftcore-staging"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@attrs.frozen
class StagedHeader:
    """The header of a slot. See the module's table."""

    state: int
    sequence: int
    step: int
    round: int
    index_bytes: int
    index_crc: int
    data_at: int
    data_bytes: int
    mono: int

    @property
    def sealed(self) -> bool:
        """Whether the shard is complete."""
        return self.state == SEALED


def needed(index_bytes: int, data_bytes: int) -> int:
    """Bytes of a slot for such an index and such data; the index may grow by an eighth, at least by a page."""
    return _data_at(index_bytes + max(index_bytes // 8, PAGE)) + _pages(data_bytes)


def _pages(count: int) -> int:
    return -(-count // PAGE) * PAGE


def _data_at(index_bytes: int) -> int:
    return _pages(INDEX_AT + index_bytes)


def create(size: int) -> int:
    """Create an empty slot; return its descriptor, which the caller closes.

    Args:
        size: its size in bytes; memory is taken when it is written.

    Raises:
        OSError: the memory cannot be had.
    """
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, max(_pages(size), INDEX_AT + PAGE))
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        with mmap.mmap(fd, PAGE) as view:
            view[0:8] = MAGIC.to_bytes(8, "little")
    except BaseException:
        os.close(fd)
        raise
    return fd


class StagingSlot:
    """A mapped slot; for its writer, and for its readers.

    Args:
        fd: the memfd; mapped here, not closed.
        writable: whether it is mapped for writing; False for a read-only descriptor.

    Raises:
        ValueError: it is no staging memory of this version.
        OSError: it cannot be mapped.
    """

    def __init__(self, fd: int, *, writable: bool = True) -> None:
        self.size = os.fstat(fd).st_size
        if self.size < INDEX_AT + PAGE or self.size % PAGE:
            raise ValueError("not a staging slot of this version")
        self._map = mmap.mmap(fd, self.size, access=mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ)
        self.view = memoryview(self._map)
        """All bytes of the slot."""
        self._words = self.view[:PAGE].cast("q")
        if self._words[_MAGIC] != MAGIC:
            self.close()
            raise ValueError("not a staging slot of this version")

    def close(self) -> None:
        """Unmap it. Views of its data must have been released; otherwise it stays mapped until they are."""
        with contextlib.suppress(BufferError):
            self._words.release()
            self.view.release()
            self._map.close()

    # -- writer

    def fits(self, index_bytes: int, data_bytes: int) -> bool:
        """Whether such a shard fits."""
        return _data_at(index_bytes) + data_bytes <= self.size

    def begin(self, data_bytes: int) -> memoryview:
        """Begin to write a shard: what the slot held is lost. Returns the memory for the data.

        The data is at the end of the slot, so that the index can be written last.

        Raises:
            ValueError: the data does not fit; the slot is unchanged.
        """
        data_at = (self.size - data_bytes) // PAGE * PAGE
        if data_bytes < 0 or data_at <= INDEX_AT:
            raise ValueError(f"{data_bytes} bytes of data do not fit into a slot of {self.size} bytes")
        words = self._words
        words[_STATE] = WRITING
        words[_SEQUENCE] += 1
        words[_DATA_AT], words[_DATA_BYTES] = data_at, data_bytes
        return self.view[data_at : data_at + data_bytes]

    def seal(self, index: bytes, step: int, round_: int, mono: int) -> None:
        """Complete the shard, after all of its data was written.

        Args:
            index: its index.
            step: its step.
            round_: its round.
            mono: monotonic nanoseconds.

        Raises:
            ValueError: the index is empty or does not fit; the slot stays torn.
        """
        words = self._words
        if not index or INDEX_AT + len(index) > words[_DATA_AT]:
            raise ValueError(f"an index of {len(index)} bytes does not fit")
        self.view[INDEX_AT : INDEX_AT + len(index)] = index
        words[_INDEX_BYTES], words[_INDEX_CRC] = len(index), zlib.crc32(index)
        words[_STEP], words[_ROUND], words[_MONO] = step, round_, mono
        words[_STATE] = SEALED

    @property
    def pinned(self) -> int:
        """How much a reader needs the shard as it is: ``FREE``, ``QUEUED`` or ``READ``."""
        return self._words[_PIN]

    # -- keeper and readers

    def pin(self, pin: int) -> None:
        """Record who needs the shard: ``FREE``, ``QUEUED`` or ``READ``; for the keeper alone."""
        self._words[_PIN] = pin

    def header(self) -> StagedHeader:
        """Return the header."""
        words = self._words
        return StagedHeader(
            words[_STATE],
            words[_SEQUENCE],
            words[_STEP],
            words[_ROUND],
            words[_INDEX_BYTES],
            words[_INDEX_CRC],
            words[_DATA_AT],
            words[_DATA_BYTES],
            words[_MONO],
        )

    def index(self) -> bytes | None:
        """Return the index of a sealed shard; None: it is not sealed, or damaged."""
        head = self.header()
        ends = INDEX_AT + head.index_bytes
        placed = INDEX_AT < ends <= head.data_at and 0 <= head.data_bytes <= self.size - head.data_at
        if not head.sealed or not placed:
            return None
        index = bytes(self.view[INDEX_AT:ends])
        return index if zlib.crc32(index) == head.index_crc and self.header() == head else None

    def data(self) -> memoryview:
        """Return the data of a shard whose index is readable, without a copy; the caller releases it."""
        head = self.header()
        return self.view[head.data_at : head.data_at + head.data_bytes]

"""Sources of shards for loading: a file in the storage, or staging memory.

House rules: a source returns no byte of a file whose checksum it did not check, and no byte of memory that is not
sealed. Memory is not copied here, so what was read from it counts only if ``close`` raises nothing.
"""

import zlib
from collections.abc import Iterator
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from ftcore.checkpoint.files import CHUNK_BYTES, PiecePlace, ShardHeader, check_index, read_header
from ftcore.checkpoint.layout import ITEM_BYTES, Piece, Shape, ShardIndex
from ftcore.checkpoint.problems import ProblemKind
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.shm.staging import StagingSlot

SMALL_BYTES: Final = 1 << 20
"""Smaller pieces of a file are read together with those behind them: an object store takes 50 ms for each read."""


class ShardSource(Protocol):
    """A shard that can be read."""

    @property
    def index(self) -> ShardIndex:
        """What the shard holds."""

    def read(self, piece: Piece) -> memoryview:
        """Return the data of one of its pieces: ``piece.bytes`` bytes in C order.

        The piece is found by name, offset and shape: it may come from the index of another replica.

        Raises:
            CheckpointError: the data is damaged, or cannot be read.
            KeyError: the shard has no such piece.
        """

    def close(self) -> None:
        """End reading.

        Raises:
            CheckpointError: what was read is not valid: the memory was overwritten meanwhile.
        """


def _key(piece: Piece) -> tuple[str, Shape, Shape]:
    return piece.name, piece.offset, piece.shape


class FileSource:
    """A shard in the storage.

    Args:
        storage: where.
        name: its path in the storage.
        crc: CRC-32 of its header, from the manifest; None: not compared.

    Raises:
        CheckpointError: the file is missing, damaged, of a newer format, or not the file of the manifest.
    """

    def __init__(self, storage: Storage, name: str, crc: int | None = None) -> None:
        self.header: ShardHeader = read_header(storage, name)
        self._storage = storage
        self._name = name
        if crc is not None and crc != self.header.crc:
            path = storage.where(name)
            raise CheckpointError(f"{path} is not the file that the manifest names", ProblemKind.FOREIGN)
        pieces = self.header.index.pieces
        self._places = {_key(piece): place for piece, place in zip(pieces, self.header.places, strict=True)}
        self._windows: dict[int, _ReadAhead] = {}

    @property
    def index(self) -> ShardIndex:
        """What the shard holds."""
        return self.header.index

    def read(self, piece: Piece) -> memoryview:
        """Return the data of a piece. See ``ShardSource``; the memory is writable, small pieces share it."""
        place = self._places[_key(piece)]
        if piece.bytes < SMALL_BYTES:
            window = self._windows.setdefault(ITEM_BYTES[piece.dtype], _ReadAhead(self._storage, self._name))
            found = window.read(place.at, piece.bytes)
        else:
            buffer = bytearray(piece.bytes)
            found = memoryview(buffer)[: self._storage.read_into(self._name, place.at, memoryview(buffer))]
        if len(found) != piece.bytes or zlib.crc32(found) != place.crc:
            raise _damaged(self._storage, self._name, piece)
        return found

    def close(self) -> None:
        """Release the buffers."""
        self._windows.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class _ReadAhead:
    """Reads small parts of a file, in the order of the file, with few reads of the storage.

    Args:
        storage: where.
        name: path of the file.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._at = 0
        self._held = memoryview(b"")

    def read(self, at: int, size: int) -> memoryview:
        """Return a part of the file; shorter if the file ends."""
        if not self._at <= at <= at + size <= self._at + len(self._held):
            buffer = memoryview(bytearray(max(size, CHUNK_BYTES)))
            self._at, self._held = at, buffer[: self._storage.read_into(self._name, at, buffer)]
        return self._held[at - self._at : at - self._at + size]


def damaged_pieces(storage: Storage, name: str, header: ShardHeader) -> Iterator[Piece]:
    """Read all data of a shard, and yield the pieces that do not have their checksum.

    Args:
        storage: where.
        name: path of the shard.
        header: its header.

    Raises:
        CheckpointError: it cannot be read.
    """
    window = _ReadAhead(storage, name)
    found = zip(header.index.pieces, header.places, strict=True)
    for piece, place in sorted(found, key=lambda each: each[1].at):
        if _crc_of_file(window, place, piece.bytes) != place.crc:
            yield piece


def _crc_of_file(window: _ReadAhead, place: PiecePlace, size: int) -> int:
    crc = 0
    for done in range(0, size, CHUNK_BYTES):
        crc = zlib.crc32(window.read(place.at + done, min(CHUNK_BYTES, size - done)), crc)
    return crc


def _damaged(storage: Storage, name: str, piece: Piece) -> CheckpointError:
    return CheckpointError(
        f"{storage.where(name)}: the data of {piece.name} is damaged: it does not have its checksum",
        ProblemKind.DAMAGED,
    )


class SlotSource:
    """A shard in staging memory. The slot stays the caller's.

    Args:
        slot: the mapped slot; pinned by its keeper, so that its writer leaves it alone.
        name: what errors call it.

    Raises:
        CheckpointError: it is not sealed, or its index cannot be read.
    """

    def __init__(self, slot: StagingSlot, name: str = "staged shard") -> None:
        self._slot = slot
        self._name = name
        self._head = slot.header()
        raw = slot.index()
        if raw is None or not self.unchanged:
            raise CheckpointError(f"{name}: not a complete shard")
        try:
            self._index = msgspec.json.decode(raw, type=ShardIndex)
        except msgspec.DecodeError as error:
            raise CheckpointError(f"{name}: its index cannot be read: {error}", ProblemKind.DAMAGED) from error
        check_index(self._index, self._head.data_bytes, name)
        self._places = {_key(piece): piece.at for piece in self._index.pieces}

    @property
    def index(self) -> ShardIndex:
        """What the shard holds."""
        return self._index

    @property
    def unchanged(self) -> bool:
        """Whether the slot still holds this shard; asked after a copy, it tells that the copy is valid."""
        return self._slot.header() == self._head

    def read(self, piece: Piece) -> memoryview:
        """Return the data of a piece, which is the slot's memory. See ``ShardSource``."""
        at = self._head.data_at + self._places[_key(piece)]
        if not self.unchanged:
            raise self._overwritten()
        return self._slot.view[at : at + piece.bytes]

    def close(self) -> None:
        """End reading; see ``ShardSource``. Not after the slot was closed."""
        if not self.unchanged:
            raise self._overwritten()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()

    def _overwritten(self) -> CheckpointError:
        return CheckpointError(f"{self._name} was overwritten while it was read; read the shard from another source")

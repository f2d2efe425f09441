"""Saved state that this process can read: shards of one step, in the memory of its node or in the storage.

House rules: tensors and Python values are read on demand, each one verified. ``close`` says whether what was read from
memory is valid.
"""

import contextlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from ftcore.checkpoint import manifest
from ftcore.checkpoint.files import directory_name
from ftcore.checkpoint.layout import Piece, Shape, ShardIndex
from ftcore.checkpoint.sources import FileSource, ShardSource, SlotSource
from ftcore.checkpoint.storage import Storage
from ftcore.errors import CheckpointError
from ftcore.shm.staging import StagingSlot
from ftcore.worker._keeper import KeeperClient
from ftcore.worker.state.collect import decoded
from ftcore.worker.state.parts import StoredShape


class SavedStep(NamedTuple):
    """Saved state that a process may resume from.

    Args:
        step: the number of the last completed step.
        round: the round that saved it.
        source: ``memory`` or ``storage``.
        where: for ``storage``, the location of the storage.
    """

    step: int
    round: int
    source: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.where.rstrip('/')}/{directory_name(self.step, self.round)}" if self.where else "memory"
        return f"step {self.step} of round {self.round} ({place})"


class SavedShards(Protocol):
    """Shards of one step. ``ranks`` is the number of ranks that saved it."""

    ranks: int
    pieces: dict[str, list[Piece]]
    """The slices that can be read, by tensor; equal ones once."""

    def read(self, piece: Piece) -> memoryview:
        """Return the data of one of the pieces.

        Raises:
            CheckpointError: it is damaged, or cannot be read.
        """

    def values(self, rank: int) -> str | None:
        """Return the Python values that a rank saved; None: they are in none of these shards."""

    def any_values(self) -> str | None:
        """Return the Python values of some rank; None: there are none."""

    def close(self) -> None:
        """End reading.

        Raises:
            CheckpointError: what was read is not valid.
        """


def shapes_of(shards: SavedShards) -> dict[str, StoredShape]:
    """Types and shapes of the tensors."""
    return {name: StoredShape(found[0].dtype, found[0].size) for name, found in shards.pieces.items()}


def _others(text: str) -> Mapping[str, str]:
    """Values of other ranks that a shard has."""
    found = decoded(text).get("others", {})
    return found if isinstance(found, dict) else {}


class SourceShards:
    """Shards of open sources.

    Args:
        sources: the sources, those to prefer first.

    Raises:
        CheckpointError: there is none, or they are of different numbers of ranks.
    """

    def __init__(self, sources: list[ShardSource]) -> None:
        if not sources:
            raise CheckpointError("there is no complete shard")
        self._sources = sources
        self.ranks = sources[0].index.ranks
        self.pieces: dict[str, list[Piece]] = {}
        self._holders: dict[tuple[str, Shape, Shape], ShardSource] = {}
        for source in sources:
            for piece in source.index.pieces:
                key = piece.name, piece.offset, piece.shape
                if self._holders.setdefault(key, source) is source:
                    self.pieces.setdefault(piece.name, []).append(piece)

    def read(self, piece: Piece) -> memoryview:
        """See ``SavedShards``."""
        return self._holders[piece.name, piece.offset, piece.shape].read(piece)

    def values(self, rank: int) -> str | None:
        """See ``SavedShards``."""
        for index in self._indexes():
            if index.rank == rank:
                return index.values
        return next((found for index in self._indexes() if (found := _others(index.values).get(str(rank)))), None)

    def any_values(self) -> str | None:
        """See ``SavedShards``."""
        first = min(self._indexes(), key=lambda index: index.rank)
        return first.values

    def _indexes(self) -> list[ShardIndex]:
        return [source.index for source in self._sources]

    def close(self) -> None:
        """See ``SavedShards``."""
        for source in self._sources:
            source.close()


class HeldShards(SourceShards):
    """Shards of a step in the memory of this node's keeper, and shards that were received.

    Args:
        keeper: the connection to it; None: there is none.
        saved: which step.
        rank: this rank; its own shard is preferred.
        received: shards received from other nodes; closed with this object.
        values: Python values of ranks whose shards may not be among them.

    Raises:
        CheckpointError: the node does not hold any, or one of them is damaged.
    """

    def __init__(
        self,
        keeper: KeeperClient | None,
        saved: SavedStep,
        rank: int,
        received: Sequence[StagingSlot] = (),
        values: Mapping[int, str] | None = None,
    ) -> None:
        self._keeper, self._received, self._values = keeper, list(received), values or {}
        self._slots: list[tuple[int, int, StagingSlot]] = []
        try:
            sources: list[ShardSource] = [SlotSource(slot, "received shard") for slot in received]
            held = keeper.held() if keeper is not None else []
            held = [each for each in held if (each.step, each.round) == (saved.step, saved.round)]
            for each in sorted(held, key=lambda each: (each.rank != rank, each.rank)):
                assert keeper is not None
                slot = keeper.read(each.local_rank, each.slot)
                if slot is None:
                    raise CheckpointError(keeper.problem or "a shard in memory was overwritten")
                self._slots.append((each.local_rank, each.slot, slot))
                sources.append(SlotSource(slot, f"staged shard of rank {each.rank}"))
            super().__init__(sources)
        except BaseException:
            self._release()
            raise

    def values(self, rank: int) -> str | None:
        """See ``SavedShards``."""
        return super().values(rank) or self._values.get(rank)

    def close(self) -> None:
        """See ``SavedShards``."""
        try:
            super().close()
        finally:
            self._release()

    def _release(self) -> None:
        while self._slots:
            local_rank, number, slot = self._slots.pop()
            if self._keeper is not None:
                self._keeper.done(local_rank, number)
            slot.close()
        while self._received:
            self._received.pop().close()


class StoredShards:
    """A checkpoint in the storage; its files are opened when something of them is read.

    Args:
        storage: where.
        directory: the directory of the checkpoint.
        job: the job that it must be of, unless it was imported for any; empty: of any.

    Raises:
        CheckpointError: it is not complete, damaged, of a newer version, or of another job.
    """

    def __init__(self, storage: Storage, directory: str, job: str = "") -> None:
        self._storage, self._directory = storage, directory
        self._manifest = manifest.read(storage, directory)
        if job and self._manifest.job not in ("", job):
            where = storage.where(directory)
            raise CheckpointError(f"{where} is a checkpoint of job {self._manifest.job!r}, not of {job!r}", "foreign")
        self.ranks = self._manifest.ranks
        self.pieces: dict[str, list[Piece]] = {}
        self._files: dict[tuple[str, Shape, Shape], int] = {}
        for piece, place in self._manifest.pieces():
            self.pieces.setdefault(piece.name, []).append(piece)
            self._files[piece.name, piece.offset, piece.shape] = place.file
        self._sources: dict[int, FileSource] = {}

    @property
    def round(self) -> int:
        """The round that saved it."""
        return self._manifest.round

    def _source(self, number: int) -> FileSource:
        if number not in self._sources:
            file = self._manifest.files[number]
            self._sources[number] = FileSource(self._storage, f"{self._directory}/{file.name}", file.crc)
        return self._sources[number]

    def read(self, piece: Piece) -> memoryview:
        """See ``SavedShards``."""
        return self._source(self._files[piece.name, piece.offset, piece.shape]).read(piece)

    def values(self, rank: int) -> str | None:
        """See ``SavedShards``."""
        for number, file in enumerate(self._manifest.files):
            if file.rank == rank:
                return self._source(number).index.values
        for number in range(len(self._manifest.files)):
            if found := _others(self._source(number).index.values).get(str(rank)):
                return found
        return None

    def any_values(self) -> str | None:
        """See ``SavedShards``."""
        first = min(range(len(self._manifest.files)), key=lambda number: self._manifest.files[number].rank)
        return self._source(first).index.values

    def close(self) -> None:
        """See ``SavedShards``."""
        for source in self._sources.values():
            with contextlib.suppress(CheckpointError):
                source.close()


def open_stored(where: str, step: int, round_: int, job: str = "") -> StoredShards:
    """Open a checkpoint.

    Args:
        where: the storage, or the checkpoint's directory in it.
        step: its step.
        round_: its round.
        job: the job that it must be of; empty: of any.

    Raises:
        CheckpointError: see ``StoredShards``.
    """
    name = directory_name(step, round_)
    base = where.rstrip("/")
    return StoredShards(Storage(base.removesuffix(f"/{name}")), name, job)

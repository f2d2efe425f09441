"""The staging memory of a node: two slots for each local rank, and what they hold.

A worker that needs larger slots, or that takes the place of one that still runs, gets new ones. The newest shard of
the old ones is kept until both new ones are sealed. Slots of local ranks that no longer exist are kept until all
running workers have sealed two shards of their own round: until then, an earlier shard may be the newest complete
step of the job.

House rules: memory is counted before it is taken. A slot that is being read is never closed.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import attrs
import msgspec

from ftcore.runtime.keeper import memory
from ftcore.shm import staging
from ftcore.shm.staging import FREE, QUEUED, READ, StagingSlot

SLACK: Final = 64 << 20
"""A slot that is larger than needed by this many bytes, and twice as large, is replaced."""

_GIB: Final = 1 << 30


class MemoryRefused(Exception):
    """Staging memory cannot be had; the text is for the user."""


class ShardOrigin(msgspec.Struct, frozen=True):
    """The part of a shard's index that the keeper needs; see ``layout.ShardIndex``.

    Args:
        tensors: whether the shard has the state of its replica group. Other ranks of the group stage only their
            Python values. None: the index does not say it; then a shard without data has none.
    """

    round: int
    step: int
    rank: int
    ranks: int
    group: int
    groups: int
    tensors: bool | None = None


@attrs.define(eq=False)
class KeptSlot:
    """One slot.

    Args:
        local_rank: the local rank that writes it.
        number: its number within the local rank; the two slots of a pair have consecutive numbers.
        fd: its memfd.
        slot: its mapping.
    """

    local_rank: int
    number: int
    fd: int
    slot: StagingSlot
    readers: int = 0
    queued: int = 0
    closed: bool = False
    _forgotten: int = -1
    _known: tuple[int, ShardOrigin | None] = (-1, None)

    @property
    def sequence(self) -> int:
        """Number of the newest write."""
        return self.slot.header().sequence

    @property
    def untouched(self) -> int:
        """Bytes that were promised to the worker, but not taken from the machine yet."""
        return max(0, self.slot.size - 512 * os.fstat(self.fd).st_blocks)

    @property
    def pinned(self) -> bool:
        """Whether its shard is being read, or waits for it."""
        return bool(self.readers or self.queued)

    def origin(self) -> ShardOrigin | None:
        """Where its shard comes from; None: it holds no complete shard that counts."""
        head = self.slot.header()
        if not head.sealed or head.sequence == self._forgotten:
            return None
        if self._known[0] != head.sequence:
            index, origin = self.slot.index(), None
            if index is not None:
                with contextlib.suppress(msgspec.DecodeError):
                    origin = msgspec.json.decode(index, type=ShardOrigin)
            if origin is not None and origin.tensors is None:
                origin = msgspec.structs.replace(origin, tensors=head.data_bytes > 0)
            self._known = (head.sequence, origin)
        return self._known[1]

    def holds(self, sequence: int) -> bool:
        """Whether it still holds the complete shard of that write."""
        head = self.slot.header()
        return head.sealed and head.sequence == sequence != self._forgotten

    def forget(self) -> None:
        """Count its present shard as none."""
        self._forgotten = self.sequence

    def pin(self, *, readers: int = 0, queued: int = 0) -> None:
        """Add readers, or shards that wait to be read; remove them with negative numbers."""
        self.readers += readers
        self.queued += queued
        self.slot.pin(READ if self.readers else QUEUED if self.queued else FREE)

    def close(self) -> None:
        """Give its memory back."""
        self.closed = True
        self.slot.close()
        os.close(self.fd)


@attrs.define
class _RankMemory:
    pair: tuple[KeptSlot, KeptSlot] | None = None
    old: list[KeptSlot] = attrs.field(factory=list)
    numbers: int = 0

    def __iter__(self) -> Iterator[KeptSlot]:
        yield from self.old
        yield from self.pair or ()


class SlotMemory:
    """All slots of a node; closed by ``close``.

    Args:
        available: returns the memory that can be taken, in bytes; None: not known.
    """

    def __init__(self, available: Callable[[], int | None] = memory.available) -> None:
        self.limit = 0
        """Most bytes of all slots; 0: what the machine has."""
        self._available = available
        self._ranks: dict[int, _RankMemory] = {}

    def __iter__(self) -> Iterator[KeptSlot]:
        for _, rank in sorted(self._ranks.items()):
            yield from rank

    @property
    def size(self) -> int:
        """Bytes of all slots."""
        return sum(kept.slot.size for kept in self)

    def pair(self, local_rank: int, size: int, *, fresh: bool = False) -> tuple[KeptSlot, KeptSlot]:
        """Return the slots of a local rank.

        Args:
            local_rank: the local rank.
            size: the least size of each, in bytes.
            fresh: make new ones, because another process may still write the present ones.

        Raises:
            MemoryRefused: they cannot be made; the text says why.
        """
        rank = self._ranks.setdefault(local_rank, _RankMemory())
        fits = rank.pair is not None and not fresh and all(kept.slot.size >= size for kept in rank.pair)
        if rank.pair is not None and fits and all(_is_right(kept.slot.size, size) for kept in rank.pair):
            return rank.pair
        try:
            self._reserve(rank, local_rank, 2 * size, forget=not fits)
            made = self._made(local_rank, rank.numbers, size), self._made(local_rank, rank.numbers + 1, size)
        except (MemoryRefused, OSError) as error:
            if rank.pair is not None and fits:
                return rank.pair
            raise MemoryRefused(str(error)) from error
        rank.numbers += 2
        rank.old += rank.pair or ()
        rank.pair = made
        self.tidy()
        return made

    def of(self, local_rank: int, index: int) -> KeptSlot | None:
        """Return a slot of a local rank's pair by its index, 0 or 1."""
        rank = self._ranks.get(local_rank)
        return rank.pair[index] if rank is not None and rank.pair is not None and index in (0, 1) else None

    def numbered(self, local_rank: int, number: int) -> KeptSlot | None:
        """Return a slot by its number."""
        return next((kept for kept in self._ranks.get(local_rank, ()) if kept.number == number), None)

    def newest(self, local_rank: int) -> KeptSlot | None:
        """Return the slot with a local rank's newest complete shard."""
        return max(_sealed(self._ranks.get(local_rank, ())), key=_age, default=None)

    def sealed(self) -> list[KeptSlot]:
        """Return the slots that hold a complete shard."""
        return _sealed(self)

    def held(self) -> list[dict[str, int]]:
        """Describe the complete shards, as in the replies to ``held``."""
        found = []
        for kept in self.sealed():
            origin, head = kept.origin(), kept.slot.header()
            if origin is not None:
                place = {"local_rank": kept.local_rank, "slot": kept.number, "bytes": head.data_bytes}
                found.append({**msgspec.structs.asdict(origin), **place, "mono": head.mono})
        return found

    def drop(self, above: int, before: int) -> int:
        """Forget the shards of rounds before ``before`` with a step above ``above``; return their number."""
        count = 0
        for kept in self.sealed():
            origin = kept.origin()
            if origin is not None and origin.round < before and origin.step > above:
                kept.forget()
                count += 1
        self.tidy()
        return count

    def tidy(self, running: Iterable[tuple[int, int]] = ()) -> None:
        """Close slots that are not needed any more.

        Args:
            running: local rank and round of the workers that run.
        """
        now = dict(running)
        settled = bool(now) and all(
            (rank := self._ranks.get(local_rank)) is not None
            and rank.pair is not None
            and all((origin := kept.origin()) is not None and origin.round >= round_ for kept in rank.pair)
            for local_rank, round_ in now.items()
        )
        for local_rank, rank in list(self._ranks.items()):
            both = rank.pair is not None and len(_sealed(rank.pair)) == 2
            newest = None if both else max(_sealed(rank.old), key=_age, default=None)
            rank.old = _without(rank.old, [kept for kept in rank.old if kept is not newest])
            if settled and local_rank not in now:
                rank.old = _without(rank.old, rank.old)
                if rank.pair is not None and not any(kept.pinned for kept in rank.pair):
                    _without(list(rank.pair), list(rank.pair))
                    rank.pair = None
                if not list(rank):
                    del self._ranks[local_rank]

    def close(self) -> None:
        """Give all memory back."""
        for kept in list(self):
            kept.close()
        self._ranks.clear()

    def _made(self, local_rank: int, number: int, size: int) -> KeptSlot:
        fd = staging.create(size)
        try:
            return KeptSlot(local_rank, number, fd, StagingSlot(fd))
        except BaseException:
            os.close(fd)
            raise

    def _reserve(self, rank: _RankMemory, local_rank: int, need: int, *, forget: bool) -> None:
        """Make room for a new pair of slots; old shards are given up only if it would not fit otherwise.

        Args:
            rank: the memory of the local rank.
            local_rank: the local rank.
            need: bytes of both slots.
            forget: whether old shards may be given up.

        Raises:
            MemoryRefused: there is no room.
        """
        what = f"the two slots of local rank {local_rank} need {need / _GIB:.2f} GiB of staging memory"
        kept = self.newest(local_rank)
        problem = self._problem(need, [slot for slot in rank if slot is not kept])
        if not problem:
            return
        if forget:
            old = [slot for each in self._ranks.values() for slot in each.old]
            problem = self._problem(need, [*old, *(rank.pair or ())])
        if problem:
            raise MemoryRefused(f"{what}; {problem}")
        for each in self._ranks.values():
            each.old = _without(each.old, each.old)
        for slot in rank.pair or ():
            slot.forget()  # closed with the pair

    def _problem(self, need: int, freed: Iterable[KeptSlot]) -> str:
        """Return why ``need`` bytes cannot be had, even if slots are given back; empty: they can."""
        back = sum(kept.slot.size for kept in freed if not kept.pinned)
        taken, left = self.size - back, self._available()
        if left is not None:
            left = max(0, left - sum(kept.untouched for kept in self))
        if self.limit and taken + need > self.limit:
            return (
                f"the limit is {self.limit / _GIB:.2f} GiB, of which {taken / _GIB:.2f} GiB are in use: raise "
                "`job: checkpoints: memory` in the policy file, or split the state over more ranks"
            )
        if left is not None and need > left + back:
            return (
                f"this machine or container has {left / _GIB:.2f} GiB left: give it more memory, or split the state "
                "over more ranks"
            )
        return ""


def _is_right(size: int, needed: int) -> bool:
    return needed <= size <= max(2 * needed, needed + SLACK)


def _sealed(slots: Iterable[KeptSlot]) -> list[KeptSlot]:
    return [kept for kept in slots if kept.origin() is not None]


def _age(kept: KeptSlot) -> tuple[int, int, int]:
    origin = kept.origin()
    return (origin.round, origin.step, kept.slot.header().mono) if origin is not None else (-1, -1, -1)


def _without(slots: list[KeptSlot], unneeded: Iterable[KeptSlot]) -> list[KeptSlot]:
    """Close the unneeded slots that are not pinned; return the others."""
    closing = {id(kept) for kept in unneeded if not kept.pinned}
    for kept in slots:
        if id(kept) in closing:
            kept.close()
    return [kept for kept in slots if id(kept) not in closing]

"""The staging memory of a node: the slots of each local rank, copies of other nodes' shards, and what they hold.

A local rank has two slots, and a spare one that takes memory when it is first written: while a shard is written to
storage, two others take turns, so that a rank that is killed in a copy leaves a recent shard. Without memory for it,
there is no spare one. A rank whose shards are copied to other nodes has ``COPIED_SLOTS``. Of each rank of another node
there are two slots: a new copy is written into the one that does not have the newest complete shard.

A worker that needs larger slots, or that takes the place of one that still runs, gets new ones. The newest shard of
the old ones is kept until both new ones are sealed. Slots of local ranks that no longer exist are kept until all
running workers have sealed two shards of their own round: until then, an earlier shard may be the newest complete
step of the job.

Copies are kept for a later round until its workers have sealed two shards, too. They are given up for slots of this
node's own workers.

House rules: memory is counted before it is taken. A slot that is being read is never closed.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import attrs
import msgspec

from ftcore.shm import memory, staging
from ftcore.shm.staging import FREE, QUEUED, READ, StagingSlot

SLACK: Final = 64 << 20
"""A slot that is larger than needed by this many bytes, and twice as large, is replaced."""

SLOTS: Final = 2
"""Least slots of a rank."""

SPARE: Final = 1
"""Slots more that are written only while others are being read; the last ones."""

COPIED_SLOTS: Final = 4
"""Slots of a rank whose shards are copied: the shard that is copied and the one before it stay until the next one."""

COPY: Final = -1
"""The local rank of copies."""

_GIB: Final = 1 << 30


class MemoryRefused(Exception):
    """Staging memory cannot be had; the text is for the user."""


class ShardOrigin(msgspec.Struct, frozen=True):
    """The part of a shard's index that the keeper needs; see ``layout.ShardIndex``.

    Args:
        tensors: whether the shard has the state of its replica group, not only the Python values of a rank.
        elsewhere: ranks of its replica group on other nodes stage the same.
        staged_s: seconds that the copy of its tensors took.
    """

    round: int
    step: int
    rank: int
    ranks: int
    group: int
    groups: int
    tensors: bool = True
    elsewhere: bool = False
    staged_s: float = 0.0


@attrs.define(eq=False)
class KeptSlot:
    """One slot.

    Args:
        local_rank: the local rank that writes it; ``COPY``: it holds copies.
        number: its number within the local rank.
        fd: its memfd.
        slot: its mapping.
        is_copy: whether it holds copies of another node's shards.
    """

    local_rank: int
    number: int
    fd: int
    slot: StagingSlot
    is_copy: bool = False
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
    pair: tuple[KeptSlot, ...] | None = None
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
        self._copies: dict[tuple[str, int], list[KeptSlot]] = {}
        self._copy_numbers = 0

    def __iter__(self) -> Iterator[KeptSlot]:
        for _, rank in sorted(self._ranks.items()):
            yield from rank
        yield from self.copies

    @property
    def copies(self) -> list[KeptSlot]:
        """The slots with copies of other nodes' shards."""
        return [kept for _, slots in sorted(self._copies.items()) for kept in slots]

    @property
    def size(self) -> int:
        """Bytes of all slots."""
        return sum(kept.slot.size for kept in self)

    def pair(
        self, local_rank: int, size: int, *, fresh: bool = False, count: int = SLOTS, leave: int = 0
    ) -> tuple[KeptSlot, ...]:
        """Return the slots of a local rank.

        Args:
            local_rank: the local rank.
            size: the least size of each, in bytes.
            fresh: make new ones, because another process may still write the present ones.
            count: their least number.
            leave: bytes that must remain for others.

        Raises:
            MemoryRefused: they cannot be made; the text says why.
        """
        rank = self._ranks.setdefault(local_rank, _RankMemory())
        fits = rank.pair is not None and not fresh and all(kept.slot.size >= size for kept in rank.pair)
        staying: tuple[KeptSlot, ...] = ()
        if rank.pair is not None and fits and all(_is_right(kept.slot.size, size) for kept in rank.pair):
            staying = rank.pair
        missing = count - len(staying)
        if missing <= 0:
            return staying
        made: list[KeptSlot] = []
        try:
            what = f"{missing} slots of local rank {local_rank} need {missing * size / _GIB:.2f} GiB of staging memory"
            self._reserve(rank, local_rank, missing * size + leave, what, forget=not fits, staying=staying)
            for number in range(rank.numbers, rank.numbers + missing):
                made.append(self._made(local_rank, number, size))
        except (MemoryRefused, OSError) as error:
            _without(made, made)
            if rank.pair is not None and fits:
                return rank.pair
            raise MemoryRefused(str(error)) from error
        rank.numbers += missing
        rank.old += [kept for kept in rank.pair or () if kept not in staying]
        rank.pair = (*staying, *made)
        self.tidy()
        return rank.pair

    def incoming(self, node: str, local_rank: int, size: int) -> KeptSlot:
        """Return a slot for a new copy of a shard; the newest complete copy stays.

        Args:
            node: the node that staged it.
            local_rank: its local rank there.
            size: the least size in bytes.

        Raises:
            MemoryRefused: there is none; the text says why.
        """
        slots = self._copies.get((node, local_rank), [])
        newest = max(_sealed(slots), key=_age, default=None)
        spare = [kept for kept in slots if kept is not newest]
        if any(kept.pinned for kept in spare):
            raise MemoryRefused("the copy before is being read or received")
        fitting = next((kept for kept in spare if _is_right(kept.slot.size, size)), None)
        if fitting is not None:
            return fitting
        problem = self._problem(size, spare)
        if problem:
            raise MemoryRefused(f"a copy for another node needs {size / _GIB:.2f} GiB of staging memory; {problem}")
        slots = _without(slots, spare)
        try:
            made = self._made(COPY, self._copy_numbers, size, is_copy=True)
        except OSError as error:
            raise MemoryRefused(str(error)) from error
        finally:
            self._copies[node, local_rank] = slots
        self._copy_numbers += 1
        slots.append(made)
        return made

    def count(self, local_rank: int) -> int:
        """The number of present slots of a local rank."""
        rank = self._ranks.get(local_rank)
        return len(rank.pair) if rank is not None and rank.pair is not None else 0

    def of(self, local_rank: int, index: int) -> KeptSlot | None:
        """Return a slot of a local rank by its index among its present slots."""
        rank = self._ranks.get(local_rank)
        slots = rank.pair if rank is not None and rank.pair is not None else ()
        return slots[index] if 0 <= index < len(slots) else None

    def numbered(self, local_rank: int, number: int) -> KeptSlot | None:
        """Return a slot by its number."""
        slots = self.copies if local_rank == COPY else self._ranks.get(local_rank, ())
        return next((kept for kept in slots if kept.number == number), None)

    def newest(self, local_rank: int) -> KeptSlot | None:
        """Return the slot with a local rank's newest complete shard."""
        return max(_sealed(self._ranks.get(local_rank, ())), key=_age, default=None)

    def sealed(self) -> list[KeptSlot]:
        """Return the slots that hold a complete shard."""
        return _sealed(self)

    def held(self) -> list[dict[str, Any]]:
        """Describe the complete shards, as in the replies to ``held``."""
        found = []
        for kept in self.sealed():
            origin, head = kept.origin(), kept.slot.header()
            if origin is not None:
                place = {"local_rank": kept.local_rank, "slot": kept.number, "bytes": head.data_bytes}
                about = msgspec.structs.asdict(origin)
                found.append({**about, **place, "mono": head.mono, "copy": kept.is_copy})
        return found

    def drop(self, above: int, before: int) -> int:
        """Forget the shards of rounds before ``before`` with a step above ``above``; return their number.

        Those that are being read, or wait for it, stay.
        """
        count = 0
        for kept in self.sealed():
            origin = kept.origin()
            newer = origin is not None and origin.round < before and origin.step > above
            if newer and not kept.pinned:
                kept.forget()
                count += 1
        self.tidy()
        return count

    def tidy(self, running: Iterable[tuple[int, int]] = ()) -> None:
        """Close slots that are not needed any more.

        Those of a local rank without a worker are needed if they hold a shard of the present round: its worker has
        ended, and others, which still seal shards, may follow.

        Args:
            running: local rank and round of the workers that run.
        """
        now = dict(running)
        settled = bool(now) and all(
            (rank := self._ranks.get(local_rank)) is not None
            and rank.pair is not None
            and sum((origin := kept.origin()) is not None and origin.round >= round_ for kept in rank.pair) >= SLOTS
            for local_rank, round_ in now.items()
        )
        for local_rank, rank in list(self._ranks.items()):
            both = rank.pair is not None and len(_sealed(rank.pair)) >= SLOTS
            newest = None if both else max(_sealed(rank.old), key=_age, default=None)
            rank.old = _without(rank.old, [kept for kept in rank.old if kept is not newest])
            if settled and local_rank not in now and not _is_of(rank, min(now.values())):
                rank.old = _without(rank.old, rank.old)
                if rank.pair is not None and not any(kept.pinned for kept in rank.pair):
                    _without(list(rank.pair), list(rank.pair))
                    rank.pair = None
                if not list(rank):
                    del self._ranks[local_rank]
        if settled:
            self._drop_copies(before=min(now.values()))

    def _drop_copies(self, before: int) -> None:
        """Close the slots of copies that have no shard of this round or a later one."""
        for key, slots in list(self._copies.items()):
            stale = [kept for kept in slots if (origin := kept.origin()) is None or origin.round < before]
            self._copies[key] = _without(slots, stale)
            if not self._copies[key]:
                del self._copies[key]

    def close(self) -> None:
        """Give all memory back."""
        for kept in list(self):
            kept.close()
        self._ranks.clear()
        self._copies.clear()

    def _made(self, local_rank: int, number: int, size: int, is_copy: bool = False) -> KeptSlot:
        fd = staging.create(size)
        try:
            return KeptSlot(local_rank, number, fd, StagingSlot(fd), is_copy)
        except BaseException:
            os.close(fd)
            raise

    def _reserve(
        self, rank: _RankMemory, local_rank: int, need: int, what: str, *, forget: bool, staying: Sequence[KeptSlot]
    ) -> None:
        """Make room for new slots; copies, then old shards, are given up only if it would not fit otherwise.

        Args:
            rank: the memory of the local rank.
            local_rank: the local rank.
            need: bytes of the new slots.
            what: what needs them, for the error.
            forget: whether old shards may be given up.
            staying: slots of the rank that stay in use.

        Raises:
            MemoryRefused: there is no room.
        """
        kept, copies = self.newest(local_rank), self.copies
        own = [slot for slot in rank if slot is not kept and slot not in staying]
        problem = self._problem(need, own)
        if not problem:
            return
        if forget and copies:
            problem = self._problem(need, [*own, *copies])
            if not problem:
                self._give_up_copies()
                return
        if forget:
            old = [slot for each in self._ranks.values() for slot in each.old]
            problem = self._problem(need, [*old, *(rank.pair or ()), *copies])
        if problem:
            raise MemoryRefused(f"{what}; {problem}")
        self._give_up_copies()
        for each in self._ranks.values():
            each.old = _without(each.old, each.old)
        for slot in rank.pair or ():
            slot.forget()  # closed with the pair

    def _give_up_copies(self) -> None:
        self._copies = {key: left for key, slots in self._copies.items() if (left := _without(slots, slots))}

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


def _is_of(slots: Iterable[KeptSlot], round_: int) -> bool:
    """Whether a shard is of this round, or a later one."""
    return any((origin := kept.origin()) is not None and origin.round >= round_ for kept in slots)


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

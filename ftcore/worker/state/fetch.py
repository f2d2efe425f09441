"""Fetches whole shards from the memory of other nodes, over the job's process group.

After the loss of a node, its ranks' shards exist as copies in the memory of other nodes. A rank of such a node sends
each one to the rank that has taken the place. If the number of ranks has changed, each rank receives all shards that
overlap its new state; which ones these are, it learns from the indexes of all shards.

House rules: ranks agree on all transfers before the first one, and make them in one order. A sender that cannot read a
shard says so instead. Received shards are held in memory of this process, beyond its own state, until they are loaded.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from ftcore.checkpoint.layout import Piece, Shape, ShardIndex, overlap
from ftcore.shm import staging
from ftcore.shm.staging import StagingSlot
from ftcore.worker._keeper import KeeperClient
from ftcore.worker.state import spread
from ftcore.worker.state.shards import SavedStep
from ftcore.worker.state.spread import BATCH_BYTES


class ShardOffer(NamedTuple):
    """The shards of one step in the memory of a rank's node.

    Args:
        ranks: the number of ranks that saved the step.
        held: the ranks whose shards are there.
    """

    ranks: int = 0
    held: tuple[int, ...] = ()


class ShardFetch(NamedTuple):
    """The transfer of a shard.

    Args:
        rank: the rank that receives it.
        shard: the rank that saved it.
        sender: the rank that sends it.
    """

    rank: int
    shard: int
    sender: int


def offered(keeper: KeeperClient | None, saved: SavedStep) -> ShardOffer:
    """What this rank can send of a step in memory."""
    held = [each for each in keeper.held() if _is_of(each, saved)] if keeper is not None else []
    return ShardOffer(held[0].ranks, tuple(sorted({each.rank for each in held}))) if held else ShardOffer()


def _is_of(shard: Any, saved: SavedStep) -> bool:
    return (shard.step, shard.round) == (saved.step, saved.round)


def indexes(keeper: KeeperClient | None, saved: SavedStep, offers: Sequence[ShardOffer]) -> dict[int, ShardIndex]:
    """The indexes of all shards of a step, by the rank that saved them; all ranks call it."""
    here, own, holders = dist.get_rank(), {}, _holders(offers)
    for shard in offers[here].held:
        if here == holders[shard][shard % len(holders[shard])]:  # spread: all ranks take part with as many bytes
            assert keeper is not None
            with _opened(keeper, saved, shard) as slot:
                if slot is not None and (index := slot.index()) is not None:
                    own[shard] = index
    found = {shard: index for part in spread.gather(own) for shard, index in part.items()}
    return {shard: msgspec.json.decode(found[shard], type=ShardIndex) for shard in sorted(found)}


def overlapping(
    wanted: Iterable[Piece], names: Iterable[str], found: Mapping[int, ShardIndex], held: Collection[int]
) -> list[int]:
    """The shards that are needed for pieces, by the rank that saved them.

    Args:
        wanted: the pieces.
        names: tensors of which at least the shape is needed.
        found: the indexes of all shards.
        held: the shards that this rank has.
    """
    pieces: dict[str, list[Piece]] = {}
    for piece in wanted:
        pieces.setdefault(piece.name, []).append(piece)
    known: set[tuple[str, Shape, Shape]] = set()
    needed = []
    in_order = sorted(found.items(), key=lambda each: (each[0] not in held, each[0]))
    for shard, index in in_order:
        new = [piece for piece in index.pieces if (piece.name, piece.offset, piece.shape) not in known]
        if any(overlap(piece, target) for piece in new for target in pieces.get(piece.name, ())):
            known |= {(piece.name, piece.offset, piece.shape) for piece in new}
            needed.append(shard)
    shown = {piece.name for shard in {*needed, *held} if shard in found for piece in found[shard].pieces}
    for shard, index in in_order:
        others = {piece.name for piece in index.pieces} - shown
        if not others.isdisjoint(names):
            shown |= others
            needed.append(shard)
    return [shard for shard in needed if shard not in held]


def plan(offers: Sequence[ShardOffer], wanted: Sequence[Iterable[int]]) -> list[ShardFetch]:
    """The transfers, in order.

    Args:
        offers: what each rank can send.
        wanted: the shards that each rank needs, by the rank that saved them.
    """
    found, holders = [], _holders(offers)
    for rank, shards in enumerate(wanted):
        for shard in shards:
            if shard in holders:
                found.append(ShardFetch(rank, shard, holders[shard][rank % len(holders[shard])]))
    return found


def _holders(offers: Sequence[ShardOffer]) -> dict[int, list[int]]:
    """The ranks that can send each shard."""
    found: dict[int, list[int]] = {}
    for rank, offer in enumerate(offers):
        for shard in offer.held:
            found.setdefault(shard, []).append(rank)
    return found


def transfer(keeper: KeeperClient | None, saved: SavedStep, fetches: Sequence[ShardFetch]) -> list[StagingSlot]:
    """Send and receive shards; all ranks of the process group call it.

    Returns:
        The shards that this rank has received; the caller closes them.
    """
    received, here = [], dist.get_rank()
    for fetch in fetches:
        if here == fetch.sender:
            assert keeper is not None
            with _opened(keeper, saved, fetch.shard) as slot:
                _send(slot, fetch.rank)
        elif here == fetch.rank and (found := _receive(fetch.sender, saved)) is not None:
            received.append(found)
    return received


@contextlib.contextmanager
def _opened(keeper: KeeperClient, saved: SavedStep, rank: int) -> Iterator[StagingSlot | None]:
    shard = next((each for each in keeper.held() if _is_of(each, saved) and each.rank == rank), None)
    slot = keeper.read(shard.local_rank, shard.slot) if shard is not None else None
    try:
        yield slot
    finally:
        if shard is not None and slot is not None:
            slot.close()
            keeper.done(shard.local_rank, shard.slot)


def _send(slot: StagingSlot | None, rank: int) -> None:
    index = slot.index() if slot is not None else None
    if slot is None or index is None:
        spread.send_object(None, rank)
        return
    head = slot.header()
    with slot.data() as data:
        spread.send_object((index, len(data)), rank)
        for at in range(0, len(data), BATCH_BYTES):
            dist.send(_tensor(data[at : at + BATCH_BYTES]).to(spread.device_of()), dst=rank)
    spread.send_object(slot.header() == head, rank)


def _receive(sender: int, saved: SavedStep) -> StagingSlot | None:
    about: Any = spread.receive_object(sender)
    if about is None:
        return None
    index, size = about
    slot = _memory(staging.needed(len(index), size))
    data = slot.begin(size) if slot is not None else None
    for at in range(0, size, BATCH_BYTES):  # without memory as well: the sender must not wait
        found = torch.empty(min(BATCH_BYTES, size - at), dtype=torch.uint8, device=spread.device_of())
        dist.recv(found, src=sender)
        if data is not None:
            _tensor(data[at : at + len(found)]).copy_(found)
    is_valid = spread.receive_object(sender)
    if data is None or slot is None:
        return None
    data.release()
    if not is_valid:
        slot.close()
        return None
    slot.seal(index, saved.step, saved.round, time.monotonic_ns())
    return slot


def _memory(size: int) -> StagingSlot | None:
    with contextlib.suppress(OSError):
        fd = staging.create(size)
        try:
            return StagingSlot(fd)
        finally:
            os.close(fd)
    return None


def _tensor(data: memoryview) -> Any:
    """The memory as a tensor, without a copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is sent is read-only memory
        return torch.frombuffer(data, dtype=torch.uint8)

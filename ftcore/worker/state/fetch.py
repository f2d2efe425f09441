"""Fetches whole shards from the memory of other nodes, over the job's process group.

After the loss of a node, its ranks' shards exist as copies in the memory of other nodes. A rank of such a node sends
each one to the rank that has taken the place. The number of ranks must be the same.

House rules: ranks agree on all transfers before the first one, and make them in one order. A sender that cannot read a
shard says so instead. The received shard is held in memory of this process, beyond its own state, until it is loaded.
"""

import contextlib
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from ftcore.shm import staging
from ftcore.shm.staging import StagingSlot
from ftcore.worker._keeper import KeeperClient
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
        rank: the rank that receives its own shard.
        sender: the rank that sends it.
    """

    rank: int
    sender: int


def offered(keeper: KeeperClient | None, saved: SavedStep) -> ShardOffer:
    """What this rank can send of a step in memory."""
    held = [each for each in keeper.held() if _is_of(each, saved)] if keeper is not None else []
    return ShardOffer(held[0].ranks, tuple(sorted({each.rank for each in held}))) if held else ShardOffer()


def _is_of(shard: Any, saved: SavedStep) -> bool:
    return (shard.step, shard.round) == (saved.step, saved.round)


def plan(offers: Sequence[ShardOffer], lacking: Iterable[int]) -> list[ShardFetch]:
    """The transfers to ranks that cannot read their state, in order.

    Args:
        offers: what each rank can send.
        lacking: the ranks that lack their state.
    """
    found = []
    for rank in sorted(lacking):
        senders = [each for each, offer in enumerate(offers) if offer.ranks == len(offers) and rank in offer.held]
        if senders:
            found.append(ShardFetch(rank, senders[rank % len(senders)]))
    return found


def transfer(keeper: KeeperClient | None, saved: SavedStep, fetches: Sequence[ShardFetch]) -> StagingSlot | None:
    """Send and receive shards; all ranks of the process group call it.

    Returns:
        This rank's own shard; the caller closes it. None: it was not to be received, or was lost meanwhile.
    """
    received, here = None, dist.get_rank()
    for fetch in fetches:
        if here == fetch.sender:
            assert keeper is not None
            with _opened(keeper, saved, fetch.rank) as slot:
                _send(slot, fetch.rank)
        elif here == fetch.rank:
            received = _receive(fetch.sender, saved)
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
        dist.send_object_list([None], dst=rank, device=_device())
        return
    head = slot.header()
    with slot.data() as data:
        dist.send_object_list([(index, len(data))], dst=rank, device=_device())
        for at in range(0, len(data), BATCH_BYTES):
            dist.send(_tensor(data[at : at + BATCH_BYTES]).to(_device()), dst=rank)
    dist.send_object_list([slot.header() == head], dst=rank, device=_device())


def _receive(sender: int, saved: SavedStep) -> StagingSlot | None:
    about: Any = _object_from(sender)
    if about is None:
        return None
    index, size = about
    slot = _memory(staging.needed(len(index), size))
    data = slot.begin(size) if slot is not None else None
    for at in range(0, size, BATCH_BYTES):  # without memory as well: the sender must not wait
        found = torch.empty(min(BATCH_BYTES, size - at), dtype=torch.uint8, device=_device())
        dist.recv(found, src=sender)
        if data is not None:
            _tensor(data[at : at + len(found)]).copy_(found)
    is_valid = _object_from(sender)
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


def _object_from(sender: int) -> Any:
    found: list[Any] = [None]
    dist.recv_object_list(found, src=sender, device=_device())
    return found[0]


def _tensor(data: memoryview) -> Any:
    """The memory as a tensor, without a copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is sent is read-only memory
        return torch.frombuffer(data, dtype=torch.uint8)


def _device() -> Any:
    backend = str(dist.get_backend())
    uses_cuda = "nccl" in backend and "gloo" not in backend
    return torch.device("cuda", torch.cuda.current_device()) if uses_cuda else torch.device("cpu")

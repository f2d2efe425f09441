"""Takes copies of other nodes' shards into the memory of this node.

Each connection is served by a thread. A copy is written beside the newest complete one of the same rank, and counts
when its checksum was compared. A sender that dies or stops leaves nothing that counts.

House rules: the slots belong to the event loop; a thread asks it for one, and gives it back. Nothing is reported here:
the sender receives the reason of a refusal, and reports it once.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from ftcore.runtime.keeper import copy_wire
from ftcore.runtime.keeper.config import KeeperConfig
from ftcore.runtime.keeper.copy_wire import CopyFailed, CopyOffer, CopyOwner
from ftcore.runtime.keeper.slots import KeptSlot, MemoryRefused, ShardOrigin, SlotMemory
from ftcore.shm.staging import needed

SENDERS_MAX: Final = 16
"""Connections that are served at a time; more are closed, and tried again by their senders."""

INDEX_BYTES_MAX: Final = 1 << 30

T = TypeVar("T")


class CopyReceiver:
    """Takes copies; made in the event loop.

    Args:
        slots: the staging memory.
        listener: the listening TCP socket; None: no copies are taken.
    """

    def __init__(self, slots: SlotMemory, listener: socket.socket | None) -> None:
        self._slots = slots
        self._loop = asyncio.get_running_loop()
        self._config: KeeperConfig | None = None
        self._wards: frozenset[str] = frozenset()
        self._threads = ThreadPoolExecutor(SENDERS_MAX, "receive")
        self._free = threading.BoundedSemaphore(SENDERS_MAX)
        self._listener = listener
        if listener is not None:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept)

    def configure(self, config: KeeperConfig) -> None:
        """Use this job and its secrets from now on."""
        self._config = config

    def take_from(self, wards: frozenset[str]) -> None:
        """Take copies from these nodes alone from now on; what is held of others stays as long as it may be needed."""
        self._wards = wards

    def close(self) -> None:
        """Take no more copies."""
        self._wards = frozenset()
        if self._listener is not None:
            self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            channel, _ = self._listener.accept()
        except OSError:
            return
        if self._config is None or not self._free.acquire(blocking=False):
            channel.close()
            return
        self._threads.submit(self._serve, channel, self._config)

    # -- threads

    def _serve(self, channel: socket.socket, config: KeeperConfig) -> None:
        try:
            with copy_wire.accepted(channel, config.access, config.peer_s) as peer:
                me = CopyOwner(job=config.job, log=config.log, node=config.node)
                node = copy_wire.receive_greeting(peer, me, lambda name: name in self._wards, config.access.token)
                self._take(peer, node)
        except CopyFailed:
            pass  # the sender knows it, or has ended
        finally:
            self._free.release()

    def _take(self, peer: socket.socket, node: str) -> None:
        offer = copy_wire.receive_offer(peer)
        if offer.index > INDEX_BYTES_MAX:
            raise copy_wire.refused(peer, f"an index of {offer.index} bytes is too large")
        try:
            kept = self._in_loop(lambda: self._begin(node, offer))
        except MemoryRefused as error:
            raise copy_wire.refused(peer, str(error)) from error
        try:
            self._fill(peer, kept, offer)
        finally:
            self._in_loop(lambda: self._end(kept))
        copy_wire.confirm(peer)

    def _fill(self, peer: socket.socket, kept: KeptSlot, offer: CopyOffer) -> None:
        index = bytearray(offer.index)
        with kept.slot.begin(offer.data) as data:
            copy_wire.receive_copy(peer, memoryview(index), data)
        try:
            origin = msgspec.json.decode(index, type=ShardOrigin)
        except msgspec.DecodeError as error:
            raise copy_wire.refused(peer, f"its index cannot be read: {error}") from error
        if (origin.round, origin.step) != (offer.round, offer.step):
            raise copy_wire.refused(peer, "its index is of another step")
        kept.slot.seal(bytes(index), offer.step, offer.round, time.monotonic_ns())

    def _in_loop(self, work: Callable[[], T]) -> T:
        async def call() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    # -- event loop

    def _begin(self, node: str, offer: CopyOffer) -> KeptSlot:
        kept = self._slots.incoming(node, offer.local_rank, needed(offer.index, offer.data))
        kept.pin(queued=1)
        return kept

    def _end(self, kept: KeptSlot) -> None:
        kept.pin(queued=-1)
        self._slots.tidy()

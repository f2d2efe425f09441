"""The keeper's part in copies of shards on other nodes: it sends its own, and takes those of others."""

import socket
from collections.abc import Callable
from typing import Any

from ftcore.runtime.keeper.config import BuddyPlan, KeeperConfig
from ftcore.runtime.keeper.copier import Copier
from ftcore.runtime.keeper.receiver import CopyReceiver
from ftcore.runtime.keeper.slots import COPIED_SLOTS, SLOTS, SPARE, KeptSlot, MemoryRefused, SlotMemory


class NodeCopies:
    """Copies from and to this node; made in the event loop.

    Args:
        slots: the staging memory.
        report: called with a message to the agent.
        listener: the listening TCP socket; None: no copies are taken.
    """

    def __init__(
        self, slots: SlotMemory, report: Callable[[dict[str, Any]], None], listener: socket.socket | None
    ) -> None:
        self._slots, self._report = slots, report
        self._copier, self._receiver = Copier(slots, report), CopyReceiver(slots, listener)
        self._said = ""

    def configure(self, config: KeeperConfig) -> None:
        """Use this job and its secrets from now on."""
        self._copier.configure(config)
        self._receiver.configure(config)

    def plan(self, plan: BuddyPlan) -> None:
        """Copy to and from these nodes from now on."""
        self._copier.plan(plan)
        self._receiver.take_from(frozenset(plan.wards))

    def sealed(self, kept: KeptSlot) -> None:
        """A worker has sealed a shard."""
        self._copier.sealed(kept)

    def pair(self, local_rank: int, size: int, *, fresh: bool, copied: bool, others: int = 0) -> tuple[KeptSlot, ...]:
        """Return the slots of a local rank, more of them if its shards are copied; see ``SlotMemory.pair``.

        Args:
            local_rank: the local rank.
            size: the least size of each, in bytes.
            fresh: make new ones.
            copied: its shards are copied to other nodes.
            others: number of other local ranks that have no slots yet; a spare one leaves memory for them.

        Raises:
            MemoryRefused: there is no memory for ``SLOTS`` of them.
        """
        if copied and self._copier.active:
            try:
                return self._slots.pair(local_rank, size, fresh=fresh, count=COPIED_SLOTS)
            except MemoryRefused as error:
                if str(error) != self._said:
                    self._said = str(error)
                    why = (
                        f"{error}; with {SLOTS}, copies that take longer than the time between two saves are of no use"
                    )
                    self._report({"note": why})
        self._slots.pair(local_rank, size, fresh=fresh)
        # A call of its own: no shard is given up for a spare slot.
        return self._slots.pair(local_rank, size, count=SLOTS + SPARE, leave=SLOTS * others * size)

    def close(self) -> None:
        """Send and take no more copies."""
        self._copier.close()
        self._receiver.close()

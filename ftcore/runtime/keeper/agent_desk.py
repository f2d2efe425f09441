"""The keeper's side of its agent: configuration, requests, reports.

The first message on the control channel is the configuration (``KeeperConfig``). Requests have an ``id``, which the
answer repeats:

| request | answer |
|---|---|
| ``{"held": 1}`` | ``{"held": [shard, ...]}`` |
| ``{"queues": 1}`` | ``{"queues": 1}``, after a report of each reader of a data queue that has something to say |
| ``{"stage": round}`` | ``{"staged": [{"rank", "step"} or {"rank", "error"}, ...]}`` |
| ``{"persist": {"round", "step", "ranks"}}`` | ``{"persisted": [shard, ...], "failed": [{"rank", "error"}, ...]}`` |
| ``{"written": round}`` | ``{"failed": [{"rank", "error"}, ...]}``, when no shard of the round waits to be written |
| ``{"commit": {"round", "step", "files"}}`` | ``{"committed": {"path", "bytes", "seconds"}}`` or ``{"error": text}`` |

``{"copies": BuddyPlan}`` names the nodes to and from which shards are copied from now on. ``{"lease": ...}`` has data
shards for a worker. ``{"bye": outcome}`` ends the connection. The keeper reports by itself: ``{"persisted": shard}``,
``{"failed": shard}``, ``{"loaded": ...}``, ``{"skipped": ...}``, ``{"positioned": ...}``, ``{"queue": ...}``,
``{"replicas": {"round", "groups"}}`` and ``{"note": text}``.
``{"committed": {"round", "step", "path"}}`` is a checkpoint that no agent has ordered; the shards of one are not
reported as well.

House rules: a request never delays another one. What is reported while there is no agent waits for the next one: a
checkpoint may be complete with it.
"""

import asyncio
from collections import deque
from typing import Any, Final

import msgspec

from ftcore.runtime.keeper.config import BuddyPlan, KeeperConfig
from ftcore.runtime.keeper.copies import NodeCopies
from ftcore.runtime.keeper.orders import StageOrders
from ftcore.runtime.keeper.peer import Peer
from ftcore.runtime.keeper.persist import Persister
from ftcore.runtime.keeper.queues import QueueRelay
from ftcore.runtime.keeper.slots import KeptSlot, SlotMemory
from ftcore.shm import messages

SETTLE_S: Final = 1.0
"""How long a successor waits until the end of its predecessor is noticed, in seconds."""

UNTOLD_MAX: Final = 1000
"""Reports that wait for an agent; older ones are dropped."""


class AgentDesk:
    """Serves one agent at a time.

    Args:
        slots: the staging memory.
        orders: orders to workers.
        persister: writes to storage.
        copies: copies from and to other nodes.
        queues: the workers that read data queues.
    """

    def __init__(
        self, slots: SlotMemory, orders: StageOrders, persister: Persister, copies: NodeCopies, queues: QueueRelay
    ) -> None:
        self._slots, self._orders, self._persister, self._copies = slots, orders, persister, copies
        self._queues = queues
        self._configured = asyncio.Event()
        self._left = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._untold: deque[dict[str, Any]] = deque(maxlen=UNTOLD_MAX)
        self._greeted = False
        self.peer: Peer | None = None
        """The agent; None: there is none."""
        self.config: KeeperConfig | None = None

    @property
    def empty(self) -> bool:
        """Whether there is no agent."""
        return self.peer is None

    @property
    def linger_s(self) -> float:
        """How long the memory is kept without an agent, in seconds; 0 if no agent ever used it."""
        return self.config.linger_s if self.config is not None else 0.0

    def seat(self, peer: Peer) -> None:
        """Serve this agent from now on."""
        self.peer, self._greeted = peer, False
        self._left.clear()

    async def settled(self) -> None:
        """Wait a moment for the end of an agent that has just died."""
        if self.peer is not None:
            try:
                await asyncio.wait_for(self._left.wait(), SETTLE_S)
            except TimeoutError:
                return

    async def configured(self) -> KeeperConfig:
        """Wait for the configuration."""
        await self._configured.wait()
        assert self.config is not None
        return self.config

    def tell(self, message: dict[str, Any]) -> None:
        """Report to the agent, or to the next one if there is none."""
        if self.peer is not None and self._greeted:
            self.peer.send(message)
        else:
            self._untold.append(message)

    async def serve(self) -> str | None:
        """Serve the agent until it says goodbye, or dies; returns its outcome, None if it died."""
        peer = self.peer
        assert peer is not None
        try:
            while True:
                message, fds = await peer.receive()
                messages.close_all(fds)
                if message is None:
                    return None
                if "bye" in message:
                    return str(message["bye"])
                if "id" in message:
                    self._go(self._answer(peer, message))
                elif "lease" in message:
                    self._queues.deliver(message["lease"])
                elif "copies" in message:
                    self._copies.plan(msgspec.convert(message["copies"], BuddyPlan))
                else:
                    self._configure(peer, message)
        except (ValueError, LookupError, TypeError) as error:  # an agent of another version
            peer.send({"note": f"the keeper does not understand its agent: {error}"})
            return None
        finally:
            peer.close()
            self.peer = None
            self._left.set()

    def _configure(self, peer: Peer, message: dict[str, Any]) -> None:
        self.config = msgspec.convert(message, KeeperConfig)
        self._slots.limit = self.config.memory
        self._persister.configure(self.config)
        self._copies.configure(self.config)
        self._configured.set()
        self._greeted = True
        committed = [_moment(told["committed"]) for told in self._untold if "committed" in told]
        while self._untold:
            told = self._untold.popleft()
            if "persisted" not in told or _moment(told["persisted"]) not in committed:
                peer.send(told)

    async def _answer(self, peer: Peer, message: dict[str, Any]) -> None:
        try:
            answer = await self._answered(message)
        except (ValueError, LookupError, TypeError) as error:
            answer = {"error": f"the keeper does not understand this request: {error}"}
        peer.send({"id": message["id"], **answer})

    async def _answered(self, message: dict[str, Any]) -> dict[str, Any]:
        if "held" in message:
            return {"held": self._slots.held()}
        if "queues" in message:
            self._queues.flush()
            return {"queues": 1}
        if "stage" in message:
            return {"staged": await self._orders.stage(int(message["stage"]))}
        if "persist" in message:
            return await self._persist(message["persist"])
        if "written" in message:
            failed = await self._persister.written(int(message["written"]))
            return {"failed": [result.message() for result in failed]}
        if "commit" in message:
            order = message["commit"]
            return await self._persister.commit(int(order["round"]), int(order["step"]), list(order["files"]))
        raise LookupError("unknown request")

    async def _persist(self, order: dict[str, Any]) -> dict[str, Any]:
        """Write the shards of some ranks; a rank whose shard is not held is a failure."""
        wanted = [int(rank) for rank in order["ranks"]]
        found: dict[int, KeptSlot] = {}
        for kept in self._slots.sealed():
            origin = kept.origin()
            if origin is not None and (origin.round, origin.step) == (order["round"], order["step"]) and origin.tensors:
                found.setdefault(origin.rank, kept)  # copies are last
        absent = [
            {"rank": rank, "error": f"step {order['step']} is not in memory any more"}
            for rank in wanted
            if rank not in found
        ]
        results = await asyncio.gather(*(self._persister.persist(found[rank]) for rank in wanted if rank in found))
        failed = [result.message() for result in results if result.error]
        return {"persisted": [each.message() for each in results if not each.error], "failed": absent + failed}

    def _go(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _moment(about: dict[str, Any]) -> tuple[int, int]:
    return about["round"], about["step"]

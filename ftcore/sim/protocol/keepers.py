"""Simulated keepers: the staged state of ranks, in memory that outlives workers and agent, and on shared storage.

Each node has one keeper, with two slots per local rank and a spare one. It survives the workers and the agent, and is
lost with the host. A worker that needs one starts it, as long as the agent lives. Requests, reports and limits are
those of ``runtime/keeper``; a keeper writes one shard at a time. Not simulated: manifests that a keeper writes without
an agent, and copies of shards on other nodes.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from ftcore.errors import Refused
from ftcore.policies.file.job_options import CheckpointOptions
from ftcore.runtime.agent.checkpoints import NodeCheckpoints
from ftcore.runtime.agent.keeper_link import ANSWER_S, STAGE_S, STORAGE_S
from ftcore.runtime.keeper.config import LINGER_S, BuddyPlan
from ftcore.sim.protocol.clock import Scheduler, Work, ns
from ftcore.sim.protocol.hosts import Process, settle

KEPT: Final = CheckpointOptions().kept
"""Checkpoints that retention keeps."""

Moment = tuple[int, int]
"""Round and step."""


@attrs.frozen(kw_only=True)
class SimShard:
    """Where a shard comes from; see ``events.checkpoint.HeldShard``."""

    rank: int
    local_rank: int
    round: int
    step: int
    group: int
    groups: int
    ranks: int
    tensors: bool

    @property
    def moment(self) -> Moment:
        """Round and step."""
        return self.round, self.step

    def message(self) -> dict[str, Any]:
        """The fields of a message to the agent."""
        return {**attrs.asdict(self), "copy": False}


@attrs.define
class Slot:
    """A slot of a local rank; ``pin`` is 2 while its shard is read, 1 while it waits for it."""

    shard: SimShard | None = None
    sealed: bool = False
    damaged: bool = False
    sequence: int = 0
    pin: int = 0


@attrs.define
class SimStoredShard:
    """A shard on storage."""

    origin: SimShard
    damaged: bool


class SimStorage:
    """The storage that all nodes share.

    Args:
        chance: random generator of durations.

    Attributes:
        slow: factor of all durations.
        full: writes fail.
        gone: everything fails.
        shards: shards by checkpoint and file.
        manifests: complete checkpoints.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.slow = 1.0
        self.full = self.gone = False
        self.shards: dict[Moment, dict[str, SimStoredShard]] = {}
        self.manifests: dict[Moment, tuple[str, ...]] = {}

    def duration_ns(self) -> int:
        """Duration of an operation."""
        return ns(self._chance.uniform(0.02, 0.3) * self.slow)

    def problem(self, *, writes: bool = True) -> str:
        """Why an operation fails; empty: it succeeds."""
        if self.gone:
            return "simulated: the storage is unavailable"
        return "simulated: no space" if self.full and writes else ""

    def commit(self, moment: Moment, files: Sequence[str]) -> str:
        """Write a manifest, and remove what retention does not keep; returns why that failed."""
        missing = [name for name in files if name not in self.shards.get(moment, {})]
        if problem := self.problem() or (f"simulated: {missing[0]} is missing" if missing else ""):
            return problem
        self.manifests[moment] = tuple(files)
        live: list[Moment] = []
        for each in sorted(self.manifests, reverse=True):
            if not live or each[1] < live[-1][1]:
                live.append(each)
        for each in self.manifests.keys() - set(live[:KEPT]):
            del self.manifests[each], self.shards[each]
        return ""


class SimKeeper:
    """A keeper.

    Args:
        clock: virtual time.
        chance: random generator of delays.
        storage: the storage.
        stores: the job has a storage; False: nothing is written.

    Attributes:
        slots: the slots by local rank.
        client: its agent; None: there is none.
        hung: it does nothing.
        log: the identity of the log of its memory.
    """

    def __init__(self, clock: Scheduler, chance: random.Random, storage: SimStorage, *, stores: bool) -> None:
        self._clock, self._chance, self._storage, self._stores = clock, chance, storage, stores
        self.slots: dict[int, tuple[Slot, ...]] = {}
        self.alive, self.hung = True, False
        self.log = ""
        self.client: SimKeeperClient | None = None
        self._held: list[Work] = []
        self._untold: list[tuple[str, dict[str, Any]]] = []
        self._queue: deque[tuple[Slot, SimShard, int]] = deque()
        self._writing = False
        self._last: dict[int, dict[str, Any]] = {}
        self._idle: list[Work] = []

    # -- life

    def after(self, delay_ns: int, work: Work) -> None:
        """Schedule work of the keeper; it is delayed while the keeper hangs, and dropped with it."""
        self._clock.after(delay_ns, lambda: self._do(work))

    def _do(self, work: Work) -> None:
        if self.hung:
            self._held.append(work)
        elif self.alive:
            work()

    def request(self, work: Work) -> None:
        """Serve a request soon."""
        self.after(ns(self._chance.uniform(0.0005, 0.01)), work)

    def resume(self) -> None:
        """Stop hanging."""
        self.hung = False
        held, self._held = self._held, []
        for work in held:
            self._do(work)

    def kill(self) -> None:
        """End, and lose the memory."""
        self.alive = False
        if self.client is not None:
            self.client.lost(self)

    def leave_alone(self) -> None:
        """Note the death of the agent: write the newest shards, and end after some time without another agent."""
        self.client = None
        self.save_newest()
        self._clock.after(ns(LINGER_S), lambda: self.kill() if self.client is None else None)

    def save_newest(self) -> None:
        """Write the newest shard of each replica group."""
        newest = max((shard.moment for _, shard in self.sealed()), default=None)
        for slot, shard in self.sealed():
            if shard.moment == newest and shard.tensors:
                self.persist(slot)

    def adopt(self, client: "SimKeeperClient") -> None:
        """Serve an agent."""
        self.client = client
        untold, self._untold = self._untold, []
        for kind, message in untold:
            self.tell(kind, message)

    def tell(self, kind: str, message: dict[str, Any]) -> None:
        """Report to the agent, or to the next one if there is none."""
        if self.client is None:
            self._untold.append((kind, message))
        else:
            self.client.told(kind, message)

    # -- memory

    def sealed(self) -> list[tuple[Slot, SimShard]]:
        """The slots with complete shards."""
        return [
            (slot, slot.shard)
            for _, pair in sorted(self.slots.items())
            for slot in pair
            if slot.sealed and slot.shard is not None
        ]

    def begin(self, shard: SimShard) -> Slot:
        """Begin to stage a shard, over the one that is needed least."""
        pair = self.slots.setdefault(shard.local_rank, (Slot(), Slot(), Slot()))
        newest = max(pair, key=lambda slot: slot.shard.moment if slot.shard is not None and slot.sealed else (-1, -1))

        def need(each: Slot) -> tuple[int, bool, bool, Moment]:
            return (
                each.pin,
                each is newest,
                not each.sequence,
                each.shard.moment if each.shard is not None else (-1, -1),
            )

        slot = min(pair, key=need)
        slot.shard, slot.sealed, slot.damaged, slot.sequence = shard, False, False, slot.sequence + 1
        return slot

    def drop(self, above: int, before: int) -> None:
        """Forget the shards of rounds before ``before`` with a step above ``above``, unless they are being read."""
        for slot, shard in self.sealed():
            if shard.round < before and shard.step > above and not slot.pin:
                slot.sealed = False

    # -- storage

    def persist(self, slot: Slot) -> None:
        """Write a complete shard, after those that wait."""
        if not self._stores:
            return
        assert slot.shard is not None
        entry = (slot, slot.shard, slot.sequence)
        if all(other[0] is not slot or other[2] != slot.sequence for other in self._queue):
            slot.pin = max(slot.pin, 1)
            self._queue.append(entry)
            self._write_next()

    def _write_next(self) -> None:
        if self._writing or not self._queue:
            return
        self._writing = True
        slot, shard, sequence = self._queue[0]
        if slot.sequence != sequence:
            self.after(0, lambda: self._written("a newer save overwrote it before it was written"))
            return
        slot.pin = 2
        self.after(self._storage.duration_ns(), lambda: self._write(slot, shard, sequence))

    def _write(self, slot: Slot, shard: SimShard, sequence: int) -> None:
        problem = self._storage.problem()
        if not problem and slot.sequence != sequence:
            problem = "a newer save overwrote it"
        if not problem:
            files = self._storage.shards.setdefault(shard.moment, {})
            files[_file(shard)] = SimStoredShard(shard, slot.damaged)
        self._written(problem)

    def _written(self, problem: str) -> None:
        slot, shard, _ = self._queue.popleft()
        slot.pin = int(any(other[0] is slot for other in self._queue))
        self._writing = False
        message = {**shard.message(), "file": _file(shard), "bytes": 1, "seconds": 0.1}
        del message["tensors"]
        if problem:
            message = {"round": shard.round, "step": shard.step, "rank": shard.rank, "error": problem}
        self._last[shard.rank] = message
        self.tell("failed" if problem else "persisted", message)
        self._write_next()
        if not self._queue:
            idle, self._idle = self._idle, []
            for work in idle:
                work()

    def when_idle(self, work: Work) -> None:
        """Do something when no shard waits to be written."""
        if self._queue:
            self._idle.append(work)
        else:
            work()

    def failures(self, round_: int, ranks: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """The newest failures of a round."""
        found = (self._last[rank] for rank in sorted(self._last) if ranks is None or rank in ranks)
        return [last for last in found if last["round"] == round_ and "error" in last]

    def commit(self, moment: Moment, files: Sequence[str], done: Callable[[str], None]) -> None:
        """Write a manifest."""
        self.after(self._storage.duration_ns(), lambda: done(self._storage.commit(moment, files)))


def _file(shard: SimShard) -> str:
    return f"shard-{shard.rank:05}-of-{shard.ranks:05}"


class SimKeeperClient:
    """An agent's keeper; see ``runtime.agent.checkpoints.KeeperClientPort``.

    Args:
        process: the agent.
        keeper: the keeper of its predecessor, if one lives.
        stage_now: lets the living workers of a round stage; returns ``rank`` with ``step`` or ``error``.
    """

    def __init__(
        self, process: Process, keeper: SimKeeper | None, stage_now: Callable[[int], list[dict[str, Any]]]
    ) -> None:
        self._process, self._stage_now = process, stage_now
        self._answers: list[asyncio.Future[Any]] = []
        self._log = keeper.log if keeper is not None else ""
        self.keeper: SimKeeper | None = keeper
        self.checkpoints: NodeCheckpoints | None = None

    def begin(self, checkpoints: NodeCheckpoints) -> None:
        """Report to this object from now on."""
        self.checkpoints = checkpoints
        if self.keeper is not None:
            self.keeper.adopt(self)

    def serve(self, keeper: SimKeeper) -> None:
        """Use a keeper that a worker has started."""
        self.keeper, keeper.log = keeper, self._log
        keeper.adopt(self)

    def lost(self, keeper: SimKeeper) -> None:
        """The keeper has ended."""
        if self.keeper is not keeper:
            return
        self.keeper = None
        answers, self._answers = self._answers, []

        def refuse() -> None:
            for answer in answers:
                if not answer.done():
                    answer.set_exception(Refused("the keeper of this node has ended"))

        self._process.wake_for(refuse)

    def told(self, kind: str, message: dict[str, Any]) -> None:
        """Receive a report of the keeper."""
        checkpoints = self.checkpoints
        assert checkpoints is not None
        take = {
            "persisted": checkpoints.on_persisted,
            "failed": checkpoints.on_failed,
            "loaded": checkpoints.on_loaded,
        }[kind]
        self._process.wake_for(lambda: take(message))

    def died(self) -> None:
        """The agent has ended without a goodbye."""
        if self.keeper is not None:
            self.keeper.leave_alone()

    def bye(self) -> None:
        """End the keeper when it has written what it holds."""
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            keeper.client = None
            keeper.save_newest()
            keeper.when_idle(keeper.kill)

    # -- KeeperClientPort

    @property
    def alive(self) -> bool:
        """See ``KeeperClientPort``."""
        return self.keeper is not None

    @property
    def log(self) -> str:
        """See ``KeeperClientPort``."""
        return self._log

    @property
    def copies_port(self) -> int:
        """See ``KeeperClientPort``."""
        return 0

    def copy(self, plan: BuddyPlan) -> None:
        """See ``KeeperClientPort``."""

    def configure(self, log: str) -> None:
        """See ``KeeperClientPort``."""
        self._log = log
        if self.keeper is not None:
            self.keeper.log = log

    async def held(self) -> list[dict[str, Any]]:
        """See ``KeeperClientPort``."""
        found: list[dict[str, Any]] = await self._ask(
            lambda keeper, done: done([shard.message() for _, shard in keeper.sealed()]), ANSWER_S
        )
        return found

    async def queues(self) -> None:
        """See ``KeeperClientPort``: simulated workers read no data queue."""

    def lease(self, message: Mapping[str, Any]) -> None:
        """See ``KeeperClientPort``: simulated workers read no data queue."""

    async def stage(self, round_: int) -> list[dict[str, Any]]:
        """See ``KeeperClientPort``."""
        staged: list[dict[str, Any]] = await self._ask(lambda keeper, done: done(self._stage_now(round_)), STAGE_S)
        return staged

    async def persist(self, round_: int, step: int, ranks: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """See ``KeeperClientPort``."""

        def serve(keeper: SimKeeper, done: Callable[[Any], None]) -> None:
            found = {
                shard.rank: slot
                for slot, shard in keeper.sealed()
                if shard.moment == (round_, step) and shard.tensors and shard.rank in ranks
            }
            for slot in found.values():
                keeper.persist(slot)
            absent = [{"rank": rank, "error": "it is not in memory any more"} for rank in ranks if rank not in found]
            keeper.when_idle(lambda: done(([], [*absent, *keeper.failures(round_, list(found))])))

        persisted, failed = await self._ask(serve, STORAGE_S)
        return persisted, failed

    async def written(self, round_: int) -> list[dict[str, Any]]:
        """See ``KeeperClientPort``."""
        failed: list[dict[str, Any]] = await self._ask(
            lambda keeper, done: keeper.when_idle(lambda: done(keeper.failures(round_))), STORAGE_S
        )
        return failed

    async def commit(self, round_: int, step: int, files: Sequence[str]) -> dict[str, Any]:
        """See ``KeeperClientPort``."""
        problem = await self._ask(lambda keeper, done: keeper.commit((round_, step), files, done), STORAGE_S)
        if problem:
            raise Refused(problem)
        return {"path": f"simulated/step-{step:09}-r{round_}", "bytes": 1, "seconds": 0.1}

    async def _ask(self, serve: Callable[[SimKeeper, Callable[[Any], None]], None], within_s: float) -> Any:
        keeper = self.keeper
        if keeper is None:
            raise Refused("this node has no keeper")
        answer = self._process.loop.create_future()
        self._answers.append(answer)

        def done(result: Any) -> None:
            self._process.wake_for(lambda: settle(answer, result))

        keeper.request(lambda: serve(keeper, done))
        try:
            return await asyncio.wait_for(answer, within_s)
        except TimeoutError:
            raise Refused(f"the keeper of this node did not answer within {within_s:g} s") from None
        finally:
            if answer in self._answers:
                self._answers.remove(answer)

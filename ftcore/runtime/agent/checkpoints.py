"""The agent's part in checkpoints: carries out orders to the keeper, and reports what the keeper holds and writes.

| order | carried out by |
|---|---|
| ``SaveCheckpoint`` at a step boundary | the workers stage there (``workers/boundary.py``), then the keeper writes it |
| ``SaveCheckpoint`` that holds the workers | the workers stage there |
| ``SaveCheckpoint`` elsewhere | the living workers stage what is complete; other ranks are dead |
| ``PersistShards``, ``CommitCheckpoint`` | the keeper |
| ``ParkWorkers`` | the workers; what they have staged is reported as after a stop |

House rules: a keeper that does not answer delays no order to the workers, and fails the order alone. What the keeper
reports is a fact at once: the master combines the facts of all nodes. What it reports before the agent has joined, for
example what it wrote while there was no agent, waits for ``node.joined``.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from ftcore.commands import CommitCheckpoint, ParkWorkers, PersistShards, SaveCheckpoint
from ftcore.engine.orders import Slice
from ftcore.errors import FtcoreError, Refused
from ftcore.events.checkpoint import (
    BatchesSkipped,
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointFound,
    CheckpointOnStorage,
    DataPositioned,
    HeldShard,
    MemoryHeld,
    ReplicasFound,
    ShardPersisted,
    StateLoaded,
)
from ftcore.ids import Round
from ftcore.ports import Performed, Performer
from ftcore.runtime.agent.queues import NodeQueues
from ftcore.runtime.keeper.config import BuddyAddress, BuddyPlan
from ftcore.runtime.keeper.search import FoundOnStorage

REASON_CHARS_MAX = 300
"""Length to which reasons in facts are truncated."""

REFUSED_MAX = 8
SKIPPED_MAX = 1000
"""Candidates for a resume that ``state.loaded`` names."""


class KeeperClientPort(Protocol):
    """What the agent asks its keeper; see ``keeper_link.KeeperLink``. Every call raises ``FtcoreError`` on failure."""

    @property
    def alive(self) -> bool:
        """Whether a keeper runs."""

    @property
    def log(self) -> str:
        """The identity of the log of the keeper's memory; empty: it has none yet."""

    @property
    def copies_port(self) -> int:
        """The TCP port at which the keeper takes copies of other nodes' shards; 0: it takes none."""

    def copy(self, plan: BuddyPlan) -> None:
        """Copy shards to and from these nodes from now on."""

    def configure(self, log: str) -> None:
        """Name the log of the job; a keeper with the memory of another log is replaced."""

    async def held(self) -> list[dict[str, Any]]:
        """The complete shards in memory."""

    async def queues(self) -> None:
        """Report at once what the workers have said about their data queues, those that have ended included."""

    def lease(self, message: Mapping[str, Any]) -> None:
        """Hand data shards to a worker; see ``keeper.queues``."""

    async def stage(self, round_: int) -> list[dict[str, Any]]:
        """Let all living workers stage what is complete: ``rank`` with ``step`` or ``error``."""

    async def persist(self, round_: int, step: int, ranks: Sequence[int]) -> tuple[list[Any], list[Any]]:
        """Write shards to storage: those written, and those that failed."""

    async def written(self, round_: int) -> list[dict[str, Any]]:
        """Wait until no shard of a round waits to be written; returns those that failed meanwhile."""

    async def commit(self, round_: int, step: int, files: Sequence[str]) -> dict[str, Any]:
        """Write a manifest: ``path``, ``bytes``, ``seconds``."""


class NodeCheckpoints:
    """Checkpoints of one node.

    Args:
        keeper: the node's keeper; None: it has none.
        keep: how many of the newest checkpoints retention keeps; 0: all.
        keep_every: retention also keeps the first checkpoint of every so many steps; 0: no others.

    Attributes:
        queues: the node's part in data queues.
    """

    def __init__(self, keeper: KeeperClientPort | None = None, keep: int = 0, keep_every: int = 0) -> None:
        self._keeper = keeper
        self.queues = NodeQueues(lambda message: keeper.lease(message) if keeper is not None else None)
        self._keep, self._keep_every = keep, keep_every
        self._record: Callable[[Any], None] = lambda fact: None
        self._reports: list[Callable[[], None]] = []
        self._has_joined = self._is_welcomed = False
        self._found: list[FoundOnStorage] = []
        self._who: Callable[[], tuple[str, str]] = lambda: ("", "")
        self._held: list[dict[str, Any]] = []
        self._loaded: dict[int, dict[int, dict[str, Any]]] = {}
        self._skipped: dict[tuple[int, int], set[int]] = {}
        self._of_workers: Mapping[type[Any], Performer] = {}

    def attach(self, record: Callable[[Any], None], who: Callable[[], tuple[str, str]]) -> None:
        """Report facts of the keeper from now on.

        Args:
            record: records a fact.
            who: returns the node and the incarnation of the agent.
        """
        self._record, self._who = record, who
        self.queues.attach(record, who, self._report)

    def performers(self, others: Mapping[type[Any], Performer]) -> dict[type[Any], Performer]:
        """The performers of orders, with those of this object if there is a keeper."""
        if self._keeper is None:
            return dict(others)
        self._of_workers = others
        parks = (ParkWorkers,) if ParkWorkers in others else ()
        return {**others, **dict.fromkeys((SaveCheckpoint, PersistShards, CommitCheckpoint, *parks), self)}

    def welcomed(self, log: str) -> None:
        """A master has named the log of the job: what the keeper and the storage have of this log is reported."""
        if self._keeper is None:
            return
        if self._keeper.log not in ("", log):
            self._reports = []  # about a log that was replaced
        self._keeper.configure(log)
        self._is_welcomed = True
        found = tuple(
            CheckpointOnStorage(round=each.round, step=each.step, where=each.where)
            for each in self._found
            if each.log == log
        )
        self._found = []
        if found:
            self._report(lambda: self._on_storage(found))
        self._report_waiting()

    def _on_storage(self, found: tuple[CheckpointOnStorage, ...]) -> None:
        node, life = self._who()
        self._record(CheckpointFound(node=node, incarnation=life, checkpoints=found))

    def _report(self, report: Callable[[], None]) -> None:
        """Report something of the keeper once the agent has joined, and it is known that it is of the job's log."""
        self._reports.append(report)
        self._report_waiting()

    def _report_waiting(self) -> None:
        if self._has_joined and self._is_welcomed:
            reports, self._reports = self._reports, []
            for report in reports:
                report()

    @property
    def copies_port(self) -> int:
        """The TCP port at which this node takes copies; 0: it takes none."""
        return self._keeper.copies_port if self._keeper is not None else 0

    def begin_round(self, part: Slice) -> None:
        """Copy shards to and from the nodes that this round's world names."""
        if self._keeper is not None:
            buddies = tuple(BuddyAddress(node=b.node, address=b.address, port=b.port) for b in part.buddies)
            self._keeper.copy(BuddyPlan(ranks=part.slots, buddies=buddies, wards=part.wards))

    async def prepare(self) -> None:
        """Look up what the keeper holds, for ``prepared``; from now on, reports of the keeper wait for ``joined``."""
        self._has_joined = False
        self._held = await self._look() or []

    def found(self, checkpoints: Sequence[FoundOnStorage]) -> None:
        """Report these checkpoints on storage, if they are of the job's log."""
        self._found = list(checkpoints)

    def prepared(self) -> tuple[str, tuple[HeldShard, ...]]:
        """What ``prepare`` found, for ``node.joined``: the identity of its log, and the shards."""
        held, self._held = tuple(map(_shard, self._held)), []
        return (self._keeper.log, held) if self._keeper is not None and held else ("", ())

    def joined(self) -> None:
        """The agent has reported ``node.joined``: reports of the keeper may follow."""
        self._has_joined = True
        self._report_waiting()

    async def report_held(self) -> None:
        """Report what the keeper holds, and how far the readers of data are; nothing if there is no keeper."""
        await self.report_queues()
        found = await self._look()
        if found is not None:
            self._report_memory(found)

    async def report_queues(self) -> None:
        """Report how far the readers of data are that have ended."""
        if self._keeper is None or not self._keeper.alive or not self.queues.used:
            return
        with contextlib.suppress(FtcoreError):  # it has just ended, or does not answer
            await self._keeper.queues()
        self._report(self.queues.flush)

    async def _look(self) -> list[dict[str, Any]] | None:
        if self._keeper is None or not self._keeper.alive:
            return None
        try:
            return await self._keeper.held()
        except FtcoreError:
            return []  # it has just ended, and its memory is lost

    def _report_memory(self, shards: Sequence[Mapping[str, Any]]) -> None:
        assert self._keeper is not None
        node, life = self._who()
        held = tuple(map(_shard, shards))
        self._record(MemoryHeld(node=node, incarnation=life, log=self._keeper.log, shards=held))

    # -- orders

    async def perform(self, command: Any, effect: str) -> Performed:
        """See ``ports.Performer``."""
        keeper = self._keeper
        assert keeper is not None, "without a keeper, this object performs nothing"
        try:
            if isinstance(command, CommitCheckpoint):
                return await self._commit(keeper, command)
            if isinstance(command, PersistShards):
                return await _persist(keeper, command)
            if isinstance(command, ParkWorkers):
                return await self._park(command, effect)
            if command.boundary:
                return await self._save(keeper, command, effect)
            return await self._stage(keeper, command)
        except Refused:
            raise
        except FtcoreError as error:
            raise Refused(str(error)) from error

    async def _commit(self, keeper: KeeperClientPort, command: CommitCheckpoint) -> Performed:
        try:
            done = await keeper.commit(command.round, command.step, command.files)
        except FtcoreError as error:
            self._failed(command.round, command.step, f"its manifest: {error}")
            raise
        self._committed(command.round, command.step, str(done["path"]))
        return Performed()

    async def _stage(self, keeper: KeeperClientPort, command: SaveCheckpoint) -> Performed:
        """Let the living workers stage; what those that have ended have staged before counts as well."""
        staged = await keeper.stage(command.round)
        held = await keeper.held()
        self._report_memory(held)
        own = [shard for shard in held if not shard["copy"]]
        steps = [shard["step"] for shard in own if shard["round"] == command.round and shard["tensors"]]
        if not steps:
            raise Refused(_reasons(staged) or "no worker of this round has staged its state")
        return Performed(max(steps))

    async def _save(self, keeper: KeeperClientPort, command: SaveCheckpoint, effect: str) -> Performed:
        if SaveCheckpoint not in self._of_workers:
            raise Refused("the workers have no step boundaries")
        done = await self._of_workers[SaveCheckpoint].perform(command, effect)
        if keeper.alive and not command.hold:
            failed = await keeper.written(command.round)
            if failed:
                raise Refused(_reasons(failed))
        return done

    async def _park(self, command: ParkWorkers, effect: str) -> Performed:
        done = await self._of_workers[ParkWorkers].perform(command, effect)
        await self.report_held()
        return done

    def _committed(self, round_: int, step: int, where: str) -> None:
        kept, keep_every = self._keep, self._keep_every
        self._record(
            CheckpointCommitted(round=round_, step=step, where=where, kept=kept, keep_every=keep_every, own=True)
        )

    # -- what the keeper reports

    def on_persisted(self, message: Mapping[str, Any]) -> None:
        """A shard is on storage."""
        self._report(lambda: self._persisted(message))

    def on_failed(self, message: Mapping[str, Any]) -> None:
        """A shard could not be written."""
        error = f"rank {message['rank']}: {message['error']}"
        away = bool(message.get("away"))
        self._report(lambda: self._failed(int(message["round"]), int(message["step"]), error, away=away))

    def on_committed(self, message: Mapping[str, Any]) -> None:
        """The keeper has committed a checkpoint without an agent."""
        step, where = int(message["step"]), str(message["path"])
        self._report(lambda: self._committed(int(message["round"]), step, where))

    def on_loaded(self, message: Mapping[str, Any]) -> None:
        """A worker has restored its state; the node's report follows when all of its workers have."""
        self._report(lambda: self._loaded_by(message))

    def on_skipped(self, message: Mapping[str, Any]) -> None:
        """A worker has skipped batches; the node's report follows when all of its workers have."""
        self._report(lambda: self._skipped_by(message))

    def on_positioned(self, message: Mapping[str, Any]) -> None:
        """Rank 0, which is on this node, continues the registered data at a position."""
        self._report(lambda: self._positioned(message))

    def on_queue(self, message: Mapping[str, Any]) -> None:
        """A worker reports about a data queue."""
        self._report(lambda: self.queues.take(message))

    def on_replicas(self, message: Mapping[str, Any]) -> None:
        """The ranks know which of them hold the same state; rank 0, which is on this node, reports it."""
        self._report(lambda: self._replicas(message))

    def _persisted(self, message: Mapping[str, Any]) -> None:
        self.queues.flush()  # before a checkpoint is complete, what its step has used up is known
        node, life = self._who()
        persisted = ShardPersisted(
            node=node,
            incarnation=life,
            shard=_shard(message),
            file=str(message["file"]),
            bytes=int(message["bytes"]),
            seconds=round(float(message["seconds"]), 3),
            staged_s=round(float(message.get("staged_s", 0.0)), 4),
        )
        self._record(persisted)

    def _loaded_by(self, message: Mapping[str, Any]) -> None:
        round_, local_ranks = int(message["round"]), int(message["local_ranks"])
        ranks = self._loaded.setdefault(round_, {})
        ranks[int(message["local_rank"])] = dict(message)
        if len(ranks) < local_ranks:
            return
        self._loaded = {}
        node, life = self._who()
        refused = dict.fromkeys(str(each)[:REASON_CHARS_MAX] for found in ranks.values() for each in found["refused"])
        first = ranks[min(ranks)]
        self._record(
            StateLoaded(
                node=node,
                incarnation=life,
                round=round_,
                step=int(first["step"]),
                source=str(first["source"]),
                seconds=round(max(float(found["seconds"]) for found in ranks.values()), 3),
                refused=tuple(refused)[:REFUSED_MAX],
            )
        )

    def _skipped_by(self, message: Mapping[str, Any]) -> None:
        round_, step = int(message["round"]), int(message["step"])
        ranks = self._skipped.setdefault((round_, step), set())
        ranks.add(int(message["local_rank"]))
        if len(ranks) < int(message["local_ranks"]):
            return
        self._skipped = {}
        node, life = self._who()
        batches = int(message["batches"])
        self._record(BatchesSkipped(node=node, incarnation=life, round=Round(round_), step=step, batches=batches))

    def _positioned(self, message: Mapping[str, Any]) -> None:
        node, life = self._who()
        skipped = [(int(first), int(after)) for first, after in message["skipped"]]
        self._record(
            DataPositioned(
                node=node,
                incarnation=life,
                round=Round(int(message["round"])),
                step=int(message["step"]),
                position=int(message["position"]),
                batch=int(message["batch"]),
                size=int(message["size"]),
                seed=int(message["seed"]),
                shuffle=bool(message["shuffle"]),
                skipped=tuple(skipped[-SKIPPED_MAX:]),
            )
        )

    def _replicas(self, message: Mapping[str, Any]) -> None:
        node, life = self._who()
        groups = tuple(tuple(int(rank) for rank in group) for group in message["groups"])
        self._record(ReplicasFound(node=node, incarnation=life, round=Round(int(message["round"])), groups=groups))

    def _failed(self, round_: int, step: int, reason: str, *, away: bool = False) -> None:
        node, life = self._who()
        self._record(
            CheckpointFailed(
                node=node,
                incarnation=life,
                round=Round(round_),
                step=step,
                reason=reason[:REASON_CHARS_MAX],
                away=away,
            )
        )


async def _persist(keeper: KeeperClientPort, command: PersistShards) -> Performed:
    _, failed = await keeper.persist(command.round, command.step, command.ranks)
    if failed:
        raise Refused(_reasons(failed))
    return Performed(command.step)


def _shard(message: Mapping[str, Any]) -> HeldShard:
    fields = {name: message[name] for name in HeldShard.__annotations__ if name in message}
    return msgspec.convert(fields, HeldShard)


def _reasons(failed: Sequence[Mapping[str, Any]]) -> str:
    return "; ".join(f"rank {each['rank']}: {each['error']}" for each in failed if "error" in each)[:REASON_CHARS_MAX]

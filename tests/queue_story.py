"""A job whose readers take data shards of a queue, for the tests of queues: no process, the production engine."""

from typing import Any

from ftcore.engine.queues import answers_of, leased_to
from ftcore.events.checkpoint import CheckpointCommitted
from ftcore.events.queue import (
    DataLease,
    QueueLeased,
    QueueMark,
    QueueOpened,
    QueueReported,
    QueueSpec,
    ReaderReport,
)
from ftcore.policies.file.config import default_chain
from ftcore.replay.samples import SampleLedger
from ftcore.states.queue import QueueState
from ftcore.testing.driver import JobDriver

QUEUE = "train"
SPEC = QueueSpec(shards=10, epochs=1, samples=95, size=10)


class StoryReader:
    """One reader, as the worker has it: its leases in order, and what it has used after each step."""

    def __init__(self) -> None:
        self.leases: list[DataLease] = []
        self.done = self.offset = self.want = 0
        self.over = False
        self.marks: list[QueueMark] = []
        self.after: dict[int, list[int]] = {}
        """By step: the samples that it took, by their numbers in the order of all epochs."""

    def take(self, lease: DataLease) -> None:
        leased = sum(each.after - each.first for each in self.leases)
        if lease.at == leased:
            self.leases.append(lease)

    def shards(self) -> list[tuple[int, int]]:
        """Place and offset of each shard of its sequence."""
        return [
            (place, each.offset if place == each.first else 0)
            for each in self.leases
            for place in range(each.first, each.after)
        ]


class QueueStory:
    """A job of some nodes with one reader each."""

    def __init__(self, nodes: int = 2, spec: QueueSpec = SPEC) -> None:
        self.spec = spec
        self.job = JobDriver(nodes=nodes, policy=default_chain(max_restarts=1000))
        self.job.start()
        self.step = 0
        self.used: dict[int, list[int]] = {}
        """By step of the living lineage: the samples that all readers took."""
        self.readers: dict[int, StoryReader] = {}

    @property
    def round(self) -> int:
        world = self.job.state.rounds.world
        assert world is not None
        return int(world.round)

    @property
    def ranks(self) -> dict[int, str]:
        world = self.job.state.rounds.world
        assert world is not None
        return {member.base_rank: member.node for member in world.members}

    @property
    def queue(self) -> QueueState:
        return self.job.state.queues[QUEUE]

    def _say(self, rank: int, payload: type[Any], **fields: Any) -> None:
        node = self.ranks[rank]
        life = self.job.state.membership.nodes[node].incarnation
        group = self.job.say(node, payload(node=node, incarnation=life, queue=QUEUE, **fields))
        for told in answers_of(self.job.state, group).get(node, []):
            if isinstance(told, QueueLeased):
                self.told(told)

    def told(self, told: QueueLeased) -> None:
        for lease in told.leases:
            self.readers[lease.rank].take(lease)
        for rank in told.over:
            self.readers[rank].over = True

    def open(self, rank: int, step: int | None = None) -> None:
        self.readers[rank] = StoryReader()
        at = self.step if step is None else step
        self._say(rank, QueueOpened, round=self.round, spec=self.spec, step=at, ranks=(rank,))

    def open_all(self) -> None:
        self.readers = {}
        for rank in self.ranks:
            self.open(rank)

    def ask(self, rank: int, more: int) -> None:
        reader = self.readers[rank]
        reader.want = max(reader.want, reader.done + more)
        self.report(rank)

    def report(self, rank: int, closed: bool = False, round_: int | None = None) -> None:
        reader = self.readers[rank]
        told = ReaderReport(rank=rank, want=reader.want, marks=tuple(reader.marks), closed=closed)
        reader.marks = []
        self._say(rank, QueueReported, round=self.round if round_ is None else round_, readers=(told,))

    def reconnect(self, rank: int) -> None:
        """The agent has connected to a master: it is sent again what its readers were leased."""
        for told in leased_to(self.job.state, self.ranks[rank]):
            self.told(told)

    def train(self, batch: int) -> None:
        """One step: each reader takes as many samples as it has, up to a batch."""
        self.step += 1
        self.used[self.step] = []
        for reader in self.readers.values():
            taken: list[int] = []
            shards = reader.shards()
            while len(taken) < batch and reader.done < len(shards):
                place, begun = shards[reader.done]
                reader.offset = max(reader.offset, begun)
                epoch, within = divmod(place, self.spec.shards)
                size = min(self.spec.size, self.spec.samples - within * self.spec.size)
                taken.append(epoch * self.spec.samples + within * self.spec.size + reader.offset)
                reader.offset += 1
                if reader.offset == size:
                    reader.done, reader.offset = reader.done + 1, 0
            reader.after[self.step] = taken
            mark = QueueMark(step=self.step, done=reader.done, offset=reader.offset, rate=len(taken))
            reader.marks.append(mark)
            self.used[self.step] += taken
        self.job.step = self.step

    def commit(self, step: int) -> None:
        """A checkpoint of a step is committed."""
        self.job.own(CheckpointCommitted(round=self.round, step=step, own=True, where=f"step-{step}"))

    def again(self, step: int, *, told: bool = True) -> None:
        """A worker fails, and a round begins that continues after a step."""
        if told:
            for rank in self.readers:
                self.report(rank, closed=True)
        before = self.round
        self.job.step = 1000 * before  # else the fault would be one that recurs without progress
        self.job.make_steps(1)
        self.job.fail("node0", message=f"ValueError: {before}")
        self.job.settle(step=False)
        while self.job.state.phase in ("recovering", "forming") and self.job.wait():
            self.job.settle(step=False)
        assert self.round == before + 1, self.job.state.phase
        self.back_to(step)

    def back_to(self, step: int) -> None:
        self.step = self.job.step = step
        self.used = {each: samples for each, samples in self.used.items() if each <= step}
        self.open_all()

    @property
    def ledger(self) -> SampleLedger:
        made = SampleLedger()
        for event in self.job.events:
            made.feed(event)
        return made

    def samples(self) -> list[int]:
        """What the living lineage has used, in order."""
        return sorted(sample for samples in self.used.values() for sample in samples)

    def drain(self, batch: int = 4) -> None:
        """Train until no reader has anything left."""
        for _ in range(10_000):
            for rank, reader in self.readers.items():
                if not reader.over:
                    self.ask(rank, 4)
            if all(each.over and each.done == len(each.shards()) for each in self.readers.values()):
                break
            self.train(batch)
        for rank in self.readers:
            self.report(rank, closed=True)

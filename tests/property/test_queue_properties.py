"""Data queues: whatever happens in whatever order, the living lineage uses each sample once."""

import attrs
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from queue_story import QUEUE, QueueStory

from ftcore.events.queue import QueueSpec
from ftcore.ids import Term
from ftcore.replay import Verifier
from ftcore.sample_ranges import merged, without
from ftcore.states.fold import fold
from ftcore.states.model import JobState, to_json
from ftcore.states.queue import done_of, size_of
from ftcore.states.snapshot import pack, restore, seal


class Queue(RuleBasedStateMachine):
    """Readers that ask, train, are lost and go back, and masters that change."""

    @initialize(
        nodes=st.integers(1, 3),
        samples=st.integers(1, 60),
        size=st.integers(1, 9),
        epochs=st.integers(1, 3),
        batch=st.integers(1, 7),
    )
    def set_up(self, nodes: int, samples: int, size: int, epochs: int, batch: int) -> None:
        spec = QueueSpec(shards=-(-samples // size), epochs=epochs, samples=samples, size=size)
        self.story, self.batch = QueueStory(nodes, spec), batch
        self.committed: list[int] = []
        self.newest = 0
        self.verifier, self.seen = Verifier(), 0
        self.story.open_all()

    @rule(data=st.data(), more=st.integers(1, 9))
    def a_reader_asks(self, data: st.DataObject, more: int) -> None:
        self.story.ask(data.draw(st.sampled_from(sorted(self.story.readers))), more)

    @rule(data=st.data())
    def a_reader_reports(self, data: st.DataObject) -> None:
        self.story.report(data.draw(st.sampled_from(sorted(self.story.readers))))

    @rule(steps=st.integers(1, 4))
    def all_train(self, steps: int) -> None:
        for _ in range(steps):
            self.story.train(self.batch)

    @precondition(lambda self: self.story.step > self.newest)
    @rule(data=st.data())
    def a_checkpoint_is_committed(self, data: st.DataObject) -> None:
        """What a checkpoint contains is reported before, or after it."""
        self.newest = data.draw(st.integers(self.newest + 1, self.story.step))
        self.story.commit(self.newest)
        self.committed.append(self.newest)

    @rule(data=st.data())
    def a_worker_is_killed(self, data: st.DataObject) -> None:
        """The next round continues after any step since the newest checkpoint, or after an older checkpoint."""
        recent = range(max(self.newest, self.story.queue.live.step), self.story.step + 1)
        kept = [each for each in self.committed if each in self.story.queue.cuts]
        step = data.draw(st.sampled_from([*recent, *kept, 0]))
        self.committed = [each for each in self.committed if each <= step]
        self.newest = max(self.committed, default=0)
        self.story.again(step)

    @rule(data=st.data())
    def a_reader_reports_late(self, data: st.DataObject) -> None:
        """A report of an older round changes nothing but is refused."""
        rank = data.draw(st.sampled_from(sorted(self.story.readers)))
        before = {name: attrs.asdict(queue) for name, queue in self.story.job.state.queues.items()}
        marks, self.story.readers[rank].marks = self.story.readers[rank].marks, []
        self.story.report(rank, round_=self.story.round - 1)
        self.story.readers[rank].marks = marks
        assert before == {name: attrs.asdict(queue) for name, queue in self.story.job.state.queues.items()}
        assert self.story.job.events[-1].type == "queue.refused"

    @rule()
    def another_master_leads(self) -> None:
        """It folds the log, and sends the agents again what they were leased."""
        job, anew = self.story.job, JobState()
        for event in job.events:
            fold(anew, event)
        restored = restore(seal(pack(anew)))
        assert restored is not None and to_json(restored.state) == to_json(job.state)
        job.state, job.term = restored.state, Term(job.term + 1)
        for rank in self.story.readers:
            self.story.reconnect(rank)

    @invariant()
    def every_shard_is_in_one_place(self) -> None:
        queue = self.story.queue
        if queue.joining:
            return
        done = merged([*queue.base.done, *(place for each in queue.segments for place in done_of(each))])
        assert not without(queue.todo, without([(0, queue.next)], done)), "to do and done"
        assert size_of(queue.todo) + size_of(done) <= queue.next
        held = [(first, after) for reader in queue.live.readers.values() for first, after, _ in reader.leases]
        assert size_of(held) == size_of(merged(held)), "leased twice"
        assert not [each for each in held if without([each], queue.todo) != [each]], "to do and leased"

    @invariant()
    def decisions_are_made_again(self) -> None:
        for event in self.story.job.events[self.seen :]:
            self.verifier.feed(event)
        self.seen = len(self.story.job.events)

    def teardown(self) -> None:
        if not hasattr(self, "story"):
            return
        self.story.drain(self.batch)
        spec = self.story.spec
        assert self.story.samples() == list(range(spec.samples * spec.epochs))
        told = self.story.ledger.to_json()["queues"][QUEUE]
        assert [(each["used"], each["to_come"]) for each in told["epochs"]] == [(spec.samples, 0)] * spec.epochs
        assert not told["discrepancies"] and not told["unsure"], told
        self.decisions_are_made_again()
        assert not self.verifier.report().mismatches


TestQueue = Queue.TestCase
TestQueue.settings = settings(
    max_examples=50, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)

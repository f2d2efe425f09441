"""Data queues: what is leased, what returns after which step, what a checkpoint fixes, what is refused."""

import attrs
import msgspec
import pytest
from queue_story import QUEUE, SPEC, QueueStory

from ftcore.events.queue import (
    QueueEpochEnded,
    QueueLeased,
    QueueMark,
    QueueRefused,
    QueueReturned,
    QueueSpec,
    UnsureReader,
)
from ftcore.replay import Verifier


def last(story: QueueStory, kind: type) -> object:
    return [event.data for event in story.job.events if type(event.data) is kind][-1]


def ended(story: QueueStory) -> dict[str, object]:
    """The ledger at the end, which must be exact; every decision is made again."""
    told = story.ledger.to_json()["queues"][QUEUE]
    assert not told["discrepancies"], told
    verifier = Verifier()
    for event in story.job.events:
        verifier.feed(event)
    assert not verifier.report().mismatches
    return told


def test_each_sample_is_used_once_and_the_epochs_end() -> None:
    story = QueueStory(spec=msgspec.structs.replace(SPEC, epochs=2))
    story.open_all()
    story.drain()
    assert story.samples() == list(range(190))
    assert [event.data.epoch for event in story.job.events if type(event.data) is QueueEpochEnded] == [1, 2]
    assert [(each["used"], each["to_come"]) for each in ended(story)["epochs"]] == [(95, 0)] * 2


def test_near_the_end_no_reader_gets_all() -> None:
    story = QueueStory()
    story.open_all()
    story.ask(0, 100)
    story.ask(1, 100)
    sizes = [each.after - each.first for each in last(story, QueueLeased).leases]
    assert sizes == [2] and story.queue.next == 4, "ten shards for two readers: a quarter, then a quarter of the rest"


def test_shards_of_a_lost_reader_return_at_their_offset() -> None:
    story = QueueStory()
    story.open_all()
    for rank in (0, 1):
        story.ask(rank, 4)
    for _ in range(3):
        story.train(4)
    story.again(2)
    back = last(story, QueueReturned)
    assert (back.step, back.done, back.offsets, back.unsure) == (2, 2, ((0, 8), (2, 8)), ())
    story.ask(0, 1)
    assert last(story, QueueLeased).leases[0].offset == 8
    story.drain()
    assert story.samples() == list(range(95)) and not ended(story)["unsure"]


def test_a_lost_node_was_as_far_as_its_pace_says() -> None:
    """Its marks end with step 2; the round continues after step 4."""
    story = QueueStory()
    story.open_all()
    for rank in (0, 1):
        story.ask(rank, 4)
    for step in range(1, 5):
        story.train(3)
        if step == 2:
            story.report(1)
    story.readers[1].marks = []
    story.report(0, closed=True)
    story.again(4, told=False)
    assert not last(story, QueueReturned).unsure
    story.drain()
    assert story.samples() == list(range(95)) and not ended(story)["unsure"]


def test_what_is_not_known_is_named() -> None:
    """A queue whose shards have no known size has no pace."""
    story = QueueStory(spec=QueueSpec(shards=10, epochs=1))
    story.open_all()
    story.ask(1, 2)
    reader = story.readers[1]
    reader.marks = [_mark(1, 0, 5), _mark(2, 0, 9)]
    story.report(1)
    story.report(0, closed=True)
    story.step = 5
    story.again(4, told=False)
    assert last(story, QueueReturned).unsure == (UnsureReader(rank=1, step=2),)
    assert last(story, QueueReturned).offsets == ((0, 9),)
    told = story.ledger.to_json()["queues"][QUEUE]
    assert told["unsure"][0]["after"] == 2 and not story.ledger.is_exact


def _mark(step: int, done: int, offset: int) -> QueueMark:
    return QueueMark(step=step, done=done, offset=offset)


def test_a_rollback_to_a_checkpoint_returns_what_was_used_later() -> None:
    """Also what a later checkpoint contains; the steps of the older one stay done."""
    story = QueueStory()
    story.open_all()
    for rank in (0, 1):
        story.ask(rank, 4)
    for step in range(1, 7):
        story.train(4)
        for rank in (0, 1):
            story.ask(rank, 2)
        if step in (2, 5):
            story.commit(step)
    assert story.queue.base_step == 5 and sorted(story.queue.cuts) == [2, 5]
    story.again(2)
    assert story.queue.base_step == 2 and last(story, QueueReturned).done
    story.drain()
    assert story.samples() == list(range(95))
    ended(story)


def test_a_checkpoint_waits_for_the_reports_of_its_step() -> None:
    story = QueueStory()
    story.open_all()
    for rank in (0, 1):
        story.ask(rank, 4)
    story.train(4)
    story.commit(1)
    assert story.queue.committing == [1]
    story.report(0)
    story.report(1)
    assert not story.queue.committing and story.queue.base.offsets == {0: 4, 2: 4}


@pytest.mark.parametrize("late", ["round", "definition"])
def test_refused(late: str) -> None:
    story = QueueStory()
    story.open_all()
    story.ask(0, 2)
    before = attrs.asdict(story.queue)
    if late == "round":
        story.report(0, round_=story.round - 1)
    else:
        story.spec = msgspec.structs.replace(SPEC, seed=9)
        story.open(0)
    refused = last(story, QueueRefused)
    assert refused.ranks == (0,) and attrs.asdict(story.queue) == before
    assert ("expired" if late == "round" else "seed=0") in refused.reason


def test_millions_of_shards_are_a_few_ranges() -> None:
    story = QueueStory(spec=QueueSpec(shards=10_000_000, epochs=0, samples=10_000_000, size=1))
    story.open_all()
    for rank in (0, 1):
        story.ask(rank, 500_000)
    for _ in range(3):
        for reader in story.readers.values():
            reader.done += 100_000
            reader.marks.append(_mark(story.step + 1, reader.done, 0))
        story.step += 1
    story.report(0)
    story.report(1)
    story.commit(2)
    queue = story.queue
    assert queue.base.done == [(0, 200_000), (500_000, 700_000)] and queue.next == 1_000_000
    assert queue.left == {0: 10_000_000 - 600_000}

"""The stream of data shards: alone, and with a master that gives them out."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from ftcore.data import DataShard, ShardQueue, ShardStream
from ftcore.data import shards as module
from ftcore.worker._job import TrainingJob

NUMBERS = torch.arange(50)


class Master:
    """A channel to a master that grants what it is told to; ``sent`` has the messages of the stream."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.coming: list[dict[str, Any]] = []
        self.round = 1
        self.on_wait = lambda: None
        self.closed = 0
        self.leaves = False

    def must_leave(self) -> bool:
        return self.leaves

    def place(self) -> tuple[int, int, int]:
        return self.round, 0, 2

    def close(self) -> None:
        self.closed += 1

    def send(self, message: dict[str, Any]) -> bool:
        self.sent.append(message)
        return True

    def receive(self, wait_s: float = 0.0) -> list[dict[str, Any]]:
        if wait_s and not self.coming:
            self.on_wait()
        coming, self.coming = self.coming, []
        return coming

    def grant(self, *leases: tuple[int, int, int, int], over: bool = False, refused: str = "", **other: Any) -> None:
        about = {"queue": "train", "round": self.round, "rank": 0, **other}
        self.coming.append({**about, "leases": [list(each) for each in leases], "over": over, "refused": refused})

    def take(self, key: str) -> list[Any]:
        """What the stream has sent under a key since the last time."""
        found = [message[key] for message in self.sent if key in message]
        self.sent = [message for message in self.sent if key not in message]
        return found


def queue(**options: Any) -> ShardQueue:
    return ShardQueue("train", **{"samples": 50, "shard_size": 8, "shuffle": False, **options})


def numbers(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch]


@pytest.mark.parametrize(
    "options",
    [{"samples": 0}, {"shard_size": 0}, {"shards": 3}, {"epochs": -1}, {"samples": 0, "shard_size": 0}],
)
def test_what_makes_no_queue(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="found name='train'"):
        queue(**options)


def test_a_source_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="needs a data set"):
        ShardStream(queue(), lambda shard: [])
    with pytest.raises(ValueError, match="above 0"):
        ShardStream(queue(), NUMBERS, 0)


def test_each_epoch_has_an_order_of_its_own_and_all_samples() -> None:
    """The short shard is the last one of each epoch."""
    one = queue(shuffle=True, epochs=2, seed=5)
    epochs = [[number for place in range(7) for number in one.samples_at(7 * epoch + place)] for epoch in (0, 1)]
    assert epochs[0] != epochs[1] and sorted(epochs[0]) == sorted(epochs[1]) == list(range(50))
    assert one.at(6) == DataShard(6, 0, 2) and one.at(13) == DataShard(6, 1, 2)
    assert numbers(ShardStream(one, NUMBERS, 7)) == [*epochs[0], *epochs[1]]


def test_outside_ftrun_each_rank_reads_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for rank in range(3):
        monkeypatch.setattr(module, "_place_of_process", lambda rank=rank: (0, rank, 3))
        found += numbers(ShardStream(queue(epochs=2), NUMBERS, 4))
    assert Counter(found) == dict.fromkeys(range(50), 2)


def test_a_saved_place_outside_ftrun(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = ShardStream(queue(), NUMBERS, 5), ShardStream(queue(), NUMBERS, 5)
    batches = iter(first)
    head = numbers([next(batches), next(batches)])
    second.load_state_dict(first.state_dict())
    assert head + numbers(second) == list(range(50))
    with pytest.raises(ValueError, match="seed 0, now 1"):
        ShardStream(queue(seed=1), NUMBERS).load_state_dict(first.state_dict())
    saved = first.state_dict()
    monkeypatch.setattr(module, "_place_of_process", lambda: (0, 0, 2))
    with pytest.raises(ValueError, match="fits no other number of ranks"):
        second.load_state_dict(saved)


def test_a_rank_that_waits_leaves_its_round_and_goes_on_in_the_next() -> None:
    """The error ends its step, as that of a failed collective does."""
    master, stream = Master(), ShardStream(queue(), NUMBERS, 8)
    stream.attach_queue(master)
    master.on_wait = lambda: setattr(master, "leaves", True)
    batches = iter(stream)
    with pytest.raises(InterruptedError, match="waits for data shards"):
        next(batches)
    master.round, master.leaves, master.on_wait = 2, False, lambda: None
    stream.new_round(2, 0, 2)
    stream.load_state_dict(stream.state_dict())
    stream.continue_after(0)
    master.grant((0, 0, 1, 0))
    assert numbers([next(iter(stream))]) == list(range(8))


def test_a_loader_in_the_training_process() -> None:
    assert numbers(DataLoader(ShardStream(queue(), NUMBERS), batch_size=16)) == list(range(50))
    with pytest.raises(RuntimeError, match="num_workers=0"):
        list(DataLoader(ShardStream(queue(), NUMBERS), batch_size=16, num_workers=1))


def test_files() -> None:
    """A shard that was begun is read again from its beginning, without what was used."""
    stream = ShardStream(
        queue(samples=0, shard_size=0, shards=3), lambda shard: [shard.number * 10 + i for i in (0, 1)]
    )
    master = Master()
    stream.attach_queue(master)
    master.grant((0, 1, 2, 1), (1, 0, 1, 0), over=True)
    assert list(stream) == [11, 0, 1]
    assert master.take("marks")[-1][-1][1:] == [2, 0, -1]


def test_the_job_has_no_batch_left() -> None:
    job = TrainingJob("")
    job.register(data=ShardStream(queue(), NUMBERS, 50))
    assert len(job.next_batch()) == 50
    with pytest.raises(EOFError, match="no batch left"):
        job.next_batch()


def test_steps_are_reported_and_more_is_asked_for_ahead() -> None:
    master = Master()
    stream = ShardStream(queue(), NUMBERS, 4, ahead=4)
    stream.attach_queue(master)
    stream.continue_after(10)
    opened = master.sent.pop()
    assert (opened["open"]["shards"], opened["step"], opened["want"]) == (7, 10, 4)
    master.grant((0, 0, 4, 0))
    batches = iter(stream)
    for step in (11, 12, 13):
        next(batches)
        stream.step_ended(step)
    assert master.take("want") == [], "two shards and a half are left"
    next(batches)
    stream.step_ended(14)
    assert master.take("want") == [10], "they did not last: twice as many"
    master.grant((4, 4, 7, 0), over=True)
    assert numbers(batches) == list(range(16, 50))


def test_marks() -> None:
    master = Master()
    stream = ShardStream(queue(), NUMBERS, 6)
    stream.attach_queue(master)
    stream.continue_after(0)
    master.grant((0, 3, 4, 5), (1, 4, 6, 0))
    batches = iter(stream)
    assert numbers([next(batches)]) == [29, 30, 31, 32, 33, 34]
    stream.step_ended(1)
    next(batches)
    stream.step_ended(2)
    stream.step_ended(2)
    assert master.take("marks") == [[[1, 1, 3, 6]], [[2, 2, 1, 6]]]


def test_skipped_batches_do_not_count_for_the_pace() -> None:
    """A node that is lost after such a step would be taken for quicker than it is, and samples would be lost."""
    master = Master()
    stream = ShardStream(queue(), NUMBERS, 6)
    stream.attach_queue(master)
    stream.continue_after(0)
    master.grant((0, 0, 7, 0))
    batches = iter(stream)
    stream.skip_batches(2)
    for step in (1, 2):
        next(batches)
        stream.step_ended(step)
    assert master.take("marks") == [[[1, 2, 2, -1]], [[2, 3, 0, 6]]]


def test_a_stream_without_shards_waits_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master, clock = Master(), iter(range(1000))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(clock)))
    stream = ShardStream(queue(), NUMBERS, 8)
    stream.attach_queue(master)
    waits = iter(range(6))
    master.on_wait = lambda: master.grant((0, 2, 3, 0)) if next(waits) == 5 else None
    assert numbers([next(iter(stream))]) == list(range(16, 24))
    told = capsys.readouterr().err
    assert "rank 0 waits for data shards" in told and "has waited" in told
    assert len(master.take("open")) > 1, "it asked again"


def test_leases_that_come_twice_and_those_of_others() -> None:
    master = Master()
    stream = ShardStream(queue(), NUMBERS, 8)
    stream.attach_queue(master)
    master.grant((0, 0, 6, 0), round=9)
    master.grant((0, 0, 2, 3))
    master.grant((0, 0, 2, 3), (2, 4, 5, 0))
    master.grant((1, 1, 2, 0), (2, 4, 5, 0), (3, 6, 7, 0), over=True)
    assert numbers(stream) == [*range(3, 16), *range(32, 40), 48, 49]


def test_a_new_round_in_the_same_process() -> None:
    """What was leased before is void; the queue is opened again after the last completed step."""
    master = Master()
    stream = ShardStream(queue(), NUMBERS, 8)
    stream.attach_queue(master)
    stream.continue_after(0)
    master.grant((0, 0, 3, 0))
    batches = iter(stream)
    next(batches)
    stream.step_ended(1)
    master.take("open")
    stream.new_round(2, 1, 3)
    master.grant((0, 4, 5, 0), round=2, rank=1)
    assert numbers([next(batches)]) == list(range(32, 40))
    opened = next(message for message in master.sent if "open" in message)
    assert (opened["round"], opened["rank"], opened["step"]) == (2, 1, 1)
    assert master.closed == 1  # the next connection is one of the new round


def test_a_refusal_is_raised() -> None:
    master = Master()
    stream = ShardStream(queue(), NUMBERS, 8)
    stream.attach_queue(master)
    master.grant(refused="other ranks opened train with seed=1")
    with pytest.raises(ValueError, match="queue train: other ranks"):
        next(iter(stream))

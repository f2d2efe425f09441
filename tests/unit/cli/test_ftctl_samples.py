"""``ftctl samples``: what a person and a program read."""

import json
from pathlib import Path

import msgspec
from ftctl_logs import archive
from queue_story import QUEUE, SPEC, QueueStory
from sample_story import Story

from ftcore.cli.ftctl import main
from ftcore.events.job import DataSkipped
from ftcore.events.queue import DataLease, QueueLeased, QueueSpec
from ftcore.testing.driver import JobDriver


def shown(path: Path, job: JobDriver, capsys, *argv: str, code: int = 0) -> str:
    assert main(["--store", archive(path, job.events), "samples", *argv]) == code
    return capsys.readouterr().out


def test_what_was_used_and_left_out(tmp_path, capsys):
    story = Story()
    story.positioned(0, 0)
    story.progressed(25)
    [skipped] = story.job.own(DataSkipped(step=20, amount=3, unit="batches", reason="the loss jumped"))
    story.again()
    story.positioned(20, 200, (200, 230))
    story.progressed(25)
    text = shown(tmp_path / "a.ftlog", story.job, capsys)
    assert "100 samples, shuffled with seed 1; 10 samples a step" in text
    assert ["3", "50", "30", "20"] in [line.split() for line in text.splitlines()]
    assert f"  30 samples from place 0 of epoch 3 on: event {skipped.seq}: the loss jumped" in text
    assert "each of the others was used once" in text

    story.again()
    seq = story.positioned(25, 300, (200, 230))
    text = shown(tmp_path / "b.ftlog", story.job, capsys, code=1)
    assert "each of the others" not in text
    assert f"(event {seq}): no step trained on 20 samples from place 80 of epoch 3 on" in text
    found = json.loads(shown(tmp_path / "b.ftlog", story.job, capsys, "--format", "json", code=1))
    assert [each["kind"] for each in found["discrepancies"]] == ["lost"]


def test_a_job_without_such_data(tmp_path, capsys):
    assert "has reported no position" in shown(tmp_path / "a.ftlog", Story().job, capsys)


def test_a_queue(tmp_path, capsys):
    """What returned is listed with its event; what is used twice, although the fold does not know it, is found."""
    story = QueueStory()
    story.open_all()
    for rank in (0, 1):
        story.ask(rank, 4)
    for _ in range(3):
        story.train(4)
    story.again(2)
    story.drain()
    text = shown(tmp_path / "a.ftlog", story.job, capsys)
    assert "queue train: 95 samples in 10 data shards of 10, in their own order" in text
    assert ["1", "95", "0"] in [line.split() for line in text.splitlines()]
    [returned] = [event.seq for event in story.job.events if event.type == "queue.returned"]
    assert f"round 2 continued after step 2 (event {returned}): " in text and "each of them was used once" in text

    ledger = story.ledger
    again = DataLease(rank=0, at=story.queue.live.readers[0].leased, first=4, after=5)
    event = next(event for event in reversed(story.job.events) if event.type == "queue.leased")
    leased = QueueLeased(queue=QUEUE, round=2, leases=(again,))
    ledger._queues.feed(msgspec.structs.replace(event, data=leased), ledger.state)
    reader = ledger._queues._of[QUEUE].segments[-1].readers[0]
    reader.marks.append(msgspec.structs.replace(reader.marks[-1], step=99, done=reader.leased))
    assert ledger.to_json()["queues"][QUEUE]["discrepancies"] == [{"first": 4, "after": 5, "kind": "repeated"}]
    assert not ledger.is_exact


def test_a_queue_of_files_of_which_one_may_be_used_twice(tmp_path, capsys):
    story = QueueStory(spec=QueueSpec(shards=SPEC.shards, epochs=1))
    story.open_all()
    story.ask(0, 2)
    story.readers = {}
    story.again(3, told=False)
    text = shown(tmp_path / "a.ftlog", story.job, capsys, code=1)
    assert "queue train: 10 data shards, in their own order" in text
    assert "what rank 0 used after step 0, up to step 3, is not known: it may have been used twice" in text

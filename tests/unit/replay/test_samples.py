"""The ledger of the samples: what was used, left out, lost and repeated, along the living lineage."""

import pytest
from sample_story import Story

from ftcore.events.job import DataSkipped
from ftcore.replay.samples import EpochUse, SampleLedger


@pytest.fixture
def story() -> Story:
    """Steps 1 to 25 of the first round."""
    made = Story()
    made.positioned(0, 0)
    made.progressed(25)
    return made


def uses(ledger: SampleLedger) -> list[tuple[int, int, int]]:
    return [(each.used, each.left_out, each.to_come) for each in ledger.epochs()]


def test_epochs(story: Story) -> None:
    """Steps may take samples of two epochs; what is to come of the last one is told."""
    assert story.ledger.epochs()[-1] == EpochUse(epoch=3, used=50, left_out=0, to_come=50)
    assert uses(story.ledger) == [(100, 0, 0), (100, 0, 0), (50, 0, 50)]
    assert not story.ledger.discrepancies and not story.ledger.left_out


def test_steps_that_are_computed_again_count_once(story: Story) -> None:
    story.again()
    story.positioned(20, 200)
    story.progressed(28)
    assert uses(story.ledger) == [(100, 0, 0), (100, 0, 0), (80, 0, 20)]
    assert not story.ledger.discrepancies


def test_steps_that_the_log_has_not_seen(story: Story) -> None:
    """Progress is in the log from time to time only; the next round shows how far the one before has come."""
    story.again()
    story.positioned(29, 290)
    assert uses(story.ledger)[-1] == (90, 0, 10) and not story.ledger.discrepancies


def test_what_a_rollback_leaves_out(story: Story) -> None:
    """It has the reason of the decision, also in later rounds, which report it again; it is not lost."""
    [skipped] = story.job.own(DataSkipped(step=20, amount=3, unit="batches", reason="the loss jumped"))
    story.again()
    story.positioned(20, 200, (200, 230))
    story.progressed(25)
    story.again()
    story.positioned(25, 280, (200, 230))
    story.progressed(30)
    ledger = story.ledger
    assert uses(ledger) == [(100, 0, 0), (100, 0, 0), (70, 30, 0), (30, 0, 70)]
    [out] = ledger.left_out
    assert (out.first, out.after, out.seq, out.reason) == (200, 230, skipped.seq, "the loss jumped")
    assert not ledger.discrepancies


def test_what_a_script_leaves_out(story: Story) -> None:
    """Places of an epoch to come, and of one that is over: what was trained on counts as used."""
    seq = story.positioned(25, 250, (5, 10), (260, 265))
    story.progressed(30)
    ledger = story.ledger
    assert uses(ledger) == [(100, 0, 0), (100, 0, 0), (95, 5, 0), (5, 0, 95)]
    assert [(out.seq, out.reason) for out in ledger.left_out] == [(seq, "by the script")] * 2


@pytest.mark.parametrize(("position", "kind", "places"), [(215, "lost", (200, 215)), (190, "repeated", (190, 200))])
def test_a_position_that_does_not_follow(story: Story, position: int, kind: str, places: tuple[int, int]) -> None:
    story.again()
    seq = story.positioned(20, position)
    [found] = story.ledger.discrepancies
    assert (found.seq, found.step, found.kind, (found.first, found.after)) == (seq, 20, kind, places)


def test_a_first_position_that_is_not_the_start() -> None:
    """Before the first step nothing was used; a training that begins with a checkpoint of its own has no such claim."""
    story = Story()
    story.positioned(0, 30)
    [found] = story.ledger.discrepancies
    assert (found.kind, found.first, found.after) == ("lost", 0, 30)
    story = Story()
    story.positioned(7, 70)
    assert not story.ledger.discrepancies


def test_another_batch_and_another_order(story: Story) -> None:
    """A smaller global batch goes on at the same place; another data set begins anew."""
    story.again()
    story.positioned(25, 250, batch=5)
    story.progressed(29)
    assert uses(story.ledger)[-1] == (70, 0, 30) and not story.ledger.discrepancies
    story.positioned(29, 0, size=50)
    story.progressed(31)
    assert uses(story.ledger) == [(20, 0, 30)]


def test_a_job_without_such_data() -> None:
    story = Story()
    assert story.ledger.order is None and story.ledger.epochs() == []
    assert story.ledger.to_json() == {
        "samples": None,
        "seed": None,
        "epochs": [],
        "ranges_left_out": [],
        "discrepancies": [],
        "queues": {},
    }

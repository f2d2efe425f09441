"""The interval between two saves to storage: the formula, what it is computed from, its limits, and its order."""

from typing import Any

import msgspec
import pytest
from checkpoint_jobs import job, of, open_orders, shard

from ftcore.cli.ctl_lines import summary
from ftcore.commands import PaceSaves
from ftcore.engine.orders import slice_of
from ftcore.engine.save_interval import ASSUMED_S, best_interval
from ftcore.events.checkpoint import CheckpointCommitted, IntervalChosen, ShardPersisted
from ftcore.events.job import JobProgressed
from ftcore.events.policy import AbilityDeclared, Declared, DeclaredCheckpoints
from ftcore.events.world import WorldFormed
from ftcore.ids import SECOND
from ftcore.replay import verify
from ftcore.testing.driver import JobDriver


@pytest.mark.parametrize(
    ("cost_s", "mtbf_s", "expected_s"),
    [
        (60, 86_400, 3180.06),  # sqrt(2 * 60 * 86400) = 3219.94, times (1 + 0.018634 / 3 + 0.00034722 / 9), minus 60
        (0.5, 100, 9.6694),  # sqrt(100) = 10, times (1 + 0.05 / 3 + 0.0025 / 9), minus 0.5
        (2, 1800, 83.525),
        (10, 4, 4),  # a save that takes longer than two failures: Daly's formula does not apply
        (3, 0, 0),
    ],
)
def test_the_formula(cost_s: float, mtbf_s: float, expected_s: float) -> None:
    """Young's square root with Daly's correction, worked by hand."""
    assert best_interval(cost_s, mtbf_s) == pytest.approx(expected_s, rel=1e-4)


def paced(**limits: float) -> JobDriver:
    """A job of two nodes that trains, and whose script leaves the interval to ftcore."""
    driver = job(policies=("step_pause",))
    driver.tick = 0
    if limits:
        driver.state.policy.declared = Declared(checkpoints=DeclaredCheckpoints(**limits))
    driver.own(AbilityDeclared(source="workers", abilities=("pause", "checkpoint", "save", "interval")))
    return driver


def progress(driver: JobDriver, step: int, after_s: float = 10.0) -> list[Any]:
    """A sample of progress; returns what the master decides."""
    assert driver.state.rounds.world is not None
    driver.now += int(after_s * SECOND)
    return [event.data for event in driver.own(JobProgressed(round=driver.state.rounds.world.round, step=step))[1:]]


def save(driver: JobDriver, step: int, **seconds: float) -> None:
    """Every node writes a shard, and the checkpoint is committed."""
    assert driver.state.rounds.world is not None
    round_ = driver.state.rounds.world.round
    for rank, (node, write_s) in enumerate(seconds.items()):
        life = driver.state.membership.nodes[node].incarnation
        one = msgspec.structs.replace(shard(rank, step, groups=2), round=round_)
        said = ShardPersisted(
            node=node, incarnation=life, shard=one, file=f"s{rank}", bytes=1, seconds=write_s, staged_s=0.5
        )
        driver.say(node, said)
    driver.own(CheckpointCommitted(round=round_, step=step, where=f"/checkpoints/{step}", own=True))
    driver.settle(step=False)


def test_from_the_first_step_to_the_first_failure() -> None:
    """First the shortest interval, because no save was measured; then from the slowest node and assumed failures."""
    driver = paced(max_interval=86_400.0)
    assert progress(driver, 100) == []
    chosen, ordered = progress(driver, 120)
    assert (chosen.steps, chosen.interval_s, chosen.bound, chosen.step_s, chosen.cost_s) == (120, 60, "min", 0.5, None)
    assert (chosen.failures, chosen.mtbf_s) == (0, ASSUMED_S / 2)
    # Four pauses of 1 s between two messages are eight steps; 240 is the next multiple after step 129.
    assert ordered.command == PaceSaves(round=1, every=120, since=240)
    assert "save takes not measured yet" in summary(next(e for e in driver.events if e.data is chosen))
    driver.settle(step=False)
    assert not open_orders(driver, PaceSaves)
    save(driver, 240, node0=1.5, node1=7.5)
    chosen, ordered = progress(driver, 140)
    assert chosen.cost_s == 8 and chosen.bound == ""
    assert chosen.interval_s == pytest.approx(best_interval(8, ASSUMED_S / 2), rel=1e-6)
    assert ordered.command.every == chosen.steps == round(chosen.interval_s / 0.5)
    assert ordered.command.since % chosen.steps == 0 and ordered.command.since > 140


def test_failures_and_small_changes() -> None:
    """A few percent change nothing; a failure does, and the next world begins with the interval of the last one."""
    driver = paced(min_interval=1.0)
    for step in range(100, 400, 20):
        progress(driver, step)
    save(driver, 300, node0=1.5, node1=1.5)
    progress(driver, 400)
    driver.settle(step=False)
    assert [each.bound for each in of(driver, IntervalChosen)] == ["min", "max"]
    for step in (421, 440, 459, 480):  # ten seconds for 19 to 21 steps
        assert progress(driver, step) == []
    before = driver.state.training.saved.pace
    trained_s = before.trained_s + (driver.now - before.since) / SECOND
    driver.fail("node1", exitcode=-9)
    driver.settle(step=False)
    formed = of(driver, WorldFormed)[-1]
    assert formed.round == 2 and formed.persist_every == slice_of(driver.state, "node0").persist_every == 7200
    driver.own(AbilityDeclared(source="workers", abilities=("pause", "checkpoint", "save", "interval")))
    driver.now += 1000 * SECOND  # the new round trains; what passed between the rounds does not count
    chosen, ordered = progress(driver, 481, after_s=0)
    assert (chosen.failures, chosen.cost_s) == (1, 2)
    assert chosen.mtbf_s == chosen.trained_s == pytest.approx(trained_s + 1000, abs=1)
    assert chosen.interval_s == pytest.approx(best_interval(2, chosen.mtbf_s), rel=1e-4) and chosen.bound == ""
    assert ordered.command.round == 2


def test_limits() -> None:
    """The policy file's, and the time that a save takes: a storage slower than the saves would fall behind."""
    driver = paced(min_interval=2.0, max_interval=5.0)
    progress(driver, 100)
    assert progress(driver, 120)[0].interval_s == 2
    driver.settle(step=False)
    save(driver, 120, node0=1.0, node1=0.5)
    assert [(each.interval_s, each.bound) for each in progress(driver, 140)[:1]] == [(5, "max")]
    driver.settle(step=False)
    save(driver, 140, node0=19.0, node1=0.5)
    assert [(each.interval_s, each.bound) for each in progress(driver, 160)[:1]] == [(10.5, "cost")]


def test_a_pause_is_no_long_step() -> None:
    """The time of a step is measured between samples without an incident."""
    driver = paced()
    progress(driver, 100)
    progress(driver, 120)
    driver.settle(step=False)
    driver.command("pause")
    driver.settle(step=False)
    assert driver.state.phase == "paused"
    driver.now += 3600 * SECOND
    driver.command("resume")
    driver.settle(step=False)
    assert progress(driver, 130) == [] and progress(driver, 150) == []
    assert driver.state.training.saved.pace.step_s == 0.5


def test_jobs_without_it() -> None:
    """A script that has its own interval, or counts its steps from the start of the round, is not ordered anything."""
    driver = job()
    assert progress(driver, 100) == progress(driver, 120) == []
    driver = paced()
    driver.state.training.step_absolute = False
    assert progress(driver, 100) == progress(driver, 120) == []


def test_a_log_with_choices_verifies() -> None:
    """Each choice follows from the log alone."""
    driver = paced()
    for step in (100, 120, 140):
        progress(driver, step)
    driver.settle(step=False)
    save(driver, 140, node0=1.0, node1=2.0)
    progress(driver, 160)
    driver.fail("node0")
    driver.settle()
    assert len(of(driver, IntervalChosen)) == 2
    assert verify(driver.events).mismatches == ()

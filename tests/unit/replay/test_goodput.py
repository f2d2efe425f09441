"""The goodput ledger: uses add up to the wall time, and each second is booked as documented."""

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from ftcore.events.checkpoint import CheckpointCommitted, StateLoaded
from ftcore.events.job import JobProgressed
from ftcore.ids import SECOND
from ftcore.logs.archive import read_events
from ftcore.replay import read
from ftcore.replay.goodput import USES, GoodputLedger, GoodputReport
from ftcore.replay.spans import SpanRow
from ftcore.sim.campaign.simulate import CampaignRequest, simulate
from ftcore.testing.driver import JobDriver

LOGS = sorted((Path(__file__).parents[2] / "golden" / "logs").glob("*/*.ftlog"))


def reported(driver: JobDriver) -> GoodputReport:
    ledger = GoodputLedger()
    read(driver.events, ledger)
    report = ledger.report()
    assert sum(report.nanoseconds.values()) == report.end - report.begin
    return report


@pytest.fixture
def driver() -> JobDriver:
    """A job of two nodes with one worker each that has completed step 1; one millisecond passes with each event."""
    made = JobDriver(nodes=2, slots=1, abilities=("pause",))
    made.start()
    return made


def after(driver: JobDriver, seconds: float) -> None:
    driver.now += round(seconds * SECOND)


def progress(driver: JobDriver, step: int, seconds: float) -> None:
    after(driver, seconds)
    assert driver.state.rounds.world is not None
    driver.own(JobProgressed(round=driver.state.rounds.world.round, step=step))


def test_training_is_productive(driver: JobDriver) -> None:
    """From the first step on, up to the last report."""
    progress(driver, 11, 100)
    report = reported(driver)
    assert report.seconds["productive"] == pytest.approx(100, abs=0.1)
    assert report.goodput == pytest.approx(1, abs=0.01)
    assert report.gpu_s["productive"] == pytest.approx(200, abs=0.2)
    assert [node.slots for node in report.nodes] == [1, 1]


def test_a_checkpoint_that_blocks_training_is_booked_as_such(driver: JobDriver) -> None:
    assert driver.state.rounds.world is not None
    after(driver, 5)
    driver.own(CheckpointCommitted(round=driver.state.rounds.world.round, step=5, seconds=4.0))
    progress(driver, 11, 95)
    seconds = reported(driver).seconds
    assert (seconds["checkpoint"], seconds["productive"]) == (4.0, pytest.approx(96, abs=0.1))


def test_steps_that_a_fault_lost_are_computed_again(driver: JobDriver) -> None:
    """Step 20 was reached, the next round begins with step 11: 9 of its 19 steps are repeated."""
    progress(driver, 20, 190)
    driver.fail("node0", exitcode=-9)
    driver.step = 10
    driver.settle()
    assert driver.state.training.step == 11
    progress(driver, 30, 190)
    report = reported(driver)
    assert report.seconds["recompute"] == pytest.approx(90, abs=0.1)
    assert report.seconds["productive"] == pytest.approx(290, abs=0.2)
    (cost,) = report.incidents
    assert cost.seconds["recompute"] == pytest.approx(90, abs=0.1)
    assert cost.gpu_s == pytest.approx(cost.total_s * 2)
    assert report.causes[0].cause == cost.cls and report.mtbf_s is not None


def test_steps_that_are_reported_after_a_fault_are_productive(driver: JobDriver) -> None:
    """Step 10 was the last one known; the node that is left says that step 19 was completed: 9 of 10 were new."""
    progress(driver, 10, 90)
    after(driver, 100)
    driver.lose("node1")
    progress(driver, 19, 0)
    assert reported(driver).seconds["recompute"] == pytest.approx(10, abs=0.2)
    driver.step = 19
    driver.join("node1")
    driver.settle()
    progress(driver, 30, 110)
    report = reported(driver)
    assert report.seconds["recompute"] == pytest.approx(10, abs=0.2)
    assert report.seconds["productive"] == pytest.approx(290, abs=0.5)


def test_the_time_in_which_a_state_was_loaded_is_taken_from_the_start(driver: JobDriver) -> None:
    progress(driver, 20, 10)
    driver.fail("node0", exitcode=-9)
    driver.settle(step=False)
    world = driver.state.rounds.world
    assert world is not None
    member = world.members[0]
    after(driver, 9)
    driver.say(
        member.node,
        StateLoaded(
            node=member.node, incarnation=member.incarnation, round=world.round, step=20, source="storage", seconds=6.0
        ),
    )
    driver.settle()
    seconds = reported(driver).incidents[0].seconds
    assert seconds["load"] == pytest.approx(6, abs=0.01)
    assert seconds["start"] == pytest.approx(3, abs=0.1)


def test_a_pause_belongs_to_its_request(driver: JobDriver) -> None:
    driver.command("pause")
    driver.settle()
    after(driver, 50)
    driver.command("resume")
    driver.settle()
    report = reported(driver)
    assert report.seconds["paused"] == pytest.approx(50, abs=0.1)
    assert [cost.kind for cost in report.incidents if "paused" in cost.seconds] == ["request"]


def test_time_between_two_runs_is_idle(driver: JobDriver) -> None:
    driver.stop()
    driver.settle()
    after(driver, 1000)
    driver.submit()
    assert reported(driver).seconds["idle"] == pytest.approx(1000, abs=1)


def test_a_replaced_node_is_idle_until_it_is_in_a_world(driver: JobDriver) -> None:
    driver.join("node2")
    progress(driver, 30, 10)
    (late,) = [node for node in reported(driver).nodes if node.node == "node2"]
    assert late.seconds["idle"] == pytest.approx(10, abs=0.1) and late.total_s == pytest.approx(10, abs=0.1)


def test_nodes_that_wait_for_the_first_world_wait_as_the_job_does() -> None:
    """GPU-seconds of the start are those of its use, not idle: the rows agree with the job's time."""
    late = JobDriver(nodes=2, slots=1)
    late.submit()
    late.join("node0")
    after(late, 10)
    late.join("node1")
    late.settle()
    progress(late, 1, 1)
    report = reported(late)
    (first,) = [node for node in report.nodes if node.node == "node0"]
    for use, seconds in first.seconds.items():
        assert seconds == pytest.approx(report.seconds[use], abs=0.1), use


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_golden_logs_add_up_and_agree_with_explain(path: Path) -> None:
    """To the nanosecond; an incident during which no worker trained costs what ``explain`` calls its total."""
    ledger = GoodputLedger()
    for event in read_events(path):
        ledger.feed(event)
        report = ledger.report()
        assert sum(report.nanoseconds.values()) == report.end - report.begin
        assert all(span.end == later.begin for span, later in zip(report.spans, report.spans[1:], strict=False))
    costs = {cost.id: cost for cost in report.incidents}
    for incident in ledger.explainer.incidents():
        phases = attrs.asdict(incident.phases)
        if incident.kind != "fault" or phases["first_step"] is None or incident.revisions > 1:
            continue
        spent = costs[incident.id].seconds
        response = sum(spent.get(use, 0.0) for use in USES if use not in ("detect", "recompute"))
        assert response == pytest.approx(phases["total"] - (phases["detect"] or 0.0), abs=1e-6)


def test_a_simulated_job_has_the_same_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of a campaign's ledger is, to 0.02 % of all time, what its log says."""
    ledger = GoodputLedger()

    def sink(group: list[object]) -> None:
        for event in group:
            ledger.feed(event)  # type: ignore[arg-type]

    simulated = simulate(CampaignRequest(nodes=8, days=20, rate=0.1, seed=1), sink, verified_max=0)
    report = ledger.report()
    total = sum(simulated.ledger.values())
    for use in USES:
        assert report.gpu_s[use] / sum(report.gpu_s.values()) == pytest.approx(simulated.ledger[use] / total, abs=5e-4)


def rows() -> Iterator[tuple[str, int, int]]:
    yield "a", 0, 10
    yield "b", 10, 20
    yield "a", 20, 40


def test_spans_change_without_gap() -> None:
    """A part of them, or the time of one use divided; neighbours of one use and incident are one span."""
    row = SpanRow()
    for use, begin, end in rows():
        row.add(begin, end, use, None)
    row.change(5, 25, ("a",), "c", "i1")
    assert [(each.begin, each.end, each.use) for each in row.spans] == [
        (0, 5, "a"), (5, 10, "c"), (10, 20, "b"), (20, 25, "c"), (25, 40, "a")
    ]  # fmt: skip
    assert row.length(0, "a") == 20
    row.divide(0, "a", [(6, "x", None), (4, "y", None), (0, "z", None)])
    assert [(each.begin, each.end, each.use) for each in row.spans] == [
        (0, 5, "x"), (5, 10, "c"), (10, 20, "b"), (20, 25, "c"), (25, 26, "x"), (26, 30, "y"), (30, 40, "z")
    ]  # fmt: skip

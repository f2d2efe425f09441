"""Disruptions: the training is paused until they end, and what follows if they do not."""

from typing import Any

import attrs
import msgspec
import pytest

from ftcore.commands import FindBoundary, PauseWorkers, ResumeWorkers
from ftcore.engine.operator_requests import judge
from ftcore.engine.platform_events import fact_from
from ftcore.events.checkpoint import CheckpointCommitted, CheckpointFailed, HeldShard, ShardPersisted
from ftcore.events.incident import IncidentOpened, IncidentResolved
from ftcore.events.job import JobSpec
from ftcore.events.node import OrderRefused
from ftcore.events.policy import ChainEntry, PolicyConsidered
from ftcore.events.worker import DisruptionEnded, FaultObserved
from ftcore.events.world import WorldFormed
from ftcore.policies.chain import default_entry
from ftcore.policies.file.config import default_chain
from ftcore.ports import MaintenanceAnnounced, MaintenanceOver
from ftcore.replay import verify
from ftcore.replay.status import status_of
from ftcore.states.disruption import DisruptionPhase
from ftcore.states.job import JobPhase
from ftcore.states.node import NodePhase
from ftcore.states.phases import is_paused
from ftcore.states.revisions import DISRUPTIONS, NEWEST, WORKERS_WAIT
from ftcore.testing.driver import JobDriver

PATIENCE_S = 300.0
NODE1 = "maintenance-notice/node1"


def job(
    *,
    on: tuple[str, ...] = ("maintenance-notice", "storage-away"),
    decides: int = NEWEST,
    names: tuple[str, ...] = ("process_restart", "shrink", "stop"),
) -> JobDriver:
    """A job of three nodes that trains; it may shrink to two."""
    options = {**default_entry("step_pause").options, "on": list(on), "patience": PATIENCE_S}
    chain = (
        ChainEntry(policy="step_pause", options=options),
        *(ChainEntry(policy=name, options=default_entry(name).options) for name in names),
    )
    driver = JobDriver(
        3,
        spec=JobSpec(argv=("train.py",), nodes_min=2, nodes_max=3, checkpoints="/checkpoints"),
        policy=msgspec.structs.replace(default_chain(), chain=chain),
        abilities=("pause", "checkpoint"),
        decides=decides,
    )
    driver.start()
    return driver


def announce(driver: JobDriver, node: str = "node1") -> None:
    fact = fact_from(driver.state, MaintenanceAnnounced(node=node, reason="live migration"))
    assert isinstance(fact, FaultObserved)
    driver.own(fact)
    driver.settle(step=False)


def is_over(driver: JobDriver, node: str = "node1") -> None:
    fact = fact_from(driver.state, MaintenanceOver(node=node, reason="the machine is back"))
    assert isinstance(fact, DisruptionEnded)
    driver.own(fact)
    driver.settle(step=False)


def fail_to_write(driver: JobDriver, node: str = "node0", *, away: bool = True) -> None:
    life = driver.state.membership.nodes[node].incarnation
    driver.own(CheckpointFailed(node=node, incarnation=life, round=1, step=9, reason="disk full", away=away))
    driver.settle(step=False)


def write(driver: JobDriver, step: int = 9) -> None:
    driver.own(CheckpointCommitted(round=driver.state.rounds.newest, step=step, where="/c", kept=3, own=True))
    driver.settle(step=False)


def write_shard(driver: JobDriver, node: str, step: int = 9) -> None:
    life = driver.state.membership.nodes[node].incarnation
    shard = HeldShard(rank=0, round=1, step=step, group=0, groups=3, ranks=3)
    driver.own(ShardPersisted(node=node, incarnation=life, shard=shard, file="shard", bytes=1, seconds=0.1))
    driver.settle(step=False)


def until_ordered(driver: JobDriver, kind: type) -> None:
    """Let nodes answer until an order of a kind is open."""
    while not any(isinstance(action.command, kind) for action in driver.state.orders.open.values()):
        assert driver._obey_once()


def expire(driver: JobDriver, kind: str) -> None:
    """Let time pass until a timer of the kind has expired."""
    while any(key.startswith(kind) for key in driver.state.deadlines):
        assert driver.wait()
    driver.settle(step=False)


def of(driver: JobDriver, kind: type) -> list[Any]:
    return [event.data for event in driver.events if isinstance(event.data, kind)]


def phases(driver: JobDriver) -> dict[str, str]:
    return {key: str(each.phase) for key, each in driver.state.evidence.disruptions.items()}


def check(driver: JobDriver) -> None:
    """The log verifies, and no event was an anomaly."""
    assert not [event for event in driver.events if event.type == "anomaly.observed"]
    assert verify(driver.events).mismatches == ()


BEGIN = {"maintenance": announce, "storage": fail_to_write}
END = {"maintenance": is_over, "storage": write}


@pytest.mark.parametrize("what", BEGIN)
def test_the_training_is_paused_until_the_disruption_ends(what: str) -> None:
    """No operator is needed, no round is formed, and the log says why it waits."""
    driver = job()
    BEGIN[what](driver)
    assert driver.state.phase == "paused"
    (opened,) = of(driver, IncidentOpened)
    assert opened.kind == "warning"
    paused_for = status_of(driver.state).paused_for
    assert paused_for is not None and paused_for.who == "step_pause" and what in paused_for.why
    END[what](driver)
    assert driver.state.phase == "running" and driver.state.rounds.newest == 1
    assert [each.outcome for each in of(driver, IncidentResolved)] == ["paused", "resumed"]
    assert not driver.state.evidence.disruptions and driver.state.requests.resume is None
    assert not [key for key in driver.state.deadlines if key.startswith("disruption")]
    check(driver)


@pytest.mark.parametrize("what", BEGIN)
def test_it_is_not_paused_unless_the_policy_names_the_disruption(what: str) -> None:
    """The warning is dropped, and is not opened again while the same disruption lasts."""
    driver = job(on=())
    BEGIN[what](driver)
    assert driver.state.phase == "running" and len(of(driver, IncidentOpened)) == 1
    if what == "storage":
        fail_to_write(driver)
    else:
        assert fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration")) is None
    assert len(of(driver, IncidentOpened)) == 1
    END[what](driver)
    assert not driver.state.evidence.disruptions
    check(driver)


def test_a_save_that_failed_for_another_reason_is_no_disruption() -> None:
    """The storage was slower than the saves, for example."""
    driver = job()
    fail_to_write(driver, away=False)
    assert driver.state.phase == "running" and not driver.state.evidence.disruptions


def test_a_node_is_drained_if_its_maintenance_lasts_too_long() -> None:
    """The chain is asked about a request to drain it; the next round is without it."""
    driver = job()
    announce(driver)
    expire(driver, "disruption")
    opened = of(driver, IncidentOpened)[-1]
    assert (opened.kind, opened.fault.detail, opened.fault.nodes) == ("request", "drain", ("node1",))
    assert driver.state.phase == "running" and driver.state.rounds.newest == 2
    assert [member.node for member in driver.state.rounds.world.members] == ["node0", "node2"]
    assert not driver.state.evidence.disruptions and driver.state.requests.resume is None
    check(driver)


def test_the_training_goes_on_if_nobody_can_drain_the_node() -> None:
    """Two nodes are the least: the request is dropped, and the workers are resumed."""
    driver = job()
    driver.lose("node2")
    driver.settle()
    assert driver.state.phase == "running" and len(driver.state.rounds.world.members) == 2
    announce(driver)
    assert driver.state.phase == "paused"
    expire(driver, "disruption")
    assert driver.state.phase == "running" and driver.state.rounds.newest == 2
    assert phases(driver) == {NODE1: "given_up"}
    is_over(driver)
    assert driver.state.phase == "running" and not driver.state.evidence.disruptions
    check(driver)


def test_the_training_goes_on_if_the_storage_stays_away() -> None:
    """A second warning is opened, for example for an alert; the storage is not waited for twice."""
    driver = job()
    fail_to_write(driver)
    expire(driver, "disruption")
    assert driver.state.phase == "running"
    assert [each.kind for each in of(driver, IncidentOpened)] == ["warning", "warning", "request"]
    passed = [each for each in of(driver, PolicyConsidered) if each.policy == "step_pause" and each.verdict == "pass"]
    assert passed[0].reason == "the outage of the storage was awaited for 5m"
    fail_to_write(driver)
    assert driver.state.phase == "running" and phases(driver) == {"storage-away": "given_up"}
    write(driver)
    fail_to_write(driver)
    assert driver.state.phase == "paused"  # another outage
    check(driver)


def test_an_operator_resumes_a_job_that_a_policy_paused() -> None:
    """The disruption does not pause it again."""
    driver = job()
    announce(driver)
    assert judge(driver.state, "resume") is None
    driver.command("resume")
    driver.settle(step=False)
    assert driver.state.phase == "running" and phases(driver) == {NODE1: "given_up"}
    assert not [key for key in driver.state.deadlines if key.startswith("disruption")]
    is_over(driver)
    assert driver.state.phase == "running"
    check(driver)


def test_an_operator_keeps_the_job_paused() -> None:
    """The end of the disruption does not resume it; ``resume`` does."""
    driver = job()
    announce(driver)
    assert judge(driver.state, "pause") is None
    driver.command("pause", who="ann@login1")
    assert driver.state.phase == "paused" and driver.state.requests.paused_for.who == "ann@login1"
    is_over(driver)
    assert driver.state.phase == "paused"
    driver.command("resume")
    driver.settle(step=False)
    assert driver.state.phase == "running"
    check(driver)


def test_two_disruptions_are_both_awaited() -> None:
    """The training goes on when the last one is over."""
    driver = job()
    announce(driver)
    fail_to_write(driver)
    assert driver.state.phase == "paused" and phases(driver) == {NODE1: "awaited", "storage-away": "awaited"}
    is_over(driver)
    assert driver.state.phase == "paused" and "storage" in driver.state.requests.paused_for.why
    write(driver)
    assert driver.state.phase == "running"
    check(driver)


def test_the_job_is_paused_again_after_a_fault() -> None:
    """A worker is killed during the pause: it is started again, and waits at its next boundary."""
    driver = job()
    announce(driver)
    driver.fail("node0", exitcode=-9)
    driver.settle()
    driver.settle(step=False)
    assert driver.state.phase == "paused" and driver.state.rounds.newest == 2
    assert phases(driver) == {NODE1: "awaited"}
    is_over(driver)
    assert driver.state.phase == "running"
    check(driver)


def test_a_disruption_that_ends_during_a_recovery_pauses_nothing() -> None:
    """Nor does one that lasts too long meanwhile: its node is drained after the recovery."""
    driver = job()
    announce(driver)
    driver.fail("node0", exitcode=-9)
    is_over(driver)
    driver.settle()
    assert driver.state.phase == "running" and driver.state.requests.pending is None
    check(driver)


def test_a_fault_that_interrupts_the_pausing_delays_it() -> None:
    """The warning became a fault; after it the disruption still lasts, and the training is paused."""
    driver = job()
    driver.own(fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration")))
    driver.fail("node0", exitcode=-9)
    driver.settle()
    driver.settle(step=False)
    assert driver.state.phase == "paused" and phases(driver) == {NODE1: "awaited"}
    check(driver)


def test_a_disruption_that_ends_while_the_workers_are_being_paused() -> None:
    """They are resumed as soon as all of them wait."""
    driver = job()
    driver.own(fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration")))
    driver.own(fact_from(driver.state, MaintenanceOver(node="node1")))
    driver.settle(step=False)
    assert driver.state.phase == "running" and of(driver, IncidentResolved)[-1].outcome == "resumed"
    check(driver)


def test_a_rank_that_does_not_reach_the_boundary_ends_the_pause() -> None:
    """The plan fails, the others are resumed, and the training goes on unchanged."""
    driver = job()
    driver.refuses = {"node2": ("pause_workers",)}
    announce(driver)
    assert driver.state.phase == "running" and phases(driver) == {NODE1: "asked"}
    assert of(driver, OrderRefused)
    assert any(isinstance(e.data.command, ResumeWorkers) for e in driver.events if e.type == "action.ordered")
    check(driver)


def test_the_maintenance_of_a_lost_node_is_over() -> None:
    """Nothing waits for a node that is no longer there."""
    driver = job()
    announce(driver)
    driver.lose("node1")
    assert not driver.state.evidence.disruptions
    driver.settle()
    assert driver.state.phase == "running" and len(driver.state.rounds.world.members) == 2
    check(driver)


def test_maintenance_of_a_node_in_standby_pauses_nothing() -> None:
    """It counts once the node trains."""
    driver = job()
    driver.join("node3")
    announce(driver, "node3")
    assert driver.state.phase == "running" and not of(driver, IncidentOpened)
    assert phases(driver) == {"maintenance-notice/node3": "new"}


def test_a_disruption_before_the_first_round_is_not_forgotten() -> None:
    """The job is paused as soon as its workers run."""
    driver = job()
    driver.fail("node0", exitcode=-9)
    assert driver.state.phase != "running"
    driver.own(fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration")))
    driver.settle()
    driver.settle(step=False)
    assert driver.state.phase == "paused"
    check(driver)


def test_a_node_is_drained_during_the_pause() -> None:
    """The next round is without it, and waits for the disruption as the round before did."""
    driver = job()
    announce(driver)
    driver.command("drain", "node2")
    driver.settle()
    assert [member.node for member in driver.state.rounds.world.members] == ["node0", "node1"]
    driver.settle(step=False)
    assert driver.state.phase == "paused" and phases(driver) == {NODE1: "awaited"}
    is_over(driver)
    assert driver.state.phase == "running"
    check(driver)


def test_reports_of_the_platform_that_repeat_or_are_late_change_nothing() -> None:
    """It delivers at least once, and in any order."""
    driver = job()
    over = MaintenanceOver(node="node1")
    assert fact_from(driver.state, over) is None
    announce(driver)
    assert fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="again")) is None
    assert fact_from(driver.state, attrs.evolve(over, node="node9")) is None
    assert fact_from(driver.state, attrs.evolve(over, pid=999_999)) is None
    is_over(driver)
    assert fact_from(driver.state, over) is None


def test_logs_of_earlier_masters_open_no_incident() -> None:
    """They knew no disruptions."""
    driver = job(decides=DISRUPTIONS - 1)
    driver.own(fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration")))
    driver.settle()
    assert driver.state.phase == "running" and not of(driver, IncidentOpened)
    assert driver.state.evidence.disruptions[NODE1].phase is DisruptionPhase.NEW
    check(driver)


@pytest.mark.parametrize("at", [FindBoundary, PauseWorkers])
@pytest.mark.parametrize("kind", ["loss-spike", "straggler", "preemption-notice"])
def test_another_warning_does_not_take_over_the_pausing(at: type, kind: str) -> None:
    """The workers are paused, and resumed after the disruption; a warning that still holds comes again."""
    driver = job()
    driver.own(fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration")))
    until_ordered(driver, at)
    driver.observe("node2", kind, values={"factor": 2.0, "steps": 50.0, "lag_s": 1.0})
    driver.settle(step=False)
    assert driver.state.phase == "paused" and phases(driver) == {NODE1: "awaited"}
    is_over(driver)
    assert driver.state.phase == "running"
    check(driver)


def test_an_operator_pauses_while_the_workers_are_being_paused() -> None:
    """The job stays paused after the disruption, and one ``resume`` ends that."""
    driver = job()
    driver.own(fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration")))
    until_ordered(driver, PauseWorkers)
    driver.command("pause", who="ann@login1")
    driver.settle(step=False)
    assert driver.state.phase == "paused" and driver.state.requests.paused_for.who == "ann@login1"
    is_over(driver)
    assert driver.state.phase == "paused" and not driver.state.requests.held
    driver.command("resume")
    driver.settle(step=False)
    assert driver.state.phase == "running"
    check(driver)


@pytest.mark.parametrize("how", ["refused", "late"])
def test_workers_that_are_not_resumed_are_started_again(how: str) -> None:
    """Nobody would notice that the job stays paused, so it counts as a fault."""
    driver = job()
    announce(driver)
    if how == "refused":
        driver.refuses = {"node2": ("resume_workers",)}
    else:
        driver.silence("node2")
    is_over(driver)
    while driver.state.phase != "running" or driver.state.rounds.newest == 1:
        driver.settle()
        driver._silent.clear()
        assert driver.state.phase == "running" or driver.wait()
    assert not driver.state.membership.count("paused")
    check(driver)


@pytest.mark.parametrize("first", ["operator", "policy"])
def test_patience_drains_no_node_while_an_operator_keeps_the_job_paused(first: str) -> None:
    """Only ``resume`` ends that pause."""
    driver = job()
    for who in ("operator", "policy") if first == "operator" else ("policy", "operator"):
        if who == "operator":
            driver.command("pause", who="ann@login1")
            driver.settle(step=False)
        else:
            announce(driver)
    assert driver.state.phase == "paused"
    assert not [key for key in driver.state.deadlines if key.startswith("disruption")]
    driver.command("resume")
    driver.settle(step=False)
    assert driver.state.phase == "running" and driver.state.rounds.newest == 1
    check(driver)


def test_the_storage_is_back_when_every_node_has_written_again() -> None:
    """What was refused, or something newer; an older checkpoint shows nothing."""
    driver = job()
    fail_to_write(driver, "node0")
    fail_to_write(driver, "node2")
    write(driver, 8)
    write_shard(driver, "node0", 8)
    write_shard(driver, "node1")
    write_shard(driver, "node0")
    assert driver.state.phase == "paused"
    write_shard(driver, "node2", 12)
    assert driver.state.phase == "running"
    check(driver)


def test_a_node_that_is_lost_is_not_waited_for_to_write() -> None:
    """The storage of the others is well."""
    driver = job()
    fail_to_write(driver, "node2")
    assert driver.state.phase == "paused"
    driver.lose("node2")
    driver.settle()
    driver.settle(step=False)
    assert driver.state.phase == "running" and not driver.state.evidence.disruptions
    check(driver)


def test_the_next_policy_leaves_no_node_paused() -> None:
    """Its own order does not take the place of the one that resumes the nodes which had paused already."""
    driver = job(names=("dying_checkpoint", "process_restart", "stop"))
    driver.refuses = {"node2": ("pause_workers", "save_checkpoint")}
    announce(driver)
    assert {each.policy for each in of(driver, PolicyConsidered) if each.verdict == "take"} == {
        "step_pause",
        "dying_checkpoint",
    }
    assert driver.state.phase == "running" and not driver.state.membership.count("paused")
    check(driver)


@pytest.mark.parametrize(("decides", "phase"), [(NEWEST, JobPhase.SUCCEEDED), (WORKERS_WAIT - 1, JobPhase.PAUSED)])
def test_no_worker_is_left_to_be_paused(decides: int, phase: JobPhase) -> None:
    """All have finished before they could wait: the job ends, although the disruption lasts."""
    driver = job(decides=decides)
    fact = fact_from(driver.state, MaintenanceAnnounced(node="node1", reason="live migration"))
    driver.own(fact)
    until_ordered(driver, PauseWorkers)
    driver.finish()
    assert driver.state.phase is phase
    check(driver)


@pytest.mark.parametrize("decides", [NEWEST, WORKERS_WAIT - 1])
def test_a_request_in_the_round_after_a_pause(decides: int) -> None:
    """It is answered at once, because its node is no member any more: that pauses no job whose workers train."""
    driver = job(decides=decides)
    announce(driver)
    for _ in range(2):
        driver.command("evict", "node2")
    driver.settle()
    driver.settle(step=False)
    waits = driver.state.membership.count(NodePhase.PAUSED) > 0
    assert len(of(driver, WorldFormed)) == 2
    assert (is_paused(driver.state) == waits) is (decides == NEWEST)
    check(driver)

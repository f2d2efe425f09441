"""The fold: the effect of events on the state."""

import copy

import msgspec
import pytest

from ftcore.commands import ReleaseNode
from ftcore.errors import UnknownEvent
from ftcore.events import decode, encode
from ftcore.events.envelope import EventId, Unknown
from ftcore.events.job import JobParked, JobProgressed, JobSubmitted, LogContradicted
from ftcore.events.master import MasterElected
from ftcore.events.operator import OperatorCommanded
from ftcore.events.worker import WorkersStepped
from ftcore.events.world import StoreOpened
from ftcore.faults.taxonomy import CLASSES
from ftcore.states.evidence import REPORTS_MAX
from ftcore.states.faultkey import OF_NO_NODE
from ftcore.states.fold import fold, is_duplicate, next_deadline, pending
from ftcore.states.model import JobState, digest
from ftcore.states.revisions import FIRST_RUN_ANEW
from ftcore.testing.driver import JobDriver


def running(**options) -> JobDriver:
    driver = JobDriver(**options)
    driver.start()
    assert driver.state.phase == "running"
    return driver


def test_folding_what_was_stored_gives_the_live_state():
    """Folding the encoded and decoded log again gives the digest of the live state."""
    driver = running(slots=2)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    state = JobState()
    for event in driver.events:
        fold(state, decode(encode(event)))
    assert digest(driver.state) == digest(state)
    assert driver.state == state


def test_a_copy_of_a_state_is_independent():
    """A copy of a state does not change when the original is folded further."""
    driver = running()
    kept, before = copy.deepcopy(driver.state), digest(driver.state)
    driver.fail("node0")
    assert digest(driver.state) != before == digest(kept)


@pytest.mark.parametrize(
    ("decides", "outcome", "phase"),
    [(FIRST_RUN_ANEW - 1, {"stopped"}, "stopped"), (FIRST_RUN_ANEW, set(), "forming")],
)
def test_a_job_stopped_before_its_first_run(decides: int, outcome: set[str], phase: str):
    """The log was replaced and an operator stopped the job: the next ftrun begins a run. Older masters released it."""
    driver = JobDriver(decides=decides)
    driver.own(MasterElected(host="host", pid=1, address="unix:master", version="1", decides=decides))
    driver.own(LogContradicted(node="node0", log_id="other", seq=900, digest="00", reason="deleted"))
    driver.own(OperatorCommanded(command="stop", who="ann"))
    assert driver.state.phase == "stopped"
    driver.submit()
    driver.join("node0")
    driver.join("node1")
    commands = [order.command for order in driver.state.orders.open.values()]
    assert {command.outcome for command in commands if isinstance(command, ReleaseNode)} == outcome
    assert driver.state.phase == phase


def test_gaps_are_a_programming_error():
    """The fold takes the next event and no other."""
    driver = running()
    with pytest.raises(AssertionError, match="event 2 after 0"):
        fold(JobState(), driver.events[1])


def test_unknown_events_stop_the_fold_unless_ignorable():
    """A newer log is read as far as it may be; beyond that the error names what is needed."""
    driver = running()
    seq = driver.state.seq + 1
    newer = msgspec.structs.replace(
        driver.events[-1], seq=seq, type="node.upgraded", v=3, ignorable=True, data=Unknown(fields={"x": 1})
    )
    fold(driver.state, newer)
    assert driver.state.seq == seq
    with pytest.raises(UnknownEvent, match=r"event \d+ is a node.upgraded v3, which this ftcore does not know"):
        fold(driver.state, msgspec.structs.replace(newer, seq=seq + 1, ignorable=False))


def test_duplicates_are_identified_by_source_incarnation_and_number():
    """A folded fact is a duplicate; a fact of another incarnation or with a later number is not."""
    driver = running()
    incarnation, n = driver.state.log.sources["node0"]
    assert is_duplicate(driver.state, "node0", incarnation, n)
    assert is_duplicate(driver.state, "node0", incarnation, 1)
    assert not is_duplicate(driver.state, "node0", incarnation, n + 1)
    assert not is_duplicate(driver.state, "node0", "node0-9", 1)
    assert not is_duplicate(driver.state, "stranger", "x", 1)


@pytest.mark.parametrize(("decides", "kept"), [(2, {1: "node0"}), (3, {})])
def test_a_run_begins_without_the_stores_of_the_run_before(decides: int, kept: dict[int, str]):
    """It does not wait for a store that no node was ordered to open; logs of earlier masters keep their decisions."""
    driver = running()
    driver.silence("node0")  # which serves the store, and does not leave
    driver.stop()
    driver.settle()
    driver.wait()
    assert driver.state.phase == "stopped" and driver.state.rounds.store_nodes == {1: "node0"}
    elected = next(event for event in driver.events if isinstance(event.data, MasterElected))
    driver.own(msgspec.structs.replace(elected.data, decides=decides))
    submitted = next(event for event in driver.events if isinstance(event.data, JobSubmitted))
    fold(driver.state, msgspec.structs.replace(submitted, seq=driver.state.seq + 1))
    assert driver.state.rounds.store_nodes == kept and set(driver.state.rounds.stores) == set(kept)


def test_stale_facts_change_nothing():
    """Facts of an older incarnation or an older round reach no machine."""
    driver = running()
    before = copy.deepcopy(driver.state.membership.nodes)
    stale = [("node0-0", 1), ("node0-1", 0)]
    for incarnation, round_ in stale:
        driver.own(WorkersStepped(node="node0", incarnation=incarnation, round=round_, step=99, absolute=True))
    driver.own(JobProgressed(round=0, step=99))
    assert driver.state.membership.nodes == before
    assert driver.state.training.step == 1


def test_a_script_that_reports_steps_later_is_believed():
    """The optimizer's first step was counted in the round; then the script reports the training's."""
    driver = running()
    driver.state.training.step_absolute = False
    driver.own(JobProgressed(round=1, step=2))
    assert not driver.state.training.step_absolute
    driver.own(JobProgressed(round=1, step=14, absolute=True))
    assert (driver.state.training.step, driver.state.training.step_absolute) == (14, True)


def test_orders_are_pending_until_all_nodes_have_answered():
    """An order is pending, under its effect ID, until every addressed node has answered."""
    driver = running()
    driver.fail("node0", exitcode=-9)
    effects = [action.effect for action in pending(driver.state)]
    assert [effect.split(".")[0] for effect in effects] == ["stop_workers", "open_store"]
    driver.settle()
    assert pending(driver.state) == []


def test_the_first_deadline_comes_first():
    """Deadlines are ordered by time, ties by name."""
    state = JobState()
    assert next_deadline(state) is None
    state.deadlines = {"b": 5, "a": 5, "c": 4}
    assert next_deadline(state) == ("c", 4)
    del state.deadlines["c"]
    assert next_deadline(state) == ("a", 5)


def test_a_node_keeps_its_ordinal():
    """A node that rejoins has its old place; a new node gets the lowest free one."""
    driver = running(nodes=3)
    driver.lose("node1")
    driver.join("stranger")
    assert driver.state.membership.nodes["stranger"].ordinal == 1
    driver.lose("stranger")
    driver.join("node1")
    assert driver.state.membership.nodes["node1"].ordinal == 1


def test_a_stuck_job_keeps_its_previous_phase():
    """Parking stores the phase to return to; parking again does not overwrite it."""
    driver = running()
    for _ in range(2):
        event = driver.events[-1]
        parked = msgspec.structs.replace(
            event,
            seq=driver.state.seq + 1,
            id=EventId("master", "1", driver.state.seq + 1),
            type="job.parked",
            kind="decision",
            cause=None,
            data=JobParked(error="KeyError: 'x'", fact="{}", version="0"),
        )
        fold(driver.state, parked)
        driver.events.append(parked)
    assert (driver.state.phase, driver.state.stuck.before) == ("stuck", "running")


def test_a_victim_that_reports_first_costs_no_budget():
    """A plan replaced before it was tried is refunded: one attempt, no back-off, the class of the root fault."""
    driver = running()
    driver.fail("node1", message="RuntimeError: Connection closed by peer [127.0.0.1]:1")
    driver.fail("node0", exitcode=-9)
    assert len(driver.state.history.attempts["process_restart"]) == 1
    assert driver.state.incident is not None
    assert (driver.state.incident.plan_in_force().wait_s, driver.state.incident.fault.cls) == (0.0, "signal-preemption")
    driver.settle()
    assert (driver.state.phase, driver.state.history.streak) == ("running", 0)


def test_a_plan_whose_round_was_hit_counts():
    """A fault in the new round is a spent attempt, and the next one waits."""
    driver = running()
    driver.fail("node1", exitcode=-9)
    driver.settle(step=False)
    driver.fail("node0", exitcode=-11)
    assert len(driver.state.history.attempts["process_restart"]) == 2
    assert driver.state.incident is not None
    assert driver.state.incident.plan_in_force().wait_s >= 1.0


def test_many_old_reports_do_not_hide_the_newest_round():
    """However many workers failed in the rounds before, a fault in the newest round is seen."""
    driver = JobDriver(nodes=1, slots=8)
    driver.submit()
    driver.join("node0")
    driver.settle(step=False)
    for _ in range(12):
        assert driver.state.phase == "running"
        for local_rank in range(8):
            driver.fail("node0", local_rank=local_rank, exitcode=-9)
        assert driver.state.phase == "recovering"
        driver.settle(step=False)
        while driver.state.phase in ("recovering", "forming"):
            assert driver.wait()
            driver.settle(step=False)
    assert len(driver.state.evidence.reports) <= REPORTS_MAX


def test_faults_of_the_script_and_the_data_count_for_no_node():
    """These faults recur on any node; all others count for the node at fault."""
    driver = JobDriver(nodes=2)
    driver.start()
    driver.fail("node1", exitcode=1, message="ValueError: x")
    driver.settle()
    assert driver.state.evidence.node_faults == {}
    driver.fail("node1", exitcode=-9)
    driver.settle()
    assert list(driver.state.evidence.node_faults) == ["node1"]


def test_the_fold_and_the_taxonomy_agree_on_faults_of_no_node():
    """The fold is in a layer below the taxonomy and has its own copy of the names."""
    assert set(OF_NO_NODE) == {str(cls) for cls, known in CLASSES.items() if known.at_fault in ("data", "user")}


def test_a_fault_counts_for_one_node_after_any_number_of_diagnoses():
    """Each victim of a hung collective shows another rank further behind; only the last culprit keeps the count."""
    driver = JobDriver(nodes=4)
    driver.start()
    for number in range(3):
        said = f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={10 - number}, OpType=ALLREDUCE)"
        driver.fail(f"node{number}", exitcode=-6, message=f"[Rank {number}] {said} ran for 600001 milliseconds")
        assert {node for node, times in driver.state.evidence.node_faults.items() if times} == {f"node{number}"}
    driver.command("admit", "node2")
    driver.lose("node3")
    assert driver.state.log.poisoned == ""
    assert {node for node, times in driver.state.evidence.node_faults.items() if times} == {"node3"}


def test_a_fault_of_no_node_is_counted_apart_and_moves_with_its_diagnosis():
    """A retry or restart for the script's own exception is charged to no node."""
    driver = JobDriver(nodes=3)
    driver.start()
    driver.fail("node1", message="ValueError: x")
    evidence = driver.state.evidence
    assert (evidence.node_faults, len(evidence.other_faults)) == ({}, 1)
    driver.settle()
    driver.fail("node2", message="ValueError: x")
    driver.fail("node2", exitcode=-11, tail="CUDA error: uncorrectable ECC error encountered")
    evidence = driver.state.evidence
    assert ({node: len(times) for node, times in evidence.node_faults.items()}, len(evidence.other_faults)) == (
        {"node2": 1},
        1,
    )


def test_a_store_that_was_opened_too_late_is_not_used():
    """Its node was released and another node was ordered to open the store: workers use that one."""
    driver = JobDriver(nodes=3)
    driver.start()
    driver.fail("node1")
    round_ = driver.state.rounds.newest + 1
    host = driver.state.rounds.store_nodes[round_]
    late = next(node for node in driver.state.membership.nodes if node != host)
    life = driver.state.membership.nodes[late].incarnation
    driver.say(late, StoreOpened(node=late, incarnation=life, round=round_, host="late", port=1, effect="older"))
    assert driver.state.rounds.stores.get(round_) != "late:1"

"""The fold: what events do to the state."""

import copy

import attrs
import msgspec
import pytest

from ftcore.errors import UnknownEvent
from ftcore.events import decode, encode
from ftcore.events.envelope import EventId, Unknown
from ftcore.events.job import JobParked, JobProgressed, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.worker import WorkersStepped
from ftcore.events.world import StoreOpened
from ftcore.faults.taxonomy import CLASSES
from ftcore.states.faultkey import OF_NO_NODE
from ftcore.states.fold import fold, is_duplicate, next_deadline, pending
from ftcore.states.model import REPORTS_MAX, JobState, digest
from ftcore.testing.driver import JobDriver


def running(**options) -> JobDriver:
    driver = JobDriver(**options)
    driver.start()
    assert driver.state.phase == "running"
    return driver


def test_folding_what_was_stored_gives_the_live_state():
    """Encoded, decoded and folded anew, the log gives the digest of the state that was decided on."""
    driver = running(slots=2)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    state = JobState()
    for event in driver.events:
        fold(state, decode(encode(event)))
    assert digest(driver.state) == digest(state)
    assert driver.state == state


def test_a_copy_of_a_state_goes_its_own_way():
    """A state that was copied does not change when the other one is folded on."""
    driver = running()
    kept, before = copy.deepcopy(driver.state), digest(driver.state)
    driver.fail("node0")
    assert digest(driver.state) != before == digest(kept)


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


def test_duplicates_are_told_by_source_incarnation_and_number():
    """A fact that was folded is a duplicate; one of another incarnation or with a later number is none."""
    driver = running()
    incarnation, n = driver.state.sources["node0"]
    assert is_duplicate(driver.state, "node0", incarnation, n)
    assert is_duplicate(driver.state, "node0", incarnation, 1)
    assert not is_duplicate(driver.state, "node0", incarnation, n + 1)
    assert not is_duplicate(driver.state, "node0", "node0-9", 1)
    assert not is_duplicate(driver.state, "stranger", "x", 1)


@pytest.mark.parametrize(("decides", "kept"), [(2, {1: "node0"}), (3, {})])
def test_a_run_begins_without_the_stores_of_the_run_before(decides: int, kept: dict[int, str]):
    """It does not wait for a store that nobody is asked for; logs of earlier masters keep the decisions they hold."""
    driver = running()
    driver.silence("node0")  # which serves the store, and does not leave
    driver.stop()
    driver.settle()
    driver.wait()
    assert driver.state.phase == "stopped" and driver.state.store_nodes == {1: "node0"}
    elected = next(event for event in driver.events if isinstance(event.data, MasterElected))
    driver.own(attrs.evolve(elected.data, decides=decides))
    submitted = next(event for event in driver.events if isinstance(event.data, JobSubmitted))
    fold(driver.state, msgspec.structs.replace(submitted, seq=driver.state.seq + 1))
    assert driver.state.store_nodes == kept and set(driver.state.stores) == set(kept)


def test_stale_facts_change_nothing():
    """What an older incarnation, or an older round, still says reaches no machine."""
    driver = running()
    before = copy.deepcopy(driver.state.nodes)
    stale = [("node0-0", 1), ("node0-1", 0)]
    for incarnation, round_ in stale:
        driver.own(WorkersStepped(node="node0", incarnation=incarnation, round=round_, step=99, absolute=True))
    driver.own(JobProgressed(round=0, step=99))
    assert driver.state.nodes == before
    assert driver.state.step == 1


def test_pending_orders_wait_for_who_has_not_answered():
    """An order is pending until every addressed node answered; under the same effect id all along."""
    driver = running()
    driver.fail("node0", exitcode=-9)
    effects = [action.effect for action in pending(driver.state)]
    assert [effect.split(".")[0] for effect in effects] == ["stop_workers", "open_store"]
    driver.settle()
    assert pending(driver.state) == []


def test_the_first_deadline_comes_first():
    """Deadlines are told in order of time, ties by name."""
    state = JobState()
    assert next_deadline(state) is None
    state.deadlines = {"b": 5, "a": 5, "c": 4}
    assert next_deadline(state) == ("c", 4)
    del state.deadlines["c"]
    assert next_deadline(state) == ("a", 5)


def test_a_node_keeps_its_ordinal():
    """A node that comes back has its place again; a newcomer gets the lowest free one."""
    driver = running(nodes=3)
    driver.lose("node1")
    driver.join("stranger")
    assert driver.state.nodes["stranger"].ordinal == 1
    driver.lose("stranger")
    driver.join("node1")
    assert driver.state.nodes["node1"].ordinal == 1


def test_a_parked_job_remembers_where_it_was():
    """Parking keeps the phase to come back to; parking again keeps the first."""
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
    assert (driver.state.phase, driver.state.before_stuck) == ("stuck", "running")


def test_a_victim_that_reports_first_costs_no_budget():
    """The first reading is replaced before it was tried: one attempt, no back-off, the culprit's class."""
    driver = running()
    driver.fail("node1", message="RuntimeError: Connection closed by peer [127.0.0.1]:1")
    driver.fail("node0", exitcode=-9)
    assert len(driver.state.attempts["process_restart"]) == 1
    assert driver.state.incident is not None
    assert (driver.state.incident.wait_s, driver.state.incident.fault.cls) == (0.0, "signal-preemption")
    driver.settle()
    assert (driver.state.phase, driver.state.streak) == ("running", 0)


def test_a_plan_whose_round_was_hit_counts():
    """A fault in the new round is a spent attempt, and the next one waits."""
    driver = running()
    driver.fail("node1", exitcode=-9)
    driver.settle(step=False)
    driver.fail("node0", exitcode=-11)
    assert len(driver.state.attempts["process_restart"]) == 2
    assert driver.state.incident is not None
    assert driver.state.incident.wait_s >= 1.0


def test_reports_without_end_do_not_hide_the_newest_round():
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
    assert len(driver.state.reports) <= REPORTS_MAX


def test_faults_of_the_script_and_the_data_count_for_no_node():
    """They follow the job wherever it runs; all others count for the culprit's node."""
    driver = JobDriver(nodes=2)
    driver.start()
    driver.fail("node1", exitcode=1, message="ValueError: x")
    driver.settle()
    assert driver.state.node_faults == {}
    driver.fail("node1", exitcode=-9)
    driver.settle()
    assert list(driver.state.node_faults) == ["node1"]


def test_the_fold_and_the_taxonomy_agree_on_whose_faults_they_are():
    """The fold stands below the taxonomy and keeps the names by itself."""
    assert set(OF_NO_NODE) == {str(cls) for cls, known in CLASSES.items() if known.at_fault in ("data", "user")}


def test_one_fault_counts_for_one_node_however_often_it_is_read_anew():
    """Each victim of a hung collective shows another rank further behind; only the last culprit keeps the count."""
    driver = JobDriver(nodes=4)
    driver.start()
    for number in range(3):
        said = f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum={10 - number}, OpType=ALLREDUCE)"
        driver.fail(f"node{number}", exitcode=-6, message=f"[Rank {number}] {said} ran for 600001 milliseconds")
        assert {node for node, times in driver.state.node_faults.items() if times} == {f"node{number}"}
    driver.command("admit", "node2")
    driver.lose("node3")
    assert driver.state.poisoned == ""
    assert {node for node, times in driver.state.node_faults.items() if times} == {"node3"}


def test_a_store_that_was_opened_too_late_serves_nobody():
    """Its node was asked first and released; another was asked in its place, and workers are sent to that one."""
    driver = JobDriver(nodes=3)
    driver.start()
    driver.fail("node1")
    round_ = driver.state.round + 1
    host = driver.state.store_nodes[round_]
    late = next(node for node in driver.state.nodes if node != host)
    life = driver.state.nodes[late].incarnation
    driver.say(late, StoreOpened(node=late, incarnation=life, round=round_, host="late", port=1, effect="older"))
    assert driver.state.stores.get(round_) != "late:1"

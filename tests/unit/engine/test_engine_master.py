"""The master's answers to agents, its refusals, and the leases of nodes."""

from typing import Any

import pytest

from ftcore.engine.master import (
    Leases,
    accepts_facts_of,
    acknowledged,
    answers_to,
    due,
    is_known,
    refusal,
    unanswered,
    wants_run,
    wrong_job,
)
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.job import JobSpec
from ftcore.events.worker import WorkerFailed
from ftcore.ids import seconds
from ftcore.runtime.wire.frames import same_release
from ftcore.testing.driver import JobDriver


def life(driver: JobDriver, node: str) -> str:
    return driver.state.membership.nodes[node].incarnation


def test_a_batch_is_answered_to_the_incarnations_concerned():
    """The newest fact of each incarnation is acknowledged; an order goes to the incarnation that it is for."""
    driver = JobDriver(nodes=2)
    driver.submit()
    driver.join("node0")
    batch = driver.say("node0", driver.groups[-1][0].data)
    assert answers_to(driver.state, batch).acks == {("node0", "node0-1"): 2}
    driver.join("node1")
    (ordered,) = [event for event in driver.groups[-1] if event.type == "action.ordered"]
    told = answers_to(driver.state, driver.groups[-1]).orders
    assert {key: [order.effect for order in orders] for key, orders in told.items()} == {
        ("node0", "node0-1"): [ordered.data.effect]
    }


def test_unanswered_orders_are_repeated_to_the_same_incarnation_only():
    """A new incarnation of the node has no orders yet."""
    driver = JobDriver(nodes=2)
    driver.start()
    driver.silence("node1")
    driver.fail("node0")
    effects = [order.effect for order in unanswered(driver.state, "node1", life(driver, "node1"))]
    assert [effect.partition(".")[0] for effect in effects] == ["stop_workers"]
    assert unanswered(driver.state, "node1", "another") == []


def test_only_what_is_durable_counts_as_acknowledged():
    """And only of the same life."""
    assert acknowledged({"a": ("1", 7)}, "a", "1") == 7
    assert acknowledged({"a": ("1", 7)}, "a", "2") == acknowledged({}, "a", "1") == 0


def test_refused_agents():
    """An ended incarnation, a replaced one and a name in use are refused; a live one and a new node are not."""
    driver = JobDriver(nodes=2)
    driver.start()
    state, mine = driver.state, life(driver, "node0")
    assert refusal(state, "node0", mine, 3, occupied=False) is None
    assert refusal(state, "node9", "new", 0, occupied=False) is None
    in_use = refusal(state, "node0", "new", 0, occupied=True)
    assert in_use is not None
    assert not in_use.rejoin
    taken = refusal(state, "node0", "older", 3, occupied=False)
    assert taken is not None
    assert taken.rejoin
    driver.lose("node0")
    lost = refusal(state, "node0", mine, 3, occupied=False)
    assert lost is not None
    assert lost.rejoin


def test_an_agent_that_was_unreachable_when_the_run_ended_leaves_with_its_outcome():
    """It does not begin another run; an agent that connects for the first time does."""
    driver = JobDriver(nodes=2)
    driver.start()
    away = life(driver, "node1")
    driver.lose("node1")
    driver.stop()
    driver.settle()
    assert wants_run(driver.state)
    for caller, acked, again in ((away, 3, False), ("next", 0, True)):
        found = refusal(driver.state, "node1", caller, acked, occupied=False, again=again)
        assert found is not None
        assert found.release is not None
        assert (found.release.outcome, found.release.exit_code) == ("stopped", 5)
    assert refusal(driver.state, "node1", "new", 0, occupied=False) is None


def test_a_late_node_of_a_launch_begins_no_other_run():
    """It leaves with the outcome of the run that the same call began; one of another call begins the next run."""
    driver = JobDriver(nodes=2, launch="one")
    driver.start()
    assert refusal(driver.state, "node9", "new", 0, occupied=False, launch="one") is None
    driver.stop()
    driver.settle()
    late = refusal(driver.state, "node9", "new", 0, occupied=False, launch="one")
    assert late is not None and late.release is not None
    assert late.release.outcome == "stopped"
    for other in ("two", ""):
        assert refusal(driver.state, "node9", "new", 0, occupied=False, launch=other) is None


def test_a_caller_speaks_for_itself_and_for_the_life_before_it():
    """Facts of even older incarnations were already reported by later ones."""
    driver = JobDriver(nodes=2)
    driver.start()
    before = life(driver, "node0")
    assert is_known(driver.state, "node0", before)
    assert accepts_facts_of(driver.state, "node0", "new", "new")
    assert accepts_facts_of(driver.state, "node0", "new", before)
    assert not accepts_facts_of(driver.state, "node0", "new", "older")
    assert accepts_facts_of(driver.state, "nobody", "new", "older")
    driver.lose("node0")
    assert accepts_facts_of(driver.state, "node0", "new", "new")
    assert not accepts_facts_of(driver.state, "node0", "new", before)


def test_facts_of_a_lost_incarnation_stop_no_workers():
    """The ends of its workers, reported when it resumes, are not a fault of the world that trains without it."""
    driver = JobDriver(nodes=3, spec=JobSpec(argv=("train.py",), nodes_min=2, nodes_max=3))
    driver.start()
    old = life(driver, "node2")
    driver.lose("node2")
    late = WorkerFailed(
        node="node2", incarnation=old, round=1, rank=2, local_rank=0, pid=1, exitcode=1, step=1, absolute=False
    )
    events = driver.say("node2", late)
    assert [event.type for event in events] == ["worker.failed"]


def test_a_new_master_waits_before_deadlines_count():
    """Two leases, so that pending answers arrive first; later deadlines are unchanged."""
    assert due(5, led_since=100, lease_s=2.0) == 100 + seconds(4)
    assert due(seconds(50), led_since=100, lease_s=2.0) == seconds(50)


def test_leases():
    """A lease counts from the last frame; before the first connection, all nodes have two leases."""
    leases = Leases(lease_ns=20, look_ns=10)
    nodes = frozenset({("a", "1"), ("b", "1")})
    assert leases.silent(nodes, 100) == []
    assert leases.silent(nodes, 120) == []
    assert leases.silent(nodes, 140) == []
    leases.heard("a", "1", 141)
    assert leases.silent(nodes, 150) == []
    assert leases.silent(nodes, 161) == []
    leases.heard("a", "1", 162)
    assert leases.silent(nodes, 165) == [("b", "1")]
    assert leases.last_heard("a", "1") == 162
    assert leases.silent(nodes, 183) == sorted(nodes)
    assert leases.silent(frozenset(), 185) == []
    assert leases.last_heard("a", "1") == 0
    early = Leases(lease_ns=20, look_ns=10)
    early.heard("a", "1", 95)
    assert early.silent(nodes, 100) == []
    early.heard("a", "1", 118)
    assert early.silent(nodes, 120) == []
    assert early.silent(nodes, 130) == [("b", "1")]
    alone = Leases(lease_ns=20, look_ns=10)
    for when in range(100, 141, 10):
        assert alone.silent(nodes, when) == []
    assert alone.silent(nodes, 150) == sorted(nodes)


class Watched(frozenset[tuple[str, str]]):
    """A set that counts the looks at it."""

    looks = 0

    def __contains__(self, key: object) -> bool:
        Watched.looks += 1
        return super().__contains__(key)

    def __sub__(self, other: Any) -> frozenset[tuple[str, str]]:
        Watched.looks += 1
        return super().__sub__(other)


def test_a_check_of_thousands_examines_only_expired_leases():
    """While membership is unchanged, the cost of a check depends on the number of expired leases only."""
    leases = Leases(lease_ns=20, look_ns=10)
    nodes = Watched((f"node{n}", "1") for n in range(1000))
    for when in range(100, 160, 10):
        for name, _ in sorted(nodes)[when >= 120 :]:
            leases.heard(name, "1", when)
        before = Watched.looks
        assert leases.silent(nodes, when) == ([("node0", "1")] if when > 130 else [])
        assert Watched.looks - before == (1 if when in (100, 140, 150) else 0)


def test_a_gap_extends_no_lease_beyond_now():
    """After a gap no heartbeat counts as later than now, so leases expire in order."""
    leases = Leases(lease_ns=20, look_ns=10)
    nodes = frozenset({("a", "1"), ("b", "1")})
    leases.heard("b", "1", 95)
    leases.heard("a", "1", 100)
    assert leases.silent(nodes, 100) == []
    leases.heard("a", "1", 195)
    assert leases.silent(nodes, 200) == []
    assert leases.last_heard("b", "1") == 185
    assert leases.last_heard("a", "1") == 200
    assert leases.silent(nodes, 206) == [("b", "1")]
    assert leases.silent(nodes, 216) == [("b", "1")]
    assert leases.silent(nodes, 221) == sorted(nodes)


def test_a_missing_node_is_lost_one_lease_after_the_last_new_connection():
    """A small job detects a loss soon; in a large one no node is lost while others still connect."""
    leases = Leases(lease_ns=20, look_ns=10)
    nodes = [(name, "1") for name in "abcd"]
    assert leases.silent(nodes, 100) == []
    leases.heard("a", "1", 101)
    leases.heard("b", "1", 105)
    assert leases.silent(nodes[:3], 110) == []
    assert leases.silent(nodes[:3], 120) == []
    leases.heard("a", "1", 121)
    leases.heard("b", "1", 121)
    assert leases.silent(nodes[:3], 126) == [("c", "1")]
    slow = Leases(lease_ns=20, look_ns=10)
    assert slow.silent(nodes, 100) == []
    for place, (name, incarnation) in enumerate(nodes):
        for earlier, _ in nodes[: place + 1]:
            slow.heard(earlier, incarnation, 115 + 15 * place)
        assert slow.silent(nodes, 110 + 15 * place) == [], name


def test_nodes_that_could_not_find_the_master_get_two_leases_again():
    """They find it through the store only; connected nodes are lost one lease after their last frame as usual."""
    leases = Leases(lease_ns=20, look_ns=10)
    nodes = frozenset({("a", "1"), ("b", "1")})
    assert leases.silent(nodes, 100) == [] and leases.awaited
    leases.heard("a", "1", 101)
    leases.excuse(115)
    for when in range(110, 160, 10):
        leases.heard("a", "1", min(when, 130))
        assert leases.silent(nodes, when) == ([] if when < 151 else [("a", "1")])
    assert leases.silent(nodes, 156) == sorted(nodes)
    leases.heard("b", "1", 157)
    assert leases.silent(nodes, 160) == [("a", "1")] and not leases.awaited


def test_a_node_that_could_not_connect_again_gets_a_new_lease():
    """A node whose stream broke is not lost while the master's socket is removed; connected nodes get nothing."""
    leases = Leases(lease_ns=20, look_ns=10)
    nodes = frozenset({("a", "1"), ("b", "1"), ("c", "1")})
    for name, _ in sorted(nodes):
        leases.heard(name, "1", 100)
    leases.heard("c", "1", 105)
    leases.excuse(115, disconnected=[("a", "1"), ("unknown", "1")])
    assert leases.silent(nodes, 115) == []
    assert leases.silent(nodes, 121) == [("b", "1")]
    assert leases.silent(nodes, 131) == [("b", "1"), ("c", "1")]
    assert leases.silent(nodes, 136) == sorted(nodes)


def test_time_in_which_the_master_did_not_run_does_not_count():
    """A check that is much too late extends all leases by the gap."""
    leases = Leases(lease_ns=20, look_ns=10)
    leases.heard("a", "1", 100)
    assert leases.silent([("a", "1")], 110) == []
    assert leases.silent([("a", "1")], 1000) == []
    assert leases.silent([("a", "1")], 1010) == [("a", "1")]
    early = Leases(lease_ns=20, look_ns=10)
    early.heard("a", "1", 100)
    assert early.silent([("a", "1")], 1000) == []


def test_a_different_job_of_the_same_name_is_refused():
    """The message has the command that stops the running job."""
    assert "ftctl stop --job x" in wrong_job("x").reason


def test_the_refusal_names_the_differences():
    """Field by field, in the words of the command line."""
    wanted = JobSpec(argv=("train.py",), nodes_min=2, nodes_max=4, cwd="/a")
    asked = JobSpec(argv=("train.py", "--lr", "1"), nodes_min=2, nodes_max=8, cwd="/a", sizes=(2, 8))
    told = wrong_job("x", asked, wanted).reason
    assert "the command is train.py --lr 1 here and train.py there" in told
    assert "the maximum of --nnodes is 8 here and 4 there" in told
    assert "--node-sizes is 2 8 here and nothing there" in told and "directory" not in told


@pytest.mark.parametrize(
    ("one", "other", "same"), [("0.1.0", "0.1.7", True), ("0.1.0", "0.2.0", False), ("1.2", "1.2.3.dev1+g1", True)]
)
def test_versions_that_may_work_on_one_job(one, other, same):
    """Patch releases may meet, others may not."""
    assert same_release(one, other) == same_release(other, one) == same


def test_a_renewed_deadline_survives_the_expiry_of_the_old_one():
    """Only the deadline that is named is over; a log that names none is folded as it was meant then."""

    def stopping() -> tuple[JobDriver, str, int]:
        driver = JobDriver(nodes=2)
        driver.start()
        driver.silence("node1")
        driver.fail("node0")
        (key,) = [key for key in driver.state.deadlines if key.startswith("action/stop_workers")]
        return driver, key, driver.state.deadlines[key]

    driver, key, due_at = stopping()
    types = [event.type for event in driver.own(DeadlineExpired(key=key, due=due_at - 1))]
    assert types == ["deadline.expired"]
    assert driver.state.deadlines[key] == due_at
    for word in (DeadlineExpired(key=key, due=due_at), DeadlineExpired(key=key)):
        driver, _, _ = stopping()
        assert "action.failed" in [event.type for event in driver.own(word)]
        assert key not in driver.state.deadlines

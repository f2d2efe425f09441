"""Verdicts of the policies that restart after a fault: ``process_restart``, ``pod_replacement``, ``shrink``."""

import attrs
import msgspec
import pytest
from policy_cases import DEFAULT_ORDER, ago, ask, chain, incident, request, running

from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.states.revisions import NO_NODE_AT_FAULT, PEER_NOT_HANG

# --- process_restart: the cause decides the remedy -------------------------------------------------------------------


def last_resort(**more):
    """A job whose chain has the replacement below the restart."""
    driver = running(**more)
    order = [name for name in DEFAULT_ORDER if name != "pod_replacement"]
    order.insert(order.index("process_restart") + 1, "pod_replacement")
    driver.state.policy.chain = chain(*order).chain
    return driver


def test_a_process_fault_is_restarted_where_it_is():
    """No terms beyond those of a plain restart."""
    job = running(abilities=("replace",)).state
    verdict = ask("process_restart", incident(job, "signal-preemption", ended=True), job)
    assert isinstance(verdict, Take)
    assert verdict.terms == type(verdict.terms)()


@pytest.mark.parametrize("cls", ["gpu-hw", "node-lost"])
def test_a_node_fault_is_left_to_a_replacement_below(cls):
    """If the platform can replace, a restart on the bad node, or without it, is the worse plan."""
    driver = last_resort(abilities=("replace",))
    if cls == "node-lost":
        driver.lose("node1")
    verdict = ask("process_restart", incident(driver.state, cls), driver.state)
    assert verdict == Pass(reason="node1: a node is at fault; pod_replacement below replaces it")


def test_a_node_fault_without_a_better_remedy_is_restarted_and_the_reason_says_so():
    """Without a platform and without a spare, the policy restarts; the reason says what would help."""
    job = last_resort().state
    verdict = ask("process_restart", incident(job, "gpu-hw"), job)
    assert isinstance(verdict, Take)
    assert "; a node is at fault (node1), but the platform cannot launch another one; " in verdict.reason
    job = running().state
    verdict = ask("process_restart", incident(job, "gpu-hw"), job)
    assert isinstance(verdict, Take)
    assert verdict.reason.endswith(
        "; node1 is at fault and stays, for too few nodes would be left without it: start ftrun on one more node as a "
        "spare, or let the job go on with fewer (--nnodes MIN:MAX)"
    )
    assert not verdict.terms.quarantine, "the job would wait for ever"


def test_a_replacement_that_is_spent_or_held_is_no_better_plan():
    """Then the restart is taken, with the reason."""
    job = last_resort(abilities=("replace",)).state
    job.history.attempts["pod_replacement"] = [job.time] * 20
    verdict = ask("process_restart", incident(job, "gpu-hw"), job)
    assert isinstance(verdict, Take)
    assert "; no replacement: budget spent: 20 of 20 replacements" in verdict.reason


def test_a_replacement_that_is_not_asked_about_the_class_is_no_better_plan():
    """The entry is kept to other classes."""
    job = last_resort(abilities=("replace",)).state
    job.policy.chain = tuple(
        msgspec.structs.replace(e, faults=("hang",)) if e.policy == "pod_replacement" else e for e in job.policy.chain
    )
    assert isinstance(ask("process_restart", incident(job, "gpu-hw"), job), Take)


def test_a_bad_node_is_left_to_shrink_if_enough_others_are_there():
    """With a smaller minimum the world can do without it."""
    job = running(3, least=2).state
    verdict = ask("process_restart", incident(job, "gpu-hw"), job)
    assert verdict == Pass(reason="node1 is at fault; shrink below leaves it out")


def test_a_lost_node_is_left_to_shrink_if_no_replacement_is_possible():
    """At once: the remaining nodes do not wait, unless `patience` is set."""
    driver = running(3, least=2)
    driver.lose("node1")
    lost = incident(driver.state, "node-lost")
    verdict = ask("process_restart", lost, driver.state)
    assert verdict == Pass(reason="node1 is gone, and nobody can come in its place; shrink below goes on without it")
    named = ask("process_restart", lost, driver.state, patience=77)
    assert isinstance(named, Take)
    assert named.terms.patience_s == 77 and named.reason.endswith(
        "; waits 77s for node1 to come back, or for another node"
    )


@pytest.mark.parametrize(
    ("least", "abilities", "patience", "told"),
    [(2, ("replace",), 30.0, "30s"), (3, (), None, "10m"), (3, ("replace",), None, "10m")],
)
def test_a_lost_node_is_waited_for(least, abilities, patience, told):
    """As the time constants say where the job cannot do without it; for the join window where a platform may send one
    whom no policy has asked for."""
    driver = running(3, least=least, abilities=abilities)
    driver.state.policy.chain = tuple(entry for entry in driver.state.policy.chain if entry.policy != "pod_replacement")
    driver.lose("node1")
    verdict = ask("process_restart", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.terms.patience_s == patience
    assert f"; waits {told} for node1 to come back" in verdict.reason


def test_a_lost_node_whose_place_a_spare_takes_is_not_waited_for():
    """The world keeps its size, and the reason mentions no waiting."""
    driver = running(2, least=1)
    driver.join("node2")
    driver.lose("node1")
    verdict = ask("process_restart", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.reason == "restart 1 of 20 in 1h"


def test_shrink_is_not_trusted_with_a_lost_node_when_its_budget_is_spent():
    """It would pass, and the job would end though the node may come back."""
    driver = running(3, least=2)
    driver.state.history.attempts["shrink"] = [driver.state.time] * 20
    driver.lose("node1")
    assert isinstance(ask("process_restart", incident(driver.state, "node-lost"), driver.state), Take)


def test_bad_data_is_no_matter_of_restarts():
    """A numeric fault at the same step for the second time is passed on as a fault of the script is."""
    job = running().state
    job.evidence.repeat.count = 2
    verdict = ask("process_restart", incident(job, "numeric"), job)
    assert verdict == Pass(reason="numeric came 2 times in a row at step 10: a restart is no remedy")


@pytest.mark.parametrize(
    ("check", "cls", "expected"),
    [
        ("suspect", "gpu-hw", "suspect"),
        ("suspect", "nccl-timeout", "suspect"),
        ("suspect", "user-code", ""),
        ("suspect", "collateral", ""),
        ("always", "user-code", "all"),
        ("never", "gpu-hw", ""),
    ],
)
def test_health_is_checked_where_a_node_may_be_at_fault(check, cls, expected):
    """Only where agents can; a fault of the script makes no node suspect."""
    able, unable = running(abilities=("check",)).state, running().state
    verdict = ask("process_restart", incident(able, cls), able, check=check)
    assert isinstance(verdict, Take)
    assert verdict.terms.check == expected
    verdict = ask("process_restart", incident(unable, cls), unable, check=check)
    assert isinstance(verdict, Take)
    assert verdict.terms.check == ""


@pytest.mark.parametrize(
    ("decides", "check"), [(PEER_NOT_HANG - 1, ""), (PEER_NOT_HANG, "suspect"), (NO_NODE_AT_FAULT - 1, "suspect")]
)
def test_masters_of_some_revisions_checked_nodes_for_a_fault_of_no_node(decides, check):
    """Their logs verify by their rules."""
    job = running(abilities=("check",)).state
    job.master = attrs.evolve(job.master, decides=decides)
    verdict = ask("process_restart", incident(job, "collateral"), job, check="suspect")
    assert isinstance(verdict, Take) and verdict.terms.check == check


@pytest.mark.parametrize("wish", ["pause", "drain", "checkpoint"])
def test_a_request_is_no_fault(wish):
    """The reason names what was asked for."""
    job = running().state
    assert ask("process_restart", request(job, wish), job) == Pass(reason=f"asked to {wish}, not to restart")


# --- pod_replacement -------------------------------------------------------------------------------------------------


def test_a_lost_node_is_replaced_but_may_come_back():
    """Its machine is not to blame yet."""
    driver = running(abilities=("replace",))
    driver.lose("node1")
    verdict = ask("pod_replacement", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.plan is PlanKind.RESTART
    terms = verdict.terms
    assert (terms.replace, terms.exclude, terms.quarantine, terms.patience_s) == (("node1",), (), (), 1800)
    assert verdict.reason == "replaces node1; 1 of 20 in 1d"


def test_a_bad_machine_is_taken_out_and_kept_out():
    """A device that failed will fail again."""
    job = running(abilities=("replace",)).state
    verdict = ask("pod_replacement", incident(job, "gpu-hw"), job)
    assert isinstance(verdict, Take)
    terms = verdict.terms
    assert (terms.replace, terms.exclude, terms.quarantine) == (("node1",), ("node1",), ("node1",))


@pytest.mark.parametrize(("isolate", "kept_out"), [("never", ()), ("always", ("node1",)), ("auto", ("node1",))])
def test_isolation_is_an_option(isolate, kept_out):
    """It goes to the platform with the order."""
    job = running(abilities=("replace",)).state
    verdict = ask("pod_replacement", incident(job, "gpu-hw"), job, isolate=isolate)
    assert isinstance(verdict, Take)
    assert verdict.terms.quarantine == kept_out


def test_a_node_that_failed_its_health_check_is_kept_out():
    """The check is evidence against the machine, whatever class it is called."""
    job = running(abilities=("replace",)).state
    about = incident(job, "hang", observed="faulty", source="health")
    assert isinstance(ask("pod_replacement", about, job), Pass)
    verdict = ask("pod_replacement", about, job, classes=["hang"])
    assert isinstance(verdict, Take)
    assert verdict.terms.quarantine == ("node1",)


@pytest.mark.parametrize("cls", ["signal-preemption", "user-code", "numeric"])
def test_a_fault_of_a_process_replaces_no_node(cls):
    """A healthy node that is replaced is the worst mistake."""
    job = running(abilities=("replace",)).state
    verdict = ask("pod_replacement", incident(job, cls, ended=True), job)
    assert verdict == Pass(reason="no node is lost, and the fault is not a node's")


def test_a_node_whose_processes_keep_failing_is_replaced():
    """Three times in the window; not if the script is to blame, nor if the others fail as often."""
    job = running(abilities=("replace",)).state
    job.evidence.node_faults = {"node1": [ago(job, 500), ago(job, 300)]}
    verdict = ask("pod_replacement", incident(job, "cuda-sticky", ended=True), job)
    assert isinstance(verdict, Take)
    assert verdict.terms.quarantine == ("node1",)
    job.evidence.node_faults = {"node1": [ago(job, 500), ago(job, 300)]}
    assert isinstance(ask("pod_replacement", incident(job, "user-code", ended=True), job), Pass)
    job.evidence.node_faults = {"node1": [ago(job, 500), ago(job, 300)], "node2": [ago(job, 400)] * 3}
    assert isinstance(ask("pod_replacement", incident(job, "cuda-sticky", ended=True), job), Pass)


def test_many_nodes_at_once_are_not_many_bad_nodes():
    """Four at once are held with the reason; three are replaced; two are held if they are most of the world."""
    driver = running(10, abilities=("replace",))
    for name in ("node1", "node2", "node3"):
        driver.lose(name)
    assert isinstance(ask("pod_replacement", incident(driver.state, "node-lost"), driver.state), Take)
    driver.lose("node4")
    verdict = ask("pod_replacement", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Pass)
    assert verdict.reason.startswith("held: 4 nodes were at fault within 1m (node1, node2, node3, node4)")
    small = running(3, abilities=("replace",))
    small.lose("node1")
    small.lose("node2")
    assert isinstance(ask("pod_replacement", incident(small.state, "node-lost"), small.state), Pass)


def test_faults_of_other_nodes_shortly_before_count_as_at_once():
    """One incident after the other within the window is one cause, too; faults of long ago are not."""
    job = running(10, abilities=("replace",)).state
    job.evidence.node_faults = {f"node{number}": [ago(job, 30)] for number in range(2, 6)}
    assert isinstance(ask("pod_replacement", incident(job, "gpu-hw"), job), Pass)
    job.evidence.node_faults = {f"node{number}": [ago(job, 90)] for number in range(2, 6)}
    assert isinstance(ask("pod_replacement", incident(job, "gpu-hw"), job), Take)


def test_replacements_have_budgets_and_a_cool_down():
    """By window, by node, and after each other."""
    job = running(abilities=("replace",)).state
    about = incident(job, "gpu-hw")
    job.history.attempts["pod_replacement"] = [job.time] * 3
    verdict = ask("pod_replacement", about, job)
    assert verdict == Pass(reason="per-node limit reached: node1 was replaced 3 times in 1d and still fails")
    job.history.attempts["pod_replacement"] = [ago(job, 10)]
    assert isinstance(ask("pod_replacement", about, job), Take)
    cooling = ask("pod_replacement", about, job, cool_down=60)
    assert cooling == Pass(reason="cool-down: the next replacement is possible in 50s")


@pytest.mark.parametrize(("wish", "kept_out"), [("evict", ("node1",)), ("drain", ())])
def test_a_node_is_taken_out_on_request(wish, kept_out):
    """An evicted node stays out; a drained one may come back."""
    job = running(abilities=("replace",)).state
    verdict = ask("pod_replacement", request(job, wish, "node1"), job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.exclude, verdict.terms.quarantine) == (("node1",), kept_out)
    replaces = "replaces and quarantines" if wish == "evict" else "replaces"
    assert verdict.reason.startswith(f"me@here asked for it: maintenance; {replaces} node1")


def test_a_request_about_a_stranger_replaces_nothing():
    """A node without a place in the world has nothing to be replaced."""
    job = running(abilities=("replace",)).state
    verdict = ask("pod_replacement", request(job, "evict", "node9"), job)
    assert verdict == Pass(reason="node9 is not a member of the world: nothing to replace")


# --- shrink ----------------------------------------------------------------------------------------------------------


def test_the_job_goes_on_with_the_nodes_that_are_left():
    """As many as the unit allows."""
    driver = running(4, least=2, unit=2)
    driver.lose("node1")
    verdict = ask("shrink", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert (verdict.terms.want, verdict.terms.exclude, verdict.terms.patience_s) == (2, (), 30.0)
    assert verdict.reason == "the job goes on with 2 of 4 nodes, without node1"


def test_shrink_passes_with_too_few_nodes():
    """Neither below the job's minimum nor below the policy's own."""
    driver = running(3, least=3)
    driver.lose("node1")
    about = incident(driver.state, "node-lost")
    assert ask("shrink", about, driver.state) == Pass(reason="2 nodes would be left; the job needs at least 3")
    driver = running(4, least=1, unit=2)
    driver.lose("node1")
    verdict = ask("shrink", incident(driver.state, "node-lost"), driver.state, min_nodes=4)
    assert verdict == Pass(reason="3 nodes would be left; the job needs at least 4 in multiples of 2")


def test_a_standby_node_takes_the_place_of_a_bad_one():
    """Then nothing shrinks."""
    driver = running(3, least=2, most=3)
    driver.join("spare")
    verdict = ask("shrink", incident(driver.state, "gpu-hw"), driver.state)
    assert isinstance(verdict, Take)
    assert (verdict.terms.want, verdict.terms.exclude) == (3, ("node1",))
    assert verdict.reason == ("a standby node replaces node1: the job goes on with 3 nodes; node1 is kept out")


def test_a_process_fault_shrinks_nothing():
    """Every node is there and fit."""
    job = running(3, least=1).state
    verdict = ask("shrink", incident(job, "signal-preemption", ended=True), job)
    assert verdict == Pass(reason="no node is gone, and none has to be left out")


@pytest.mark.parametrize(("wish", "kept_out"), [("evict", ("node1",)), ("drain", ())])
def test_shrink_takes_a_node_out_on_request(wish, kept_out):
    """Where nothing can replace it."""
    job = running(3, least=2).state
    verdict = ask("shrink", request(job, wish, "node1"), job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.want, verdict.terms.exclude, verdict.terms.quarantine) == (2, ("node1",), kept_out)
    assert isinstance(ask("shrink", request(job, wish, "node9"), job), Pass)


def test_shrink_keeps_processes_that_can_go_on_in_a_smaller_world():
    """Not if the last round led to no step: their state is suspect then."""
    driver = running(3, least=2, abilities=("retry", "park", "resize"))
    driver.lose("node1")
    verdict = ask("shrink", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.terms.survivors == "park"
    assert verdict.reason == "the job goes on with 2 of 3 nodes, without node1 in the same processes"
    for more, streak in (({"tried": ["shrink"]}, 0), ({}, 1)):
        driver.state.history.streak = streak
        verdict = ask("shrink", incident(driver.state, "node-lost", **more), driver.state)
        assert isinstance(verdict, Take)
        assert verdict.terms.survivors == "stop"


def test_shrinking_has_a_budget():
    """Who loses node after node has another problem."""
    driver = running(3, least=1)
    driver.lose("node1")
    driver.state.history.attempts["shrink"] = [driver.state.time] * 20
    verdict = ask("shrink", incident(driver.state, "node-lost"), driver.state)
    assert verdict == Pass(reason="budget spent: 20 of 20 shrinks in the last 1h")


@pytest.mark.parametrize(("isolate", "expected"), [("auto", ("node1",)), ("always", ("node1",)), ("never", ())])
def test_a_node_with_repeated_faults_is_quarantined(isolate, expected):
    """A node that is removed for repeated faults does not rejoin by itself, unless `isolate: never`."""
    driver = running(3, least=2)
    job = driver.state
    job.evidence.node_faults["node1"] = [job.time] * 5
    verdict = ask("shrink", incident(job, "killed"), job, isolate=isolate)
    assert isinstance(verdict, Take) and verdict.terms.quarantine == expected
    assert ("node1 is kept out" in verdict.reason) == bool(expected)

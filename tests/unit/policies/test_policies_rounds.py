"""Verdicts of the policies whose plans are a new round."""

import attrs
import pytest
from policy_cases import DEFAULT_ORDER, ago, ask, chain, incident, request, running

from ftcore.events.node import NodeQuarantined
from ftcore.policies.base import Pass, PlanKind, Take

# --- process_restart: the cause decides the remedy -------------------------------------------------------------------


def last_resort(**more):
    """A job whose chain has the replacement below the restart."""
    driver = running(**more)
    order = [name for name in DEFAULT_ORDER if name != "pod_replacement"]
    order.insert(order.index("process_restart") + 1, "pod_replacement")
    driver.state.chain = chain(*order).chain
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


def test_a_node_fault_that_nobody_can_cure_better_is_restarted_and_says_so():
    """Without a platform, and with no node to spare, the restart is all there is; what would help is told."""
    job = last_resort().state
    verdict = ask("process_restart", incident(job, "gpu-hw"), job)
    assert isinstance(verdict, Take)
    assert "; a node is at fault (node1), but nothing here can launch another; " in verdict.reason
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
    job.attempts["pod_replacement"] = [job.time] * 20
    verdict = ask("process_restart", incident(job, "gpu-hw"), job)
    assert isinstance(verdict, Take)
    assert "; no replacement: budget spent: 20 of 20 replacements" in verdict.reason


def test_a_replacement_that_is_not_asked_about_the_class_is_no_better_plan():
    """The entry is kept to other classes."""
    job = last_resort(abilities=("replace",)).state
    job.chain = tuple(attrs.evolve(e, faults=("hang",)) if e.policy == "pod_replacement" else e for e in job.chain)
    assert isinstance(ask("process_restart", incident(job, "gpu-hw"), job), Take)


def test_a_bad_node_is_left_to_shrink_if_enough_others_are_there():
    """With a smaller minimum the world can do without it."""
    job = running(3, least=2).state
    verdict = ask("process_restart", incident(job, "gpu-hw"), job)
    assert verdict == Pass(reason="node1 is at fault; shrink below leaves it out")


def test_a_lost_node_is_left_to_shrink_if_nobody_can_come():
    """At once: the nodes that are left do not wait in vain. Who says how long to wait is obeyed."""
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
    driver.state.chain = tuple(entry for entry in driver.state.chain if entry.policy != "pod_replacement")
    driver.lose("node1")
    verdict = ask("process_restart", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.terms.patience_s == patience
    assert f"; waits {told} for node1 to come back" in verdict.reason


def test_a_lost_node_whose_place_a_spare_takes_is_not_waited_for():
    """Nothing shrinks, nothing is told of waiting."""
    driver = running(2, least=1)
    driver.join("node2")
    driver.lose("node1")
    verdict = ask("process_restart", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.reason == "restart 1 of 20 in 1h"


def test_shrink_is_not_trusted_with_a_lost_node_when_its_budget_is_spent():
    """It would pass, and the job would end though the node may come back."""
    driver = running(3, least=2)
    driver.state.attempts["shrink"] = [driver.state.time] * 20
    driver.lose("node1")
    assert isinstance(ask("process_restart", incident(driver.state, "node-lost"), driver.state), Take)


def test_bad_data_is_no_matter_of_restarts():
    """A numeric fault at the same step for the second time is passed on as a fault of the script is."""
    job = running().state
    job.repeat.count = 2
    verdict = ask("process_restart", incident(job, "numeric"), job)
    assert verdict == Pass(reason="numeric came 2 times in a row at step 10: a restart is no remedy")


@pytest.mark.parametrize(
    ("check", "cls", "expected"),
    [
        ("suspect", "gpu-hw", "suspect"),
        ("suspect", "nccl-timeout", "suspect"),
        ("suspect", "user-code", ""),
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
    assert verdict == Pass(reason="no node is gone, and the fault is not of a node")


def test_a_node_whose_processes_keep_failing_is_replaced():
    """Three times in the window; not if the script is to blame, nor if the others fail as often."""
    job = running(abilities=("replace",)).state
    job.node_faults = {"node1": [ago(job, 500), ago(job, 300)]}
    verdict = ask("pod_replacement", incident(job, "cuda-sticky", ended=True), job)
    assert isinstance(verdict, Take)
    assert verdict.terms.quarantine == ("node1",)
    job.node_faults = {"node1": [ago(job, 500), ago(job, 300)]}
    assert isinstance(ask("pod_replacement", incident(job, "user-code", ended=True), job), Pass)
    job.node_faults = {"node1": [ago(job, 500), ago(job, 300)], "node2": [ago(job, 400)] * 3}
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
    job.node_faults = {f"node{number}": [ago(job, 30)] for number in range(2, 6)}
    assert isinstance(ask("pod_replacement", incident(job, "gpu-hw"), job), Pass)
    job.node_faults = {f"node{number}": [ago(job, 90)] for number in range(2, 6)}
    assert isinstance(ask("pod_replacement", incident(job, "gpu-hw"), job), Take)


def test_replacements_have_budgets_and_a_cool_down():
    """By window, by node, and after each other."""
    job = running(abilities=("replace",)).state
    about = incident(job, "gpu-hw")
    job.attempts["pod_replacement"] = [job.time] * 3
    verdict = ask("pod_replacement", about, job)
    assert verdict == Pass(reason="node1 was replaced 3 times in 1d and fails on: its place is at fault")
    job.attempts["pod_replacement"] = [ago(job, 10)]
    assert isinstance(ask("pod_replacement", about, job), Take)
    cooling = ask("pod_replacement", about, job, cool_down=60)
    assert cooling == Pass(reason="a replacement was made lately; the next is due in 50s")


@pytest.mark.parametrize(("wish", "kept_out"), [("evict", ("node1",)), ("drain", ())])
def test_a_node_is_taken_out_on_request(wish, kept_out):
    """An evicted node stays out; a drained one may come back."""
    job = running(abilities=("replace",)).state
    verdict = ask("pod_replacement", request(job, wish, "node1"), job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.exclude, verdict.terms.quarantine) == (("node1",), kept_out)
    assert verdict.reason.startswith("me@here asked for it: maintenance; replaces node1")


def test_a_request_about_a_stranger_replaces_nothing():
    """A node without a place in the world has nothing to be replaced."""
    job = running(abilities=("replace",)).state
    verdict = ask("pod_replacement", request(job, "evict", "node9"), job)
    assert verdict == Pass(reason="node9 is no member of the world: there is nothing to replace")


# --- shrink ----------------------------------------------------------------------------------------------------------


def test_the_job_goes_on_with_the_nodes_that_are_left():
    """As many as the unit allows."""
    driver = running(4, least=2, unit=2)
    driver.lose("node1")
    verdict = ask("shrink", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert (verdict.terms.want, verdict.terms.exclude, verdict.terms.patience_s) == (2, (), 30.0)
    assert verdict.reason == "the job goes on with 2 of 4 nodes, without node1"


def test_too_few_nodes_are_not_gone_on_with():
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
    assert verdict.reason == ("the job goes on with 3 nodes without node1: a standby node is there; node1 is kept out")


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


def test_shrinking_has_a_budget():
    """Who loses node after node has another problem."""
    driver = running(3, least=1)
    driver.lose("node1")
    driver.state.attempts["shrink"] = [driver.state.time] * 20
    verdict = ask("shrink", incident(driver.state, "node-lost"), driver.state)
    assert verdict == Pass(reason="budget spent: 20 of 20 times in the last 1h")


@pytest.mark.parametrize(("isolate", "expected"), [("auto", ("node1",)), ("always", ("node1",)), ("never", ())])
def test_a_node_to_which_faults_come_back_is_kept_out(isolate, expected):
    """Left out for what keeps coming back to it, it does not come in again by itself; unless that is wanted."""
    driver = running(3, least=2)
    job = driver.state
    job.node_faults["node1"] = [job.time] * 5
    verdict = ask("shrink", incident(job, "killed"), job, isolate=isolate)
    assert isinstance(verdict, Take) and verdict.terms.quarantine == expected
    assert ("node1 is kept out" in verdict.reason) == bool(expected)


# --- grow ------------------------------------------------------------------------------------------------------------


def grown(**more):
    driver = running(2, least=2, most=4, **more)
    driver.join("node2")
    return driver.state, incident(driver.state, "request", kind="opportunity", detail="grow", node="node2")


def test_standby_nodes_are_taken_in():
    """To the largest size that they make."""
    job, about = grown()
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.want, verdict.reason) == (3, "3 nodes instead of 2 can train")


def test_no_larger_world_is_no_reason_to_restart():
    """One node more is not enough where nodes count in pairs."""
    job, about = grown(unit=2)
    assert ask("grow", about, job) == Pass(reason="no larger world than 2 nodes can be formed")


def test_growing_waits_after_a_restart_and_says_how_long():
    """Its own and those of others; alerts and saves are no restarts."""
    job, about = grown()
    job.attempts["process_restart"] = [ago(job, 100)]
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Pass)
    assert verdict.again_s == pytest.approx(500)
    job.attempts = {"alert": [job.time], "dying_checkpoint": [job.time]}
    assert isinstance(ask("grow", about, job), Take)


def test_who_comes_soon_after_a_shrink_is_taken_in_at_once():
    """Nobody waited for it: neither timers nor its one fault count, nor a checkpoint; later, or if it fails again, all
    is as usual."""
    job, about = grown()
    job.attempts["shrink"], job.node_faults["node2"] = [ago(job, 29)], [ago(job, 29)]
    job.committed = ago(job, 100)
    assert isinstance(ask("grow", about, job), Take)
    job.node_faults["node2"].insert(0, ago(job, 50))
    assert ask("grow", about, job).reason == "node2 failed only lately"
    job.node_faults["node2"], job.attempts["shrink"] = [ago(job, 31)], [ago(job, 31)]
    assert ask("grow", about, job).reason == "node2 failed only lately"


def test_a_node_that_was_admitted_again_does_not_wait_for_a_timer():
    """Somebody wants it to train: only a checkpoint is waited for. Once it has trained, or is not there, all is as
    usual."""
    driver = running(2, least=2, most=4)
    driver.own(NodeQuarantined(node="node2", reason="a test"))
    driver.command("admit", "node2")
    assert driver.state.admitted == ["node2"]
    driver.join("node3")
    job, about = driver.state, incident(driver.state, "request", kind="opportunity", detail="grow", node="node2")
    job.attempts["process_restart"] = [ago(job, 1)]
    assert isinstance(ask("grow", about, job), Pass), "another node stands by, not the one that was admitted"
    driver.join("node2")
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Take) and verdict.reason.endswith("; node2 was admitted again")
    job.committed = ago(job, 100)
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Pass) and verdict.at_commit


def test_growing_waits_while_restarts_run_out():
    """A growth may cost one of them: it is thought of again once enough of them are too long ago to count."""
    job, about = grown()
    job.attempts["process_restart"] = [ago(job, age) for age in (3000, 2000, *range(1900, 1100, -100), 700)]
    verdict = ask("grow", about, job)
    assert verdict == Pass(reason="11 of 20 restarts are spent; a growth might cost one more", again_s=1600)
    assert isinstance(ask("grow", about, job, reserve=0), Take)
    job.attempts["process_restart"] = [ago(job, 700)]
    assert isinstance(ask("grow", about, job), Take)
    assert isinstance(ask("grow", about, job, reserve=1), Pass)


def test_a_node_that_failed_lately_is_not_taken_in():
    """A node that comes and goes would cost a restart each time."""
    job, about = grown()
    job.node_faults["node2"] = [ago(job, 100)]
    verdict = ask("grow", about, job)
    assert verdict == Pass(reason="node2 failed only lately", again_s=500)


def test_a_node_that_keeps_failing_is_trusted_ever_later():
    """Each fault doubles the time for which it is not taken in."""
    job, about = grown()
    waits = []
    for _ in range(3):
        job.node_faults.setdefault("node2", []).append(job.time)
        verdict = ask("grow", about, job)
        assert isinstance(verdict, Pass) and "node2 failed only lately" in verdict.reason
        waits.append(verdict.again_s)
    assert waits == [600, 1200, 2400]


def test_growing_waits_for_the_next_checkpoint():
    """Where checkpoints are told, it grows right behind one; once the last is too old, it waits no longer."""
    job, about = grown()
    job.committed = ago(job, 300)
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Pass) and verdict.at_commit and verdict.again_s == pytest.approx(1500)
    assert isinstance(ask("grow", about, job, checkpoint=0), Take)
    assert isinstance(ask("grow", about, job, checkpoint=200), Take)
    job.committed = job.time
    assert isinstance(ask("grow", about, job), Take)


# --- hot_swap --------------------------------------------------------------------------------------------------------

ARF = ("park", "replicas")


def test_the_others_wait_for_a_new_process():
    """A process that ended is started anew where it was; the others keep their state."""
    job = running(abilities=ARF).state
    verdict = ask("hot_swap", incident(job, "signal-preemption", ended=True), job)
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.terms.survivors, verdict.terms.replace) == (PlanKind.RESTART, "park", ())
    assert verdict.reason == "the ranks that live wait for a new process on node1; 1 of 10 in 1h"


def test_the_others_wait_for_a_new_node():
    """Launched by the platform, or a standby one."""
    driver = running(abilities=(*ARF, "replace"))
    driver.lose("node1")
    verdict = ask("hot_swap", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert (verdict.terms.replace, verdict.terms.patience_s) == (("node1",), 300)
    driver = running(3, most=3, abilities=ARF)
    driver.join("spare")
    driver.lose("node1")
    verdict = ask("hot_swap", incident(driver.state, "node-lost"), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.terms.replace == ()


def test_a_missing_node_without_another_for_its_place_is_no_swap():
    """Waiting would be in vain."""
    driver = running(abilities=ARF)
    driver.lose("node1")
    verdict = ask("hot_swap", incident(driver.state, "node-lost"), driver.state)
    assert verdict == Pass(reason="no node for the place of node1: none stands by, none can be launched")


def test_two_nodes_at_once_may_have_held_both_replicas():
    """Unless the file says that replicas are further apart."""
    driver = running(5, abilities=(*ARF, "replace"))
    driver.lose("node1")
    driver.lose("node2")
    about = incident(driver.state, "node-lost")
    verdict = ask("hot_swap", about, driver.state)
    assert verdict == Pass(reason="2 nodes failed at once (node1, node2): their replicas may be gone as well")
    assert isinstance(ask("hot_swap", about, driver.state, max_nodes=2), Take)


@pytest.mark.parametrize(
    ("cls", "more", "count", "streak", "reason"),
    [
        ("numeric", {}, 1, 0, "the ranks that would wait hold the state that went wrong"),
        ("user-code", {}, 2, 0, "user-code came 2 times in a row: a new process would meet it again"),
        ("hang", {"tried": ["hot_swap"]}, 1, 0, "a restart brought no completed step"),
        ("hang", {}, 1, 1, "a restart brought no completed step"),
    ],
)
def test_a_state_or_script_that_is_suspect_is_not_kept(cls, more, count, streak, reason):
    """What a fresh process would meet again, or what did not help before, is passed on."""
    job = running(abilities=ARF).state
    job.repeat.count, job.streak = count, streak
    verdict = ask("hot_swap", incident(job, cls, ended=True, **more), job)
    assert isinstance(verdict, Pass)
    assert verdict.reason.startswith(reason)


def test_nothing_that_ended_is_nothing_to_swap():
    """A hang without a dead process has nobody to start anew."""
    job = running(abilities=ARF).state
    verdict = ask("hot_swap", incident(job, "hang", observed="hang"), job)
    assert verdict == Pass(reason="no process ended that could be started anew")


def test_swaps_have_budgets():
    """By window and by node."""
    job = running(abilities=ARF).state
    about = incident(job, "signal-preemption", ended=True)
    job.attempts["hot_swap"] = [job.time] * 3
    assert ask("hot_swap", about, job) == Pass(reason="node1 was helped 3 times in 1h, and no more are allowed")
    job.attempts["hot_swap"] = [job.time] * 10
    assert isinstance(ask("hot_swap", about, job), Pass)


# --- evict_straggler -------------------------------------------------------------------------------------------------


def slow(job, **more):
    return incident(job, "hang", kind="warning", observed="straggler", **more)


def test_a_slow_node_gives_its_place_to_another():
    """Launched by the platform; the machine is kept out."""
    job = running(abilities=("replace",)).state
    verdict = ask("evict_straggler", slow(job), job)
    assert isinstance(verdict, Take)
    terms = verdict.terms
    assert (terms.exclude, terms.quarantine, terms.replace) == (("node1",), ("node1",), ("node1",))
    assert terms.survivors == "stop"


def test_a_slow_node_is_better_than_none():
    """Without a standby node or a platform it stays; with a standby node it goes."""
    driver = running(3, most=3)
    verdict = ask("evict_straggler", slow(driver.state), driver.state)
    assert verdict == Pass(reason="no node for the place of node1: none stands by, none can be launched")
    driver = running(3, most=3)
    driver.join("spare")
    verdict = ask("evict_straggler", slow(driver.state), driver.state)
    assert isinstance(verdict, Take)
    assert verdict.terms.replace == ()


def test_a_little_slow_is_not_slow_enough():
    """By the figures of the detector: how much, and since when."""
    job = running(abilities=("replace",)).state
    about = slow(job, values={"value": 1.3, "usual": 1.0, "since": 4.0})
    assert isinstance(ask("evict_straggler", about, job), Take)
    assert ask("evict_straggler", about, job, slower=1.5) == Pass(
        reason="node1 needs 1.30 times the usual time; 1.5 times is worth an eviction"
    )
    assert ask("evict_straggler", about, job, steps=100) == Pass(
        reason="node1 is slow since step 4; it is evicted after 100 steps"
    )


def test_evictions_are_rare():
    """One in `every`, and so many in the window."""
    job = running(abilities=("replace",)).state
    job.attempts["evict_straggler"] = [ago(job, 600)]
    verdict = ask("evict_straggler", slow(job), job)
    assert verdict == Pass(reason="a slow node was evicted lately; the next may be in 50m", again_s=3000)
    job.attempts["evict_straggler"] = [ago(job, 3700)] * 5
    assert isinstance(ask("evict_straggler", slow(job), job), Pass)


def test_other_warnings_evict_nobody():
    """Only a straggler is slow."""
    job = running(abilities=("replace",)).state
    about = incident(job, "numeric", kind="warning", observed="loss-spike")
    assert ask("evict_straggler", about, job) == Pass(reason="no node of the world is named as slow")


def torn(job, *, step=None, times=2):
    """An incident of a file that cannot be read, for the n-th time in a row."""
    about = incident(job, "storage", detail="checkpoint-file", ended=True, step=step)
    job.reports[-1] = attrs.evolve(job.reports[-1], message="EOFError: Ran out of input (reading /c/last.pt)")
    job.repeat.count = times
    return about


def test_a_checkpoint_that_cannot_be_read_ends_the_job():
    """It is tried once more; then it is said which file it is, and no node is blamed."""
    job = running().state
    assert isinstance(ask("process_restart", torn(job, times=1), job), Take)
    verdict = ask("process_restart", torn(job), job)
    assert verdict == Pass(reason="/c/last.pt could not be read 2 times in a row: a restart is no remedy")
    job.node_faults["node1"] = [job.time] * 9
    for name in ("pod_replacement", "shrink"):
        assert isinstance(ask(name, torn(job), job), Pass)
    end = ask("stop", torn(job), job)
    assert isinstance(end, Take) and end.reason.startswith("/c/last.pt cannot be read: rank 1 on node1: it broke")


def test_a_file_that_breaks_in_the_middle_is_a_fault_as_before():
    """Behind a completed step a disk may be at fault."""
    job = running().state
    assert isinstance(ask("process_restart", torn(job, step=10), job), Take)
    assert "cannot be read" not in ask("stop", torn(job, step=10), job).reason


def test_the_checkpoint_before_it_is_gone_back_to():
    """Where the script told of several and can be told which to take; without an older one the job ends."""
    job = running(abilities=("rollback",)).state
    job.checkpoints[:] = [10, 20, 30]
    verdict = ask("process_restart", torn(job), job)
    assert isinstance(verdict, Take) and verdict.terms.rollback_to == 20
    assert "goes back to the checkpoint of step 20: /c/last.pt cannot be read" in verdict.reason
    assert ask("process_restart", torn(job, times=1), job).terms.rollback_to is None
    job.checkpoints[:] = [10]
    assert isinstance(ask("process_restart", torn(job), job), Pass)
    job.checkpoints[:] = [10, 20]
    unable = running().state
    unable.checkpoints[:] = [10, 20]
    assert isinstance(ask("process_restart", torn(unable), unable), Pass)

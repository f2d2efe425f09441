"""Verdicts of the policies that add or exchange nodes: ``grow``, ``hot_swap``, ``evict_straggler``."""

import attrs
import msgspec
import pytest
from policy_cases import ago, ask, incident, running

from ftcore.events.node import NodeQuarantined
from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.states.revisions import SWAP_ON_NODE

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


def test_processes_that_can_go_on_in_a_larger_world_are_kept():
    """No step is lost, so no checkpoint is waited for."""
    job, about = grown(abilities=("retry", "park", "resize"))
    job.training.committed = ago(job, 300)
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.survivors, verdict.reason) == ("park", "3 nodes instead of 2 can train in the same processes")


def test_no_larger_world_is_no_reason_to_restart():
    """One node more is not enough where nodes count in pairs."""
    job, about = grown(unit=2)
    assert ask("grow", about, job) == Pass(reason="no larger world than 2 nodes can be formed")


def test_growing_waits_after_a_restart_and_says_how_long():
    """Its own and those of others; alerts and saves are no restarts."""
    job, about = grown()
    job.history.attempts["process_restart"] = [ago(job, 100)]
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Pass)
    assert verdict.again_s == pytest.approx(500)
    job.history.attempts = {"alert": [job.time], "dying_checkpoint": [job.time]}
    assert isinstance(ask("grow", about, job), Take)


def test_a_node_that_joins_soon_after_a_shrink_is_added_at_once():
    """Nobody waited for it: neither timers nor its one fault count, nor a checkpoint; later, or if it fails again, all
    is as usual."""
    job, about = grown()
    job.history.attempts["shrink"], job.evidence.node_faults["node2"] = [ago(job, 29)], [ago(job, 29)]
    job.training.committed = ago(job, 100)
    assert isinstance(ask("grow", about, job), Take)
    job.evidence.node_faults["node2"].insert(0, ago(job, 50))
    assert ask("grow", about, job).reason == "standby nodes were at fault recently: node2"
    job.evidence.node_faults["node2"], job.history.attempts["shrink"] = [ago(job, 31)], [ago(job, 31)]
    assert ask("grow", about, job).reason == "standby nodes were at fault recently: node2"


def test_a_node_that_was_admitted_again_does_not_wait_for_a_timer():
    """Somebody wants it to train: only a checkpoint is waited for. Once it has trained, or is not there, all is as
    usual."""
    driver = running(2, least=2, most=4)
    driver.own(NodeQuarantined(node="node2", reason="a test"))
    driver.command("admit", "node2")
    assert driver.state.membership.admitted == ["node2"]
    driver.join("node3")
    job, about = driver.state, incident(driver.state, "request", kind="opportunity", detail="grow", node="node2")
    job.history.attempts["process_restart"] = [ago(job, 1)]
    assert isinstance(ask("grow", about, job), Pass), "another node stands by, not the one that was admitted"
    driver.join("node2")
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Take) and verdict.reason.endswith("; node2 was admitted again")
    job.training.committed = ago(job, 100)
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Pass) and verdict.at_commit


def test_growing_waits_while_restarts_run_out():
    """Growing may cost a restart: it is offered again once enough restarts have left the window."""
    job, about = grown()
    job.history.attempts["process_restart"] = [ago(job, age) for age in (3000, 2000, *range(1900, 1100, -100), 700)]
    verdict = ask("grow", about, job)
    assert verdict == Pass(reason="11 of 20 restarts are spent, and growing may cost another one", again_s=1600)
    assert isinstance(ask("grow", about, job, reserve=0), Take)
    job.history.attempts["process_restart"] = [ago(job, 700)]
    assert isinstance(ask("grow", about, job), Take)
    assert isinstance(ask("grow", about, job, reserve=1), Pass)


def test_a_node_that_failed_lately_is_not_taken_in():
    """An unstable node would cost a restart each time."""
    job, about = grown()
    job.evidence.node_faults["node2"] = [ago(job, 100)]
    verdict = ask("grow", about, job)
    assert verdict == Pass(reason="standby nodes were at fault recently: node2", again_s=500)


def test_a_node_that_keeps_failing_is_trusted_ever_later():
    """Each fault doubles the time for which it is not taken in."""
    job, about = grown()
    waits = []
    for _ in range(3):
        job.evidence.node_faults.setdefault("node2", []).append(job.time)
        verdict = ask("grow", about, job)
        assert isinstance(verdict, Pass) and "standby nodes were at fault recently: node2" in verdict.reason
        waits.append(verdict.again_s)
    assert waits == [600, 1200, 2400]


def test_growing_waits_for_the_next_checkpoint():
    """If checkpoints are reported, it grows right after one; if the last one is too old, it does not wait."""
    job, about = grown()
    job.training.committed = ago(job, 300)
    verdict = ask("grow", about, job)
    assert isinstance(verdict, Pass) and verdict.at_commit and verdict.again_s == pytest.approx(1500)
    assert isinstance(ask("grow", about, job, checkpoint=0), Take)
    assert isinstance(ask("grow", about, job, checkpoint=200), Take)
    job.training.committed = job.time
    assert isinstance(ask("grow", about, job), Take)


# --- hot_swap --------------------------------------------------------------------------------------------------------

ARF = ("park",)


def test_the_others_wait_for_a_new_process():
    """A failed process is started again on its node; the others keep their state."""
    job = running(abilities=ARF).state
    verdict = ask("hot_swap", incident(job, "signal-preemption", ended=True), job)
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.terms.survivors, verdict.terms.replace) == (PlanKind.RESTART, "park", ())
    assert verdict.reason == "the live ranks wait for a new process on node1; 1 of 10 in 1h"


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
    """No replacement is possible."""
    driver = running(abilities=ARF)
    driver.lose("node1")
    verdict = ask("hot_swap", incident(driver.state, "node-lost"), driver.state)
    assert verdict == Pass(reason="no replacement for node1: no standby node, and the platform cannot launch one")


@pytest.mark.parametrize(("least", "swaps"), [(3, True), (1, False)])
def test_a_process_is_swapped_on_a_node_that_keeps_failing_if_the_job_needs_it(least, swaps):
    """All other processes would be started again with it. A job that can go on without the node does."""
    job = running(least=least, abilities=ARF).state
    about = incident(job, "signal-preemption", ended=True)
    job.evidence.node_faults["node1"] = [job.time] * 3
    verdict = ask("hot_swap", about, job)
    if swaps:
        assert isinstance(verdict, Take)
        assert verdict.terms.exclude == verdict.terms.quarantine == ()
        assert "node1 is at fault and stays" in verdict.reason
    else:
        assert isinstance(verdict, Pass) and verdict.reason.startswith("no replacement for node1")
    machine = incident(job, "gpu-hw", ended=True)
    assert isinstance(ask("hot_swap", machine, job), Pass), "the machine is checked before the next start"
    job.history.attempts["hot_swap"] = [job.time] * 3
    again = attrs.evolve(about, opened=job.time + 1)
    assert isinstance(ask("hot_swap", again, job), Take if swaps else Pass), "no limit by node for a node that stays"
    job.master = attrs.evolve(job.master, decides=SWAP_ON_NODE - 1)
    assert isinstance(ask("hot_swap", about, job), Pass)


def test_two_nodes_at_once_may_have_held_both_replicas():
    """Unless the file says that replicas are further apart."""
    driver = running(5, abilities=(*ARF, "replace"))
    driver.lose("node1")
    driver.lose("node2")
    about = incident(driver.state, "node-lost")
    verdict = ask("hot_swap", about, driver.state)
    assert verdict == Pass(reason="2 nodes failed at once (node1, node2): their replicas may be lost as well")
    assert isinstance(ask("hot_swap", about, driver.state, max_nodes=2), Take)


@pytest.mark.parametrize(
    ("cls", "more", "count", "streak", "reason"),
    [
        ("numeric", {"observed": "loss-nan"}, 1, 0, "after a numeric fault the state of the live ranks is wrong"),
        ("user-code", {}, 2, 0, "user-code occurred 2 times in a row: a new process would fail in the same way"),
        ("hang", {"tried": ["hot_swap"]}, 1, 0, "the last restart led to no completed step"),
        ("hang", {}, 1, 1, "the last restart led to no completed step"),
    ],
)
def test_a_state_or_script_that_is_suspect_is_not_kept(cls, more, count, streak, reason):
    """What a fresh process would meet again, or what did not help before, is passed on."""
    job = running(abilities=ARF).state
    job.evidence.repeat.count, job.history.streak = count, streak
    verdict = ask("hot_swap", incident(job, cls, ended=True, **more), job)
    assert isinstance(verdict, Pass)
    assert verdict.reason.startswith(reason)


def test_nothing_that_ended_is_nothing_to_swap():
    """After a fault without a failed process there is none to start again."""
    job = running(abilities=ARF).state
    verdict = ask("hot_swap", incident(job, "storage", observed="storage"), job)
    assert verdict == Pass(reason="no process ended, so there is none to start again")


def test_a_process_that_hangs_is_started_again():
    """Its agent stops it, because it cannot leave its groups; a hang that names no rank and no node is passed."""
    job = running(abilities=ARF).state
    about = incident(job, "hang", observed="hang")
    assert isinstance(ask("hot_swap", about, job), Take)
    about.fault = msgspec.structs.replace(about.fault, ranks=())
    assert isinstance(ask("hot_swap", about, job), Take), "the node is known"
    about.fault = msgspec.structs.replace(about.fault, nodes=())
    assert ask("hot_swap", about, job) == Pass(
        reason="no rank or node is known to hang, so there is no process to start again"
    )


def test_a_rank_that_dies_while_a_step_is_computed_again_is_swapped():
    """The step was stopped before it changed the state, so the live ranks may wait with it (TRE, then ARF)."""
    job = running(abilities=ARF).state
    assert isinstance(ask("hot_swap", incident(job, "numeric", observed="norm", ended=True), job), Pass)
    job.evidence.reports[-1] = attrs.evolve(job.evidence.reports[-1], type="worker.failed")
    assert isinstance(ask("hot_swap", incident(job, "numeric", detail="norm"), job), Take)


def test_a_retry_that_failed_does_not_make_the_state_suspect():
    """Nothing was restarted; a swap of its own that led to no step does."""
    job = running(abilities=ARF).state
    about = incident(job, "signal-preemption", ended=True, tried=["step_retry"])
    assert isinstance(ask("hot_swap", about, job), Take)
    job.history.attempts["hot_swap"] = [about.opened]
    verdict = ask("hot_swap", about, job)
    assert isinstance(verdict, Pass) and verdict.reason.startswith("the last restart led to no completed step")


def test_swaps_have_budgets():
    """By window and by node."""
    job = running(abilities=ARF).state
    about = attrs.evolve(incident(job, "signal-preemption", ended=True), opened=job.time + 1)
    job.history.attempts["hot_swap"] = [job.time] * 3
    assert ask("hot_swap", about, job) == Pass(reason="per-node limit reached: 3 attempts for node1 in the last 1h")
    job.history.attempts["hot_swap"] = [job.time] * 10
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
    assert verdict == Pass(reason="no replacement for node1: no standby node, and the platform cannot launch one")
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
        reason="node1 needs 1.30 times the usual step time; evicted from 1.5 times (`slower`)"
    )
    assert ask("evict_straggler", about, job, steps=100) == Pass(
        reason="node1 is slow since step 4; evicted after 100 steps (`steps`)"
    )


def test_evictions_are_rare():
    """One in `every`, and so many in the window."""
    job = running(abilities=("replace",)).state
    job.history.attempts["evict_straggler"] = [ago(job, 600)]
    verdict = ask("evict_straggler", slow(job), job)
    assert verdict == Pass(reason="cool-down: the next eviction is possible in 50m", again_s=3000)
    job.history.attempts["evict_straggler"] = [ago(job, 3700)] * 5
    assert isinstance(ask("evict_straggler", slow(job), job), Pass)


def test_other_warnings_evict_no_node():
    """Only a straggler is slow."""
    job = running(abilities=("replace",)).state
    about = incident(job, "numeric", kind="warning", observed="loss-spike")
    assert ask("evict_straggler", about, job) == Pass(reason="no node of the world is reported as slow")


def torn(job, *, step=None, times=2):
    """An incident of a file that cannot be read, for the n-th time in a row."""
    about = incident(job, "storage", detail="checkpoint-file", ended=True, step=step)
    job.evidence.reports[-1] = attrs.evolve(
        job.evidence.reports[-1], message="EOFError: Ran out of input (reading /c/last.pt)"
    )
    job.evidence.repeat.count = times
    return about


def test_a_checkpoint_that_cannot_be_read_ends_the_job():
    """It is tried once more; then it is said which file it is, and no node is blamed."""
    job = running().state
    assert isinstance(ask("process_restart", torn(job, times=1), job), Take)
    verdict = ask("process_restart", torn(job), job)
    assert verdict == Pass(reason="/c/last.pt could not be read 2 times in a row: a restart is no remedy")
    job.evidence.node_faults["node1"] = [job.time] * 9
    for name in ("pod_replacement", "shrink"):
        assert isinstance(ask(name, torn(job), job), Pass)
    end = ask("stop", torn(job), job)
    assert isinstance(end, Take) and end.reason.startswith("/c/last.pt cannot be read: rank 1 on node1: it broke")


def test_a_file_that_breaks_in_the_middle_is_a_fault_as_before():
    """Behind a completed step a disk may be at fault."""
    job = running().state
    assert isinstance(ask("process_restart", torn(job, step=10), job), Take)
    assert "cannot be read" not in ask("stop", torn(job, step=10), job).reason


def test_it_goes_back_to_the_previous_checkpoint():
    """If the script reported several and supports rollback; without an older one the job ends."""
    job = running(abilities=("rollback",)).state
    job.training.checkpoints[:] = [10, 20, 30]
    verdict = ask("process_restart", torn(job), job)
    assert isinstance(verdict, Take) and verdict.terms.rollback_to == 20
    assert "goes back to the checkpoint of step 20: /c/last.pt cannot be read" in verdict.reason
    assert ask("process_restart", torn(job, times=1), job).terms.rollback_to is None
    job.training.checkpoints[:] = [10]
    assert isinstance(ask("process_restart", torn(job), job), Pass)
    job.training.checkpoints[:] = [10, 20]
    unable = running().state
    unable.training.checkpoints[:] = [10, 20]
    assert isinstance(ask("process_restart", torn(unable), unable), Pass)

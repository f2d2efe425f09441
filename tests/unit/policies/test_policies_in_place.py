"""Verdicts of the policies whose plans leave the processes where they are."""

import pytest
from policy_cases import ago, ask, incident, request, running

from ftcore.commands import PauseWorkers, ResumeWorkers, SaveCheckpoint
from ftcore.events.policy import AbilityDeclared, Terms
from ftcore.policies.base import Pass, PlanKind, Take
from ftcore.testing.driver import JobDriver

RETRY = ("retry",)


# --- step_retry ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "kind", "how"),
    [
        ("gpu-hw", "uce", "each rank loads the state before it"),
        ("nccl-remote-error", "collective", "the process groups are set up again"),
    ],
)
def test_a_fault_that_leaves_all_alive_is_retried_in_a_new_round(cls, kind, how):
    """No process ends, all ranks enter the next round, and the step after the last one is computed again. The state is
    in the memory of the nodes, so no replica is needed."""
    job = running(abilities=RETRY).state
    verdict = ask("step_retry", incident(job, cls, observed=kind), job)
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.terms) == (PlanKind.RESTART, Terms(survivors="park"))
    assert (verdict.grace_s, verdict.deadline_s, verdict.wait_s, verdict.attempt) == (10, 120, 0, 1)
    assert verdict.reason == f"computes step 11 again in the same processes; {how}; 1 of 20 in 1h"


@pytest.mark.parametrize(("kind", "switch"), [("uce", "uce"), ("collective", "hcce")])
def test_each_kind_of_retry_can_be_switched_off(kind, switch):
    """One switch does not touch the other kind."""
    job = running(abilities=RETRY).state
    about = incident(job, "gpu-hw", observed=kind)
    assert ask("step_retry", about, job, **{switch: False}) == Pass(reason=f"`{switch}` is off")
    assert isinstance(ask("step_retry", about, job, **{"hcce" if switch == "uce" else "uce": False}), Take)


def test_a_retry_needs_a_living_reporter_and_all_workers():
    """What an ended process leaves behind, or a world with a rank missing, cannot compute the step."""
    job = running(abilities=RETRY).state
    assert ask("step_retry", incident(job, "gpu-hw", detail="uce"), job) == Pass(
        reason="no live worker reported the fault"
    )
    driver = running(abilities=RETRY)
    driver.fail("node2", exitcode=-9)
    about = incident(driver.state, "gpu-hw", observed="uce")
    assert ask("step_retry", about, driver.state) == Pass(reason="not all workers are alive")


def test_other_faults_are_not_retried():
    """Only two kinds of trouble leave every process alive and the state repairable."""
    job = running(abilities=RETRY).state
    assert isinstance(ask("step_retry", incident(job, "user-code", observed="exception"), job), Pass)


def test_a_retry_that_does_not_help_is_not_made_again():
    """The same fault at the same step for the second time is no hiccup."""
    job = running(abilities=RETRY).state
    job.evidence.repeat.count = 2
    verdict = ask("step_retry", incident(job, "gpu-hw", observed="uce"), job)
    assert verdict == Pass(reason="the same fault occurred 2 times in a row at the same step")


def test_retries_have_a_budget_by_window_and_by_node():
    """Either budget ends it; what is older than the window counts no more."""
    job = running(abilities=RETRY).state
    about = incident(job, "gpu-hw", observed="uce")
    job.history.attempts["step_retry"] = [ago(job, 4000)] * 20
    assert isinstance(ask("step_retry", about, job), Take)
    job.history.attempts["step_retry"] = [job.time] * 20
    assert ask("step_retry", about, job) == Pass(reason="budget spent: 20 of 20 retries in the last 1h")
    job.history.attempts["step_retry"] = [job.time] * 5
    assert ask("step_retry", about, job) == Pass(reason="per-node limit reached: 5 attempts for node1 in the last 1h")
    job.evidence.node_faults["node2"] = [job.time]
    assert isinstance(ask("step_retry", incident(job, "gpu-hw", observed="uce", node="node2"), job), Take)


# --- recompute_step --------------------------------------------------------------------------------------------------

TRE = ("retry",)


@pytest.mark.parametrize("kind", ["fault", "warning"])
def test_an_abnormal_step_is_computed_again_and_then_accepted(kind):
    """All ranks load the state before it in the next round, which accepts the step if it is abnormal again."""
    job = running(abilities=TRE).state
    verdict = ask("recompute_step", incident(job, "numeric", kind=kind, observed="norm"), job)
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.terms) == (PlanKind.RESTART, Terms(survivors="park", tolerate=11))
    about = incident(job, "numeric", kind=kind, observed="norm", values={"norm": 4.5, "at": 13.0, "limit": 3.0})
    job.evidence.reports.reverse()
    verdict = ask("recompute_step", about, job, tolerate=False)
    assert isinstance(verdict, Take)
    assert verdict.terms == Terms(survivors="park")
    assert verdict.reason.startswith("computes step 13 again in the same processes, from the state before it; 1 of 20")


def test_without_tolerance_an_abnormal_repeat_is_passed_on():
    """The same step for the second time, or one that was accepted before, is left to the next policy."""
    job = running(abilities=TRE).state
    about = incident(job, "numeric", observed="norm")
    assert isinstance(ask("recompute_step", about, job, tolerate=False), Take)
    job.evidence.repeat.count = 2
    assert isinstance(ask("recompute_step", about, job, tolerate=False), Pass)
    job.evidence.repeat.count, job.training.tolerated = 1, [11]
    assert isinstance(ask("recompute_step", about, job, tolerate=False), Pass)


def test_a_tolerated_step_counts_for_no_budget():
    """A step that was tolerated once may be computed again though the budget is spent; another may not."""
    job = running(abilities=TRE).state
    job.history.attempts["recompute_step"] = [job.time] * 20
    about = incident(job, "numeric", observed="norm")
    assert ask("recompute_step", about, job) == Pass(reason="budget spent: 20 of 20 steps in the last 1h")
    job.training.tolerated = [11]
    assert isinstance(ask("recompute_step", about, job), Take)


def test_only_the_kinds_named_are_recomputed():
    """A loss spike is another detector's: it shows when the optimizer has changed the state."""
    job = running(abilities=TRE).state
    about = incident(job, "numeric", observed="loss-spike")
    assert ask("recompute_step", about, job) == Pass(reason="not an observation in `on`: norm")
    assert isinstance(ask("recompute_step", incident(job, "gpu-hw", observed="norm"), job), Pass)


def test_a_step_is_not_recomputed_without_all_workers():
    """A rank that is missing cannot take back its state."""
    driver = running(abilities=TRE)
    driver.fail("node2", exitcode=-9)
    verdict = ask("recompute_step", incident(driver.state, "numeric", observed="norm"), driver.state)
    assert verdict == Pass(reason="not all workers are alive")


# --- skip_batch ------------------------------------------------------------------------------------------------------


def registered() -> JobDriver:
    """A job whose workers have registered their data."""
    driver = running(abilities=TRE)
    driver.own(AbilityDeclared(source="workers", abilities=("retry", "skip")))
    return driver


def test_the_batch_of_an_abnormal_step_is_left_out():
    """Each time it is abnormal, from the state before it; nothing is tolerated."""
    job = registered().state
    about = incident(job, "numeric", observed="norm")
    verdict = ask("skip_batch", about, job)
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.terms) == (PlanKind.RESTART, Terms(survivors="park", skip=1, skip_after=10))
    job.evidence.repeat.count = 2
    verdict = ask("skip_batch", about, job, skip=3)
    assert isinstance(verdict, Take)
    assert verdict.terms.skip == 3
    assert verdict.reason.startswith("leaves out 3 batches from step 11 on, in the same processes, from the state")
    job.history.attempts["skip_batch"] = [job.time] * 20
    assert ask("skip_batch", about, job) == Pass(reason="budget spent: 20 of 20 skips in the last 1h")


def test_only_data_that_ftcore_skips_is_left_out():
    """Not what the script skips at its start, not without all workers, and not after another observation."""
    job = running(abilities=TRE).state
    about = incident(job, "numeric", observed="norm")
    verdict = ask("skip_batch", about, job)
    assert verdict == Pass(reason="cannot skip data: the script has not registered it (`step.batch`)")
    own = running(abilities=("retry", "skip")).state
    verdict = ask("skip_batch", incident(own, "numeric", observed="norm"), own)
    assert isinstance(verdict, Pass) and "code of its own" in verdict.reason
    job = registered().state
    assert isinstance(ask("skip_batch", incident(job, "numeric", observed="loss-spike"), job), Pass)
    driver = registered()
    driver.fail("node2", exitcode=-9)
    verdict = ask("skip_batch", incident(driver.state, "numeric", observed="norm"), driver.state)
    assert verdict == Pass(reason="not all workers are alive")


# --- step_pause ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "command", "then"), [("pause", PauseWorkers, "pause"), ("resume", ResumeWorkers, "resolve")]
)
def test_a_pause_and_its_end_are_orders_in_place(wish, command, then):
    """Who asked, and why, is the reason."""
    job = running(abilities=("pause",)).state
    verdict = ask("step_pause", request(job, wish), job)
    assert isinstance(verdict, Take)
    assert (verdict.terms.command, verdict.terms.then) == (command(round=1), then)
    assert verdict.reason == "me@here asked for it: maintenance"


def test_nothing_else_is_a_pause():
    """Other requests and faults are passed on."""
    job = running(abilities=("pause",)).state
    assert isinstance(ask("step_pause", request(job, "drain", "node1"), job), Pass)
    assert isinstance(ask("step_pause", incident(job, "hang"), job), Pass)


def test_without_a_world_nothing_can_wait():
    """Before the first round there are no workers."""
    job = running(abilities=("pause",)).state
    job.rounds.world = None
    assert ask("step_pause", request(job, "pause"), job) == Pass(reason="no workers are running")


# --- dying_checkpoint ------------------------------------------------------------------------------------------------

TTP = ("save", "replicas")


def test_survivors_save_what_they_hold():
    """A rank is lost; the others save, and the chain continues."""
    driver = running(abilities=TTP)
    driver.state.evidence.reports.clear()
    driver.fail("node1", exitcode=-9)
    job = driver.state
    verdict = ask("dying_checkpoint", incident(job, "signal-preemption", ended=True), job)
    assert isinstance(verdict, Take)
    assert verdict.plan is PlanKind.IN_PLACE
    assert (verdict.terms.command, verdict.terms.then) == (SaveCheckpoint(round=1), "continue")


def test_without_replicas_a_missing_rank_means_no_complete_state():
    """Without replicas the state of a lost rank is missing; with all ranks alive it is complete."""
    driver = running(abilities=("save",))
    assert isinstance(
        ask("dying_checkpoint", incident(driver.state, "storage", observed="storage"), driver.state), Take
    )
    driver.fail("node1", exitcode=-9)
    verdict = ask("dying_checkpoint", incident(driver.state, "signal-preemption", ended=True), driver.state)
    assert isinstance(verdict, Pass)
    assert "`replicas`" in verdict.reason


def test_a_broken_state_is_not_saved():
    """Neither a loss that is not a number nor a spike is worth a checkpoint."""
    job = running(abilities=TTP).state
    verdict = ask("dying_checkpoint", incident(job, "numeric", observed="loss-nan"), job)
    assert verdict == Pass(reason="after a numeric fault the state is not worth saving")


def test_blocked_ranks_are_not_asked_to_save():
    """They would cost the whole deadline; the file may say that they can be freed."""
    job = running(abilities=TTP).state
    about = incident(job, "hang", observed="hang")
    assert ask("dying_checkpoint", about, job) == Pass(reason="blocked ranks cannot save (`on_hang` is off)")
    assert isinstance(ask("dying_checkpoint", about, job, on_hang=True), Take)


def test_what_is_saved_already_is_not_saved_again():
    """Once in an incident; not if the newest checkpoint holds all; not before the first step."""
    job = running(abilities=TTP).state
    assert isinstance(ask("dying_checkpoint", incident(job, "storage", saved=True), job), Pass)
    job.training.checkpoints = [5, 10]
    assert isinstance(ask("dying_checkpoint", incident(job, "storage"), job), Take), "the log may be steps behind"
    job.training.committed = job.time
    assert ask("dying_checkpoint", incident(job, "storage"), job) == Pass(
        reason="no step was completed since the checkpoint of step 10"
    )
    job.training.checkpoints, job.training.step = [], None
    assert ask("dying_checkpoint", incident(job, "storage"), job) == Pass(reason="no step was completed yet")


def test_without_live_workers_nothing_is_saved():
    """All nodes are lost."""
    driver = running(2, abilities=TTP)
    driver.lose("node0")
    driver.lose("node1")
    verdict = ask("dying_checkpoint", incident(driver.state, "node-lost"), driver.state)
    assert verdict == Pass(reason="no live worker could save")


@pytest.mark.parametrize(("wish", "then"), [("checkpoint", "resolve"), ("drain", "continue"), ("evict", "continue")])
def test_requests_are_saved_for(wish, then):
    """A requested checkpoint resolves the request; before a drain the chain continues; no replicas are needed."""
    job = running(abilities=("save",)).state
    verdict = ask("dying_checkpoint", request(job, wish, "node1"), job)
    assert isinstance(verdict, Take)
    assert verdict.terms.then == then


def test_a_stop_is_saved_for_only_where_the_file_says_so():
    """Who stops a job that hangs does not want to wait for a save, unless he said so."""
    job = running(abilities=("save",)).state
    about = request(job, "stop")
    assert isinstance(ask("dying_checkpoint", about, job), Pass)
    assert isinstance(ask("dying_checkpoint", about, job, before=["stop"]), Take)


def test_a_warning_that_a_node_will_go_is_saved_for():
    """A spot instance is about to be lost after its warning; a straggler is not."""
    job = running(abilities=("save",)).state
    notice = incident(job, "signal-preemption", kind="warning", observed="preemption-notice")
    assert isinstance(ask("dying_checkpoint", notice, job), Take)
    slow = incident(job, "hang", kind="warning", observed="straggler")
    assert ask("dying_checkpoint", slow, job) == Pass(reason="no rank is about to be lost: hang")


# --- alert -----------------------------------------------------------------------------------------------------------


def test_an_alert_says_what_happened_where_and_what_to_do():
    """The message has job, fault, place, what was tried, and the advice."""
    job = running().state
    job.evidence.repeat.count = 3
    about = incident(job, "gpu-hw", tried=["hot_swap", "hot_swap"])
    verdict = ask("alert", about, job, to=["slack://x"], severity="critical")
    assert isinstance(verdict, Take)
    assert (verdict.plan, verdict.terms.severity) == (PlanKind.TELL, "critical")
    assert verdict.terms.alert.splitlines() == [
        "job: rank 1 on node1: it broke (gpu-hw)",
        "incident i1, after step 10, on node1",
        "the same fault occurred 3 times in a row",
        "failed attempts: hot_swap",
        "advice: drain the node and run the vendor's diagnostics on it",
    ]


def test_an_alert_without_targets_is_passed():
    """The default has no targets."""
    job = running().state
    assert ask("alert", incident(job, "hang"), job) == Pass(reason="no target in `to`")


def test_alerts_can_be_restricted_to_classes():
    """Other classes are passed on; requests need a switch of their own."""
    job = running().state
    about = incident(job, "hang")
    assert ask("alert", about, job, to=["x"], on=["gpu-hw"]) == Pass(reason="no alerts about hang: not in `on`")
    assert isinstance(ask("alert", about, job, to=["x"], on=["hang"]), Take)
    wish = request(job, "pause")
    assert isinstance(ask("alert", wish, job, to=["x"]), Pass)
    told = ask("alert", wish, job, to=["x"], requests=True)
    assert isinstance(told, Take)
    assert told.terms.alert == "job: pause: me@here asked for it: maintenance"


def test_alerts_about_repeated_faults_and_warnings_are_rate_limited():
    """Within `every` only a new fault is worth a message."""
    job = running().state
    job.history.attempts["alert"] = [ago(job, 60)]
    about = incident(job, "hang")
    assert isinstance(ask("alert", about, job, to=["x"]), Take)
    job.evidence.repeat.count = 2
    assert ask("alert", about, job, to=["x"]) == Pass(reason="nothing new: the last alert was sent 1m ago")
    assert isinstance(ask("alert", about, job, to=["x"], every=30), Take)
    job.evidence.repeat.count = 1
    assert isinstance(ask("alert", incident(job, "hang", kind="warning"), job, to=["x"]), Pass)


def test_alerts_have_a_budget():
    """A storm of faults is not a storm of messages."""
    job = running().state
    job.history.attempts["alert"] = [job.time] * 12
    verdict = ask("alert", incident(job, "hang"), job, to=["x"])
    assert verdict == Pass(reason="budget spent: 12 of 12 alerts in the last 1h")

"""Handlers of events of the job, its master, its policies, its operators, and of time."""

from ftcore.events import deadline, job, master, operator, policy
from ftcore.events.envelope import Event
from ftcore.states import timers
from ftcore.states.fold.base import (
    Changes,
    await_others,
    on,
    progress,
    step_job,
)
from ftcore.states.model import (
    HISTORY_MAX,
    Contradicted,
    JobState,
    MasterState,
    Repeat,
    Request,
    Skip,
)
from ftcore.states.phases import has_ended, is_deferred, is_stuck, is_under_way, is_up
from ftcore.states.revisions import RUN_ANEW, follows


@on(job.JobSubmitted)
def _job_submitted(state: JobState, event: Event, data: job.JobSubmitted, changes: Changes) -> None:
    if state.run:
        step_job(state, "job.submitted", changes)
        resumed = state.contradicted is Contradicted.RESUMED
        state.contradicted = Contradicted.SETTLED if resumed else Contradicted.NEVER
    state.job, state.run, state.spec, state.digest = data.job, data.run, data.spec, data.digest
    state.launch = data.launch
    state.outcome, state.exit_code, state.reason, state.stop = "", 0, "", None
    state.round_first = state.round + 1
    state.world = state.plan = state.incident = None
    state.reports = []
    timers.cancel_all(state)
    state.actions, state.attempts = {}, {}
    if follows(state, RUN_ANEW):
        # Nobody answers an order of the run before, and its first round may have the number of one planned there.
        state.stores, state.store_nodes = {}, {}
        await_others(state, event)
    state.streak, state.repeat = 0, Repeat()
    state.step, state.reports_steps, state.step_absolute = None, False, False
    state.request, state.held, state.resume_step, state.offered = None, False, None, 0
    state.at_commit, state.committed = False, 0
    state.paused_for = state.health = state.standstill = None
    state.ceilings = 0
    state.hits, state.curves, state.nan = [], {}, None
    state.lacking, state.launched = {}, {}
    state.abilities = {"file": state.abilities.get("file", ())}  # the policy is loaded before the run is submitted


@on(job.JobProgressed)
def _job_progressed(state: JobState, event: Event, data: job.JobProgressed, changes: Changes) -> None:
    if state.world is not None and data.round == state.world.round:
        progress(state, data.round, data.step, state.step_absolute)
        if data.loss is not None and state.nan is not None and data.step > state.nan.since:
            state.nan = None


@on(job.JobFinished)
def _job_finished(state: JobState, event: Event, data: job.JobFinished, changes: Changes) -> None:
    step_job(state, f"job.finished/{data.outcome}", changes)
    state.outcome, state.exit_code, state.reason = data.outcome, data.exit_code, data.reason
    timers.cancel_all(state)
    state.plan = state.standstill = None


@on(job.JobParked)
def _job_parked(state: JobState, event: Event, data: job.JobParked, changes: Changes) -> None:
    if not is_stuck(state):
        state.before_stuck = state.phase
    step_job(state, "job.parked", changes)
    state.reason = data.error


@on(job.LogContradicted)
def _log_contradicted(state: JobState, event: Event, data: job.LogContradicted, changes: Changes) -> None:
    if is_under_way(state):
        state.before_stuck, state.reason = state.phase, data.reason
    state.contradicted = Contradicted.OPEN
    step_job(state, "log.contradicted", changes)


@on(job.LogSalvaged)
def _log_salvaged(state: JobState, event: Event, data: job.LogSalvaged, changes: Changes) -> None:
    state.log_id = data.log_id


@on(job.JobUnparked)
def _job_unparked(state: JobState, event: Event, data: job.JobUnparked, changes: Changes) -> None:
    step_job(state, "job.unparked", changes)
    state.before_stuck, state.reason = None, ""


@on(policy.PolicyLoaded)
def _policy_loaded(state: JobState, event: Event, data: policy.PolicyLoaded, changes: Changes) -> None:
    state.chain, state.policy_source, state.rules = data.chain, data.source, data.rules
    state.declared, state.abilities["file"] = data.declared, data.declared.abilities
    state.lacking = {}


@on(master.MasterElected)
def _master_elected(state: JobState, event: Event, data: master.MasterElected, changes: Changes) -> None:
    state.master = MasterState(host=data.host, pid=data.pid, address=data.address, version=data.version)
    state.log_id = state.log_id or data.log_id
    state.master.decides = data.decides


@on(deadline.DeadlineExpired)
def _deadline_expired(state: JobState, event: Event, data: deadline.DeadlineExpired, changes: Changes) -> None:
    if timers.expire(state, data.key, data.due) == timers.Offer():
        state.offered = 0


def _is_unanswered_pause(state: JobState) -> bool:
    wish, known = state.request, state.incident
    return wish is not None and wish.command == "pause" and (known is None or known.fault.root != wish.seq)


@on(operator.OperatorCommanded)
def _operator_commanded(state: JobState, event: Event, data: operator.OperatorCommanded, changes: Changes) -> None:
    request = Request(
        seq=event.seq,
        command=data.command,
        who=data.who,
        why=data.why,
        exit_code=data.exit_code,
        node=data.node,
    )
    if data.command in ("resume", "stop") and state.contradicted is Contradicted.OPEN:
        state.contradicted = Contradicted.RESUMED if has_ended(state) else Contradicted.SETTLED
    if data.command == "stop":
        state.stop = request
    elif data.command == "admit":
        if state.quarantined.pop(data.node, None) is not None:
            state.admitted.append(data.node)
        state.node_faults.pop(data.node, None)
    elif data.command == "resume" and _is_unanswered_pause(state):
        state.request = state.paused_for = None  # taken back before it was answered
    elif data.command == "resume" and (state.held or is_stuck(state)):
        state.held = False
    elif data.command == "pause" and (not is_up(state) or is_deferred(state.incident)):
        state.held = True  # no recovery begins, and no node leaves, until it is resumed
    else:
        state.request = request
    if data.command == "resume":
        state.paused_for = None


@on(policy.AbilityDeclared)
def _ability_declared(state: JobState, event: Event, data: policy.AbilityDeclared, changes: Changes) -> None:
    changed = {*state.abilities.get(data.source, ())} ^ {*data.abilities}
    state.abilities[data.source] = data.abilities
    state.lacking = {policy: lacks for policy, lacks in state.lacking.items() if not changed & {*lacks}}


@on(job.CheckpointCommitted)
def _checkpoint_committed(state: JobState, event: Event, data: job.CheckpointCommitted, changes: Changes) -> None:
    if state.world is not None and data.round == state.world.round and data.step not in state.checkpoints:
        state.committed = event.time
        if state.at_commit:
            state.offered, state.at_commit = 0, False
        state.checkpoints.append(data.step)
        state.checkpoints.sort()
        del state.checkpoints[: -min(data.kept or state.declared.checkpoints_kept or HISTORY_MAX, HISTORY_MAX)]


@on(job.JobRolledBack)
def _job_rolled_back(state: JobState, event: Event, data: job.JobRolledBack, changes: Changes) -> None:
    state.nan = None
    state.checkpoints = [step for step in state.checkpoints if step <= data.step]
    state.skips = [skip for skip in state.skips if skip.step <= data.step]
    state.step = state.resume_step = data.step


@on(job.DataSkipped)
def _data_skipped(state: JobState, event: Event, data: job.DataSkipped, changes: Changes) -> None:
    state.skips.append(Skip(step=data.step, amount=data.amount, unit=data.unit))

"""Handlers of events of the job, its master, its policies, its operators, and of time."""

from ftcore.events import deadline, job, master, operator, policy
from ftcore.events.envelope import Event
from ftcore.states.fold.base import (
    Changes,
    on,
    progress,
    step_job,
)
from ftcore.states.job import JobPhase
from ftcore.states.model import (
    JobState,
    MasterState,
    Repeat,
    Request,
)


@on(job.JobSubmitted)
def _job_submitted(state: JobState, event: Event, data: job.JobSubmitted, changes: Changes) -> None:
    if state.run:
        step_job(state, "job.submitted", changes)
    state.job, state.run, state.spec, state.digest = data.job, data.run, data.spec, data.digest
    state.outcome, state.exit_code, state.reason, state.stop = "", 0, "", None
    state.round_first = state.round + 1
    state.world = state.plan = state.incident = None
    state.reports = []
    state.actions, state.deadlines, state.attempts = {}, {}, {}
    state.streak, state.repeat = 0, Repeat()
    state.step, state.reports_steps, state.step_absolute = None, False, False


@on(job.JobProgressed)
def _job_progressed(state: JobState, event: Event, data: job.JobProgressed, changes: Changes) -> None:
    if state.world is not None and data.round == state.world.round:
        progress(state, data.round, data.step, state.step_absolute)


@on(job.JobFinished)
def _job_finished(state: JobState, event: Event, data: job.JobFinished, changes: Changes) -> None:
    step_job(state, f"job.finished/{data.outcome}", changes)
    state.outcome, state.exit_code, state.reason = data.outcome, data.exit_code, data.reason
    state.deadlines.clear()
    state.plan = None


@on(job.JobParked)
def _job_parked(state: JobState, event: Event, data: job.JobParked, changes: Changes) -> None:
    if state.phase is not JobPhase.STUCK:
        state.before_stuck = state.phase
    step_job(state, "job.parked", changes)
    state.reason = data.error


@on(job.JobUnparked)
def _job_unparked(state: JobState, event: Event, data: job.JobUnparked, changes: Changes) -> None:
    step_job(state, "job.unparked", changes)
    state.before_stuck, state.reason = None, ""


@on(policy.PolicyLoaded)
def _policy_loaded(state: JobState, event: Event, data: policy.PolicyLoaded, changes: Changes) -> None:
    state.chain, state.policy_source = data.chain, data.source


@on(master.MasterElected)
def _master_elected(state: JobState, event: Event, data: master.MasterElected, changes: Changes) -> None:
    state.master = MasterState(host=data.host, pid=data.pid, address=data.address, version=data.version)


@on(deadline.DeadlineExpired)
def _deadline_expired(state: JobState, event: Event, data: deadline.DeadlineExpired, changes: Changes) -> None:
    state.deadlines.pop(data.key, None)


@on(operator.OperatorCommanded)
def _operator_commanded(state: JobState, event: Event, data: operator.OperatorCommanded, changes: Changes) -> None:
    if data.command == "stop":
        state.stop = Request(seq=event.seq, command=data.command, who=data.who, why=data.why, exit_code=data.exit_code)

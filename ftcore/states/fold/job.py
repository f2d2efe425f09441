"""Handlers of the job, its master, its policy file, its operators, and of expired timers."""

from ftcore.events import deadline, job, master, operator, policy
from ftcore.events.envelope import Event
from ftcore.states import timers
from ftcore.states.evidence import EvidenceState
from ftcore.states.fold import disruptions, pace
from ftcore.states.fold.base import FILE, Changes, await_others, declare_abilities, on, progress, step_job
from ftcore.states.model import (
    SKIPS_MAX,
    AbilitiesState,
    Contradicted,
    EndState,
    HistoryState,
    JobState,
    MasterState,
    OperatorRequest,
    PolicyState,
    RequestsState,
    StuckState,
)
from ftcore.states.node import NodePhase
from ftcore.states.phases import has_ended, is_deferred, is_paused, is_stuck, is_under_way, is_up
from ftcore.states.revisions import DISRUPTIONS, FIRST_RUN_ANEW, RUN_ANEW, follows
from ftcore.states.training import SavedState, Skip, TrainingState


@on(job.JobSubmitted)
def _job_submitted(state: JobState, event: Event, data: job.JobSubmitted, changes: Changes) -> None:
    rounds = state.rounds
    if state.run or (has_ended(state) and follows(state, FIRST_RUN_ANEW)):
        step_job(state, "job.submitted", changes)
    if state.run:
        resumed = state.log.contradicted is Contradicted.RESUMED
        state.log.contradicted = Contradicted.SETTLED if resumed else Contradicted.NEVER
    state.job, state.run, state.spec, state.digest = data.job, data.run, data.spec, data.digest
    state.launch = data.launch
    if not has_ended(state):  # it has before revision 5 if it was stopped before its first run: nodes are released
        state.ending = None
    rounds.first = rounds.newest + 1
    rounds.world = rounds.planned = state.incident = state.health = None
    state.orders.open, state.membership.launched = {}, {}
    timers.cancel_all(state)
    if follows(state, RUN_ANEW):
        # Orders of the run before are never answered, and its rounds may have had the same numbers.
        rounds.stores, rounds.store_nodes = {}, {}
        await_others(state, event)
    state.requests = RequestsState()
    state.history = HistoryState(applied=state.history.applied)
    state.evidence = EvidenceState(node_faults=state.evidence.node_faults, other_faults=state.evidence.other_faults)
    state.training = _training_of_next_run(state.training)
    # The policy is loaded before the run is submitted.
    state.abilities = AbilitiesState(declared={FILE: state.abilities.declared.get(FILE, ())})


def _training_of_next_run(before: TrainingState) -> TrainingState:
    """The training state that the next run inherits: checkpoints, skipped data, learning rate and abnormal steps."""
    return TrainingState(
        step_round=before.step_round,
        checkpoints=before.checkpoints,
        skips=before.skips,
        lr_factor=before.lr_factor,
        lr_policy=before.lr_policy,
        tolerated=before.tolerated,
        norms=before.norms,
        longest_gap_s=before.longest_gap_s,
        saved=SavedState(stored=before.saved.stored, rollbacks=before.saved.rollbacks, pace=before.saved.pace),
    )


@on(job.JobProgressed)
def _job_progressed(state: JobState, event: Event, data: job.JobProgressed, changes: Changes) -> None:
    if state.rounds.world is not None and data.round == state.rounds.world.round:
        training = state.training
        progress(state, data.round, data.step, training.step_absolute or data.absolute)
        pace.stepped(state, data.step, event.time)
        if data.reporting:
            training.reporting = (data.round, data.reporting)
        if data.loss is not None and training.nan is not None and data.step > training.nan.since:
            training.nan = None


@on(job.JobFinished)
def _job_finished(state: JobState, event: Event, data: job.JobFinished, changes: Changes) -> None:
    step_job(state, f"job.finished/{data.outcome}", changes)
    pace.training_ended(state, event.time)
    state.stuck = None
    state.ending = EndState(outcome=data.outcome, exit_code=data.exit_code, reason=data.reason)
    timers.cancel_all(state)
    state.rounds.planned = state.training.standstill = None


@on(job.JobParked)
def _job_parked(state: JobState, event: Event, data: job.JobParked, changes: Changes) -> None:
    if state.stuck is not None:
        state.stuck.reason = data.error
    elif state.ending is not None:
        state.ending.reason = data.error
    else:
        state.stuck = StuckState(before=state.phase, reason=data.error)
    step_job(state, "job.parked", changes)


@on(job.LogContradicted)
def _log_contradicted(state: JobState, event: Event, data: job.LogContradicted, changes: Changes) -> None:
    if is_under_way(state):
        state.stuck = StuckState(before=state.phase, reason=data.reason)
    state.log.contradicted = Contradicted.OPEN
    step_job(state, "log.contradicted", changes)


@on(job.LogSalvaged)
def _log_salvaged(state: JobState, event: Event, data: job.LogSalvaged, changes: Changes) -> None:
    state.log.identity = data.log_id


@on(job.JobUnparked)
def _job_unparked(state: JobState, event: Event, data: job.JobUnparked, changes: Changes) -> None:
    step_job(state, "job.unparked", changes)
    state.stuck = None


@on(policy.PolicyLoaded)
def _policy_loaded(state: JobState, event: Event, data: policy.PolicyLoaded, changes: Changes) -> None:
    state.policy = PolicyState(source=data.source, chain=data.chain, rules=data.rules, declared=data.declared)
    state.abilities.declared[FILE] = data.declared.abilities
    state.abilities.lacking = {}


@on(master.MasterElected)
def _master_elected(state: JobState, event: Event, data: master.MasterElected, changes: Changes) -> None:
    state.master = MasterState(host=data.host, pid=data.pid, address=data.address, version=data.version)
    state.log.identity = state.log.identity or data.log_id
    state.master.decides = data.decides


@on(deadline.DeadlineExpired)
def _deadline_expired(state: JobState, event: Event, data: deadline.DeadlineExpired, changes: Changes) -> None:
    timer = timers.expire(state, data.key, data.due)
    if timer == timers.OfferTimer():
        state.history.offered = 0
    elif isinstance(timer, timers.DisruptionTimer):
        disruptions.expired(state, event, timer.disruption, changes)


def _is_unanswered_pause(state: JobState) -> bool:
    request, known = state.requests.pending, state.incident
    return request is not None and request.command == "pause" and (known is None or known.fault.root != request.seq)


@on(operator.OperatorCommanded)
def _operator_commanded(state: JobState, event: Event, data: operator.OperatorCommanded, changes: Changes) -> None:
    requests = state.requests
    request = OperatorRequest(
        seq=event.seq,
        command=data.command,
        who=data.who,
        why=data.why,
        exit_code=data.exit_code,
        node=data.node,
    )
    if data.command in ("resume", "stop") and state.log.contradicted is Contradicted.OPEN:
        state.log.contradicted = Contradicted.RESUMED if has_ended(state) else Contradicted.SETTLED
    if data.command == "stop":
        requests.stop = request
    elif data.command == "admit":
        known = state.membership.nodes.get(data.node)
        quarantined = state.membership.quarantined.pop(data.node, None) is not None
        if quarantined or (known is not None and known.phase is NodePhase.LEFT):
            state.membership.admitted.append(data.node)
        state.evidence.node_faults.pop(data.node, None)
    elif data.command == "resume" and _is_unanswered_pause(state):
        requests.pending = requests.paused_for = None  # the pause was withdrawn before it was answered
    elif data.command == "resume" and (requests.held or is_stuck(state)):
        requests.held = False
        if follows(state, DISRUPTIONS) and (requests.paused_for is not None or requests.resume is not None):
            requests.pending = request  # the workers of a paused job go on, too
    elif data.command == "pause" and disruptions.is_about_disruption(state):
        requests.pending = request
    elif data.command == "pause" and (not is_up(state) or is_deferred(state.incident)):
        requests.held = True  # until `resume`, no recovery begins and no node leaves
    elif data.command == "pause" and is_paused(state) and state.awaited() is not None:
        disruptions.keep_paused(state, request)  # a policy has paused it
    else:
        requests.pending = request
    if data.command == "resume":
        requests.paused_for = requests.resume = None
        disruptions.resumed(state, "operator.commanded/resume", changes)


@on(policy.AbilityDeclared)
def _ability_declared(state: JobState, event: Event, data: policy.AbilityDeclared, changes: Changes) -> None:
    declare_abilities(state.abilities, data.source, data.abilities)


@on(job.RateLowered)
def _rate_lowered(state: JobState, event: Event, data: job.RateLowered, changes: Changes) -> None:
    state.training.lr_factor, state.training.lr_policy = data.factor, data.policy


@on(job.DataSkipped)
def _data_skipped(state: JobState, event: Event, data: job.DataSkipped, changes: Changes) -> None:
    skip = Skip(step=data.step, amount=data.amount, unit=data.unit)
    state.training.skips = [*state.training.skips, skip][-SKIPS_MAX:]

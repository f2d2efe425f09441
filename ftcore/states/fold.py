"""The fold: state + event -> state. It *is* the live machine of job, nodes, workers and incident.

House rules:
- pure: the result depends on the state and the event alone; the only time is the event's;
- it must accept every event ever written: meaning may be added, never changed;
- it never asks a policy and never forms a world: decisions are folded as recorded;
- it updates in place a state that it owns; who wants the old one copies it first;
- an event that some machine does not accept changes nothing there and is returned as a ``Change`` without a target.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from ftcore.commands import OpenStore, ReleaseNode, StartWorkers, StopWorkers
from ftcore.errors import UnknownEvent
from ftcore.events import action, deadline, incident, job, master, node, operator, policy, worker, world
from ftcore.events.envelope import Event, Unknown
from ftcore.ids import seconds
from ftcore.states.faultkey import fault_key, is_same
from ftcore.states.incident import INCIDENT
from ftcore.states.job import JOB, JobPhase
from ftcore.states.model import (
    REPORTS_MAX,
    TAIL_BYTES_MAX,
    ActionState,
    IncidentState,
    JobState,
    MasterState,
    NodeState,
    Plan,
    Repeat,
    Report,
    StopRequest,
    WorldState,
)
from ftcore.states.node import NODE, NodePhase
from ftcore.states.table import Machine
from ftcore.states.worker import WORKER, WorkerPhase
from ftcore.states.world import usable

_ROUND_DEADLINES = ("backoff/", "window/", "return/", "settle/", "outcome/")

ATTEMPTS_MAX = 1024
"""Attempts remembered per policy; a budget larger than this is refused when the policy file is read."""


class Change(NamedTuple):
    """What one event did to one machine.

    Args:
        machine: the machine's name.
        instance: which one, as ``node1`` or ``node1/0``.
        trigger: the trigger that the event was to it.
        source: the state before.
        target: the state after; the same if ignored; None for an anomaly.
    """

    machine: str
    instance: str
    trigger: str
    source: StrEnum
    target: StrEnum | None


Changes: TypeAlias = list[Change]
Handler: TypeAlias = Callable[[JobState, Event, Any, Changes], None]

_handlers: dict[type[Any], Handler] = {}


def fold(state: JobState, event: Event) -> Changes:
    """Fold one event into a state, in place.

    Args:
        state: the state after ``event.seq - 1``; owned by the caller, changed.
        event: the next event of the log.

    Returns:
        What each machine made of it.

    Raises:
        UnknownEvent: a type or version that this ftcore does not know, and that may not be ignored.
    """
    assert event.seq == state.seq + 1, f"event {event.seq} after {state.seq}"
    changes: Changes = []
    data = event.data
    if not state.poisoned:
        if type(data) is Unknown:
            _check_ignorable(event)
        else:
            handler = _handlers.get(type(data))
            if handler is not None:
                handler(state, event, data, changes)
    state.seq = event.seq
    state.time = event.time
    if event.term > state.term:
        state.term = event.term
    if event.id.source != "master":
        state.sources[event.id.source] = (event.id.incarnation, event.id.n)
    return changes


def is_duplicate(state: JobState, source: str, incarnation: str, n: int) -> bool:
    """Whether a fact with that identity was folded before."""
    last = state.sources.get(source)
    return last is not None and last[0] == incarnation and n <= last[1]


def pending(state: JobState) -> list[ActionState]:
    """Orders without a result, oldest first: what a new master issues again under the same effect ids."""
    return list(state.actions.values())


def next_deadline(state: JobState) -> tuple[str, int] | None:
    """The key and time (nanoseconds since the epoch) of the deadline that comes first."""
    if not state.deadlines:
        return None
    key = min(state.deadlines, key=lambda name: (state.deadlines[name], name))
    return key, state.deadlines[key]


def _check_ignorable(event: Event) -> None:
    if not event.ignorable:
        raise UnknownEvent(
            f"event {event.seq} is a {event.type} v{event.v}, which this ftcore does not know and may not skip: "
            f"read this log with an ftcore that knows {event.type} v{event.v}"
        )


def _on(payload: type[Any]) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        assert payload not in _handlers, payload
        _handlers[payload] = handler
        return handler

    return register


def _step(machine: Machine, instance: str, source: Any, trigger: str, changes: Changes, context: Any = None) -> Any:
    target = machine.step(source, trigger, context)
    changes.append(Change(machine.name, instance, trigger, source, target))
    return source if target is None else target


def _report(
    state: JobState,
    event: Event,
    name: str,
    rank: int = -1,
    *,
    round_: int | None = None,
    exitcode: int | None = None,
    message: str = "",
    tail: str = "",
    step: int | None = None,
    absolute: bool = False,
) -> None:
    round_ = round_ if round_ is not None else state.world.round if state.world is not None else 0
    if len(state.reports) >= REPORTS_MAX and not _make_room(state, event, round_):
        return
    state.reports.append(
        Report(
            seq=event.seq,
            type=event.type,
            node=name,
            rank=rank,
            round=round_,
            time=event.time,
            mono=event.at.mono if event.at is not None else 0,
            boot=event.at.boot if event.at is not None else "",
            exitcode=exitcode,
            message=message,
            tail=tail[-TAIL_BYTES_MAX:],
            step=step,
            absolute=absolute,
        )
    )


def _make_room(state: JobState, event: Event, round_: int) -> bool:
    """Drop the oldest report of an earlier round; for a failed order, which must be noticed, else the newest one."""
    for place, report in enumerate(state.reports):
        if report.round < round_:
            del state.reports[place]
            return True
    if event.type == "action.failed":
        state.reports.pop()
        return True
    return False


def _step_job(state: JobState, trigger: str, changes: Changes) -> None:
    state.phase = _step(JOB, state.job, state.phase, trigger, changes, state.before_stuck)


def _step_incident(state: JobState, trigger: str, changes: Changes) -> IncidentState | None:
    open_incident = state.incident
    if open_incident is not None:
        open_incident.phase = _step(INCIDENT, open_incident.id, open_incident.phase, trigger, changes)
    return open_incident


def _step_workers(found: NodeState, trigger: str, changes: Changes) -> None:
    for local_rank, phase in enumerate(found.workers):
        found.workers[local_rank] = _step(WORKER, f"{found.node}/{local_rank}", phase, trigger, changes)


def _reporter(state: JobState, data: Any) -> NodeState | None:
    """The node that a fact is about; None if the fact is stale: of an older incarnation or round."""
    found = state.nodes.get(data.node)
    if found is None or found.incarnation != data.incarnation:
        return None
    return None if data.round < found.round else found


def _answered(state: JobState, node_name: str, *commands: type[Any], round_: int | None = None) -> None:
    """Take the node off the orders of those kinds, up to a round."""
    for ordered in state.actions.values():
        command = ordered.command
        if isinstance(command, commands) and (
            round_ is None or isinstance(command, ReleaseNode) or command.round <= round_
        ):
            ordered.waiting.pop(node_name, None)


# --- the job ---------------------------------------------------------------------------------------------------------


@_on(job.JobSubmitted)
def _job_submitted(state: JobState, event: Event, data: job.JobSubmitted, changes: Changes) -> None:
    if state.run:
        _step_job(state, "job.submitted", changes)
    state.job, state.run, state.spec, state.digest = data.job, data.run, data.spec, data.digest
    state.outcome, state.exit_code, state.reason, state.stop = "", 0, "", None
    state.round_first = state.round + 1
    state.world = state.plan = state.incident = None
    state.reports = []
    state.actions, state.deadlines, state.attempts = {}, {}, {}
    state.streak, state.repeat = 0, Repeat()
    state.step, state.reports_steps, state.step_absolute = None, False, False


@_on(job.JobProgressed)
def _job_progressed(state: JobState, event: Event, data: job.JobProgressed, changes: Changes) -> None:
    if state.world is not None and data.round == state.world.round:
        _progress(state, data.round, data.step, state.step_absolute)


@_on(job.JobFinished)
def _job_finished(state: JobState, event: Event, data: job.JobFinished, changes: Changes) -> None:
    _step_job(state, f"job.finished/{data.outcome}", changes)
    state.outcome, state.exit_code, state.reason = data.outcome, data.exit_code, data.reason
    state.deadlines.clear()
    state.plan = None


@_on(job.JobParked)
def _job_parked(state: JobState, event: Event, data: job.JobParked, changes: Changes) -> None:
    if state.phase is not JobPhase.STUCK:
        state.before_stuck = state.phase
    _step_job(state, "job.parked", changes)
    state.reason = data.error


@_on(job.JobUnparked)
def _job_unparked(state: JobState, event: Event, data: job.JobUnparked, changes: Changes) -> None:
    _step_job(state, "job.unparked", changes)
    state.before_stuck, state.reason = None, ""


@_on(policy.PolicyLoaded)
def _policy_loaded(state: JobState, event: Event, data: policy.PolicyLoaded, changes: Changes) -> None:
    state.chain, state.policy_source = data.chain, data.source


@_on(master.MasterElected)
def _master_elected(state: JobState, event: Event, data: master.MasterElected, changes: Changes) -> None:
    state.master = MasterState(host=data.host, pid=data.pid, address=data.address, version=data.version)


@_on(deadline.DeadlineExpired)
def _deadline_expired(state: JobState, event: Event, data: deadline.DeadlineExpired, changes: Changes) -> None:
    state.deadlines.pop(data.key, None)


def _progress(state: JobState, round_: int, step: int, absolute: bool) -> None:
    if round_ > state.step_round or state.step is None or step > state.step:
        state.step, state.step_round, state.step_absolute = step, round_, absolute
    state.reports_steps = True


# --- nodes and workers -----------------------------------------------------------------------------------------------


@_on(node.NodeJoined)
def _node_joined(state: JobState, event: Event, data: node.NodeJoined, changes: Changes) -> None:
    older = state.nodes.get(data.node)
    if older is not None and older.alive:
        if _in_world(state, older):
            _report(state, event, older.node, message="its agent came back in a new incarnation")
        _end_node(state, older, "node.joined/again", changes)
    ordinal = _place(state, data)
    state.ordinals[data.node] = ordinal
    state.nodes.pop(data.node, None)
    state.nodes[data.node] = NodeState(
        node=data.node,
        incarnation=data.incarnation,
        ordinal=ordinal,
        slots=data.slots,
        host=data.host,
        address=data.address,
        phase=NodePhase.STANDBY,
    )
    if state.spec is not None and state.phase is JobPhase.ASSEMBLING and "join" not in state.deadlines:
        spec = state.spec
        if usable(len(state.alive()), nodes_min=spec.nodes_min, nodes_max=spec.nodes_max, node_unit=spec.node_unit):
            state.deadlines["join"] = event.time + seconds(spec.timing.join_window_s)


def _place(state: JobState, data: node.NodeJoined) -> int:
    """The ordinal of a node that joins: what it asks for or had, if free, else the lowest free one."""
    taken = {other.ordinal for other in state.nodes.values() if other.alive and other.node != data.node}
    wanted = data.ordinal if data.ordinal is not None else state.ordinals.get(data.node)
    if wanted is not None and wanted not in taken:
        return wanted
    return next(place for place in range(len(taken) + 1) if place not in taken)


def _in_world(state: JobState, found: NodeState) -> bool:
    return state.world is not None and state.world.has(found.node, found.incarnation)


def _end_node(state: JobState, found: NodeState, trigger: str, changes: Changes) -> None:
    found.phase = _step(NODE, found.node, found.phase, trigger, changes)
    _step_workers(found, trigger, changes)
    for ordered in state.actions.values():
        if ordered.waiting.get(found.node) == found.incarnation:
            del ordered.waiting[found.node]
    for round_, host in list(state.store_nodes.items()):
        if host == found.node:
            del state.store_nodes[round_]
            state.stores.pop(round_, None)


@_on(node.NodeLeft)
def _node_left(state: JobState, event: Event, data: node.NodeLeft, changes: Changes) -> None:
    found = state.nodes.get(data.node)
    if found is not None and found.incarnation == data.incarnation:
        if found.alive and _in_world(state, found):
            _report(state, event, found.node, message=data.reason)
        _end_node(state, found, "node.left", changes)


@_on(node.NodeLost)
def _node_lost(state: JobState, event: Event, data: node.NodeLost, changes: Changes) -> None:
    found = state.nodes.get(data.node)
    if found is not None and found.incarnation == data.incarnation:
        if found.alive and state.world is not None and _in_world(state, found):
            _report(state, event, found.node, message=data.reason, step=data.step, absolute=data.absolute)
            if data.step is not None:
                _progress(state, state.world.round, data.step, data.absolute)
        _end_node(state, found, "node.lost", changes)


@_on(worker.WorkersStarted)
def _workers_started(state: JobState, event: Event, data: worker.WorkersStarted, changes: Changes) -> None:
    found = _reporter(state, data)
    if found is not None:
        found.phase = _step(NODE, found.node, found.phase, "workers.started", changes)
        _step_workers(found, "workers.started", changes)
        _answered(state, found.node, StartWorkers, round_=data.round)


@_on(worker.WorkersStepped)
def _workers_stepped(state: JobState, event: Event, data: worker.WorkersStepped, changes: Changes) -> None:
    found = _reporter(state, data)
    if found is not None and found.alive:
        found.stepped = data.step
        _progress(state, data.round, data.step, data.absolute)


@_on(worker.WorkerFailed)
def _worker_failed(state: JobState, event: Event, data: worker.WorkerFailed, changes: Changes) -> None:
    found = _reporter(state, data)
    if found is None:
        return
    _report(
        state,
        event,
        data.node,
        data.rank,
        round_=data.round,
        exitcode=data.exitcode,
        message=data.error.message if data.error is not None else "",
        tail=data.tail,
        step=data.step,
        absolute=data.absolute,
    )
    found.phase = _step(NODE, found.node, found.phase, "worker.failed", changes)
    if data.local_rank < len(found.workers):
        found.workers[data.local_rank] = _step(
            WORKER, f"{found.node}/{data.local_rank}", found.workers[data.local_rank], "worker.failed", changes
        )
    if data.step is not None:
        _progress(state, data.round, data.step, data.absolute)


@_on(worker.WorkersFinished)
def _workers_finished(state: JobState, event: Event, data: worker.WorkersFinished, changes: Changes) -> None:
    found = _reporter(state, data)
    if found is not None:
        found.phase = _step(NODE, found.node, found.phase, "workers.finished", changes)
        _step_workers(found, "workers.finished", changes)
        _answered(state, found.node, StartWorkers, round_=data.round)
        if data.step is not None:
            _progress(state, data.round, data.step, state.step_absolute)


@_on(worker.WorkersStopped)
def _workers_stopped(state: JobState, event: Event, data: worker.WorkersStopped, changes: Changes) -> None:
    found = _reporter(state, data)
    if found is not None:
        if not data.effect and _in_world(state, found):
            _report(state, event, found.node, round_=data.round, message=data.reason)
        found.phase = _step(NODE, found.node, found.phase, "workers.stopped", changes)
        _step_workers(found, "workers.stopped", changes)
        _answered(state, found.node, StartWorkers, StopWorkers, round_=data.round)


@_on(worker.WorkersUnstartable)
def _workers_unstartable(state: JobState, event: Event, data: worker.WorkersUnstartable, changes: Changes) -> None:
    found = _reporter(state, data)
    if found is not None:
        _report(state, event, found.node, round_=data.round, message=data.error)
        found.phase = _step(NODE, found.node, found.phase, "workers.unstartable", changes)
        _step_workers(found, "workers.unstartable", changes)
        _answered(state, found.node, StartWorkers, round_=data.round)


# --- worlds ----------------------------------------------------------------------------------------------------------


@_on(world.StoreOpened)
def _store_opened(state: JobState, event: Event, data: world.StoreOpened, changes: Changes) -> None:
    if state.current(data.node, data.incarnation) is not None:
        state.stores[data.round] = f"[{data.host}]:{data.port}" if ":" in data.host else f"{data.host}:{data.port}"
        _answered(state, data.node, OpenStore, round_=data.round)


@_on(world.StoreFailed)
def _store_failed(state: JobState, event: Event, data: world.StoreFailed, changes: Changes) -> None:
    if state.store_nodes.get(data.round) == data.node:
        _report(state, event, data.node, round_=data.round, message=data.error)
        state.stores.pop(data.round, None)
        state.store_nodes.pop(data.round, None)
    _answered(state, data.node, OpenStore, round_=data.round)


@_on(world.RoundPlanned)
def _round_planned(state: JobState, event: Event, data: world.RoundPlanned, changes: Changes) -> None:
    _step_job(state, "round.planned", changes)
    state.round = data.round
    state.deadlines.pop("join", None)
    state.plan = Plan(round=data.round, want=data.want)
    for name, after_s in (
        ("backoff", data.wait_s),
        ("window", data.wait_s + data.window_s if data.window_s else 0),
        ("return", data.wait_s + data.give_up_s if data.give_up_s else 0),
    ):
        if after_s > 0:
            state.deadlines[f"{name}/{data.round}"] = event.time + seconds(after_s)


@_on(world.WorldMembers)
def _world_members(state: JobState, event: Event, data: world.WorldMembers, changes: Changes) -> None:
    if state.world is None or state.world.round != data.round:
        state.world = WorldState(round=data.round, members=(), size=0, store="")
    state.world.members += data.members


@_on(world.WorldFormed)
def _world_formed(state: JobState, event: Event, data: world.WorldFormed, changes: Changes) -> None:
    _step_job(state, "world.formed", changes)
    assert state.world is not None and state.world.round == data.round
    state.world.size, state.world.store = data.size, data.store
    state.plan = None
    for name in ("backoff", "window", "return"):
        state.deadlines.pop(f"{name}/{data.round}", None)
    for older in [round_ for round_ in state.stores if round_ < data.round]:
        del state.stores[older]
    for older in [round_ for round_ in state.store_nodes if round_ < data.round]:
        del state.store_nodes[older]


@_on(world.RoundStarted)
def _round_started(state: JobState, event: Event, data: world.RoundStarted, changes: Changes) -> None:
    _step_job(state, "round.started", changes)
    if state.world is not None:
        state.world.started = True
    open_incident = _step_incident(state, "round.started", changes)
    if open_incident is not None and state.spec is not None:
        state.deadlines[f"settle/{data.round}"] = event.time + seconds(state.spec.timing.settle_s)
        if open_incident.deadline_s > 0:
            state.deadlines[f"outcome/{data.round}"] = event.time + seconds(open_incident.deadline_s)


# --- actions ---------------------------------------------------------------------------------------------------------


@_on(action.ActionOrdered)
def _action_ordered(state: JobState, event: Event, data: action.ActionOrdered, changes: Changes) -> None:
    state.orders += 1
    command = data.command
    names = data.nodes
    if not names and state.world is not None:
        names = tuple(member.node for member in state.world.members)
    waiting = {name: state.nodes[name].incarnation for name in names if name in state.nodes}
    state.actions[data.effect] = ActionState(effect=data.effect, command=command, waiting=waiting, ordered=event.time)
    if data.deadline_s is not None:
        state.deadlines[f"action/{data.effect}"] = event.time + seconds(data.deadline_s)
    if isinstance(command, OpenStore):
        state.store_nodes[command.round] = names[0]
        state.stores.pop(command.round, None)
    elif isinstance(command, StartWorkers | StopWorkers):
        trigger = "action.ordered/start_workers" if isinstance(command, StartWorkers) else "action.ordered/stop_workers"
        for name in waiting:
            _order_node(state.nodes[name], command, trigger, changes)


def _order_node(found: NodeState, command: StartWorkers | StopWorkers, trigger: str, changes: Changes) -> None:
    found.phase = _step(NODE, found.node, found.phase, trigger, changes)
    found.round = max(found.round, command.round)
    if isinstance(command, StartWorkers):
        found.workers = [WorkerPhase.STARTING] * found.slots
        found.stepped = None


@_on(action.ActionFailed)
def _action_failed(state: JobState, event: Event, data: action.ActionFailed, changes: Changes) -> None:
    ordered = state.actions.get(data.effect)
    if ordered is not None and not isinstance(ordered.command, ReleaseNode):
        for name in ordered.waiting:
            _report(state, event, name, round_=ordered.command.round, message=data.reason)
        if isinstance(ordered.command, OpenStore):
            state.store_nodes.pop(ordered.command.round, None)
    _action_closed(state, event, data, changes)


@_on(action.ActionDone)
@_on(action.ActionSuperseded)
def _action_closed(state: JobState, event: Event, data: Any, changes: Changes) -> None:
    state.actions.pop(data.effect, None)
    state.deadlines.pop(f"action/{data.effect}", None)


@_on(operator.OperatorCommanded)
def _operator_commanded(state: JobState, event: Event, data: operator.OperatorCommanded, changes: Changes) -> None:
    if data.command == "stop":
        state.stop = StopRequest(seq=event.seq, who=data.who, why=data.why, exit_code=data.exit_code)


# --- incidents -------------------------------------------------------------------------------------------------------


@_on(incident.IncidentOpened)
def _incident_opened(state: JobState, event: Event, data: incident.IncidentOpened, changes: Changes) -> None:
    _step_job(state, "incident.opened", changes)
    assert event.incident is not None
    state.incidents += 1
    state.incident = IncidentState(
        id=event.incident,
        kind=data.kind,
        phase=INCIDENT.initial,  # type: ignore[arg-type]
        fault=data.fault,
        revision=data.revision,
        opened=event.time,
        round=state.world.round if state.world is not None else 0,
        progress=state.step,
        absolute=state.step_absolute,
    )
    repeat = state.repeat
    repeat.before = (repeat.key, repeat.count)
    _count_repeat(state, data.fault)


def _count_repeat(state: JobState, fault: incident.Fault) -> None:
    repeat = state.repeat
    repeat.key = fault_key(fault)
    repeat.count = repeat.before[1] + 1 if is_same(repeat.key, repeat.before[0]) else 1


@_on(incident.IncidentRediagnosed)
def _incident_rediagnosed(state: JobState, event: Event, data: incident.IncidentRediagnosed, changes: Changes) -> None:
    open_incident = state.incident
    if open_incident is None:
        return
    if data.revision == open_incident.revision:
        _step_incident(state, "incident.rediagnosed/detail", changes)
    else:
        _step_incident(state, "incident.rediagnosed/worse", changes)
        _step_job(state, "incident.rediagnosed", changes)
        if _was_tried(state, open_incident):
            state.repeat.before = (state.repeat.key, state.repeat.count)
        else:
            _take_back(state, open_incident)
        if state.reports and state.reports[-1].round > open_incident.round:
            state.repeat.before = (state.repeat.key, state.repeat.count)  # the new round's fault is the next in the row
        open_incident.kind = data.kind
        if state.world is not None:
            open_incident.round = state.world.round
        open_incident.asked, open_incident.taken, open_incident.plan = [], "", ""
        _forget_outcome(state)
    open_incident.fault, open_incident.revision = data.fault, data.revision
    _count_repeat(state, data.fault)


def _was_tried(state: JobState, open_incident: IncidentState) -> bool:
    """Whether the plan in force got as far as a new round, or failed on the way to it."""
    newest = state.reports[-1] if state.reports else None
    return newest is None or newest.round > open_incident.round or newest.type == "action.failed"


def _take_back(state: JobState, open_incident: IncidentState) -> None:
    """A plan that a better reading replaces before it was tried costs neither budget nor back-off."""
    if open_incident.plan == "restart":
        state.attempts[open_incident.taken].pop()
        state.streak -= 1


def _forget_outcome(state: JobState) -> None:
    for key in [key for key in state.deadlines if key.startswith(_ROUND_DEADLINES)]:
        del state.deadlines[key]
    state.plan = None


@_on(incident.IncidentEscalated)
def _incident_escalated(state: JobState, event: Event, data: incident.IncidentEscalated, changes: Changes) -> None:
    open_incident = _step_incident(state, "incident.escalated", changes)
    _step_job(state, "incident.escalated", changes)
    if open_incident is not None:
        open_incident.tried.append(data.policy)
        open_incident.taken, open_incident.plan = "", ""
        _forget_outcome(state)


@_on(incident.IncidentResolved)
def _incident_resolved(state: JobState, event: Event, data: incident.IncidentResolved, changes: Changes) -> None:
    _step_incident(state, "incident.resolved", changes)
    _step_job(state, "incident.resolved", changes)
    _forget_outcome(state)
    state.incident = None
    state.reports = []
    state.streak = 0
    if data.outcome in ("stepped", "settled", "finished") and state.repeat.key.endswith("@None"):
        state.repeat = Repeat()  # it failed before its first step; now it has made one


@_on(incident.IncidentExhausted)
def _incident_exhausted(state: JobState, event: Event, data: incident.IncidentExhausted, changes: Changes) -> None:
    _step_incident(state, "incident.exhausted", changes)
    _step_job(state, "incident.exhausted", changes)
    _forget_outcome(state)
    state.incident = None
    state.reports = []


@_on(policy.PolicyConsidered)
def _policy_considered(state: JobState, event: Event, data: policy.PolicyConsidered, changes: Changes) -> None:
    open_incident = _step_incident(state, f"policy.considered/{data.verdict}", changes)
    if open_incident is None:
        return
    open_incident.asked.append(data.policy)
    if data.verdict != "take":
        return
    open_incident.taken, open_incident.plan, open_incident.reason = data.policy, data.plan, data.reason
    open_incident.grace_s, open_incident.wait_s = data.grace_s, data.wait_s
    open_incident.deadline_s = data.deadline_s
    open_incident.outcome, open_incident.exit_code = data.outcome, data.exit_code
    times = state.attempts.setdefault(data.policy, [])
    times.append(event.time)
    del times[:-ATTEMPTS_MAX]
    if data.plan == "restart":
        state.streak += 1

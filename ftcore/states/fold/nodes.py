"""Handlers of events of nodes and of their workers."""

from ftcore.commands import (
    PLATFORM,
    CheckHealth,
    ParkWorkers,
    PauseWorkers,
    ResumeWorkers,
    RetryStep,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
    tag_of,
)
from ftcore.events import node, worker
from ftcore.events.envelope import Event
from ftcore.events.node import LOST
from ftcore.events.worker import ADVISORY, CURVES, LASTING_NAN
from ftcore.states.fold.base import (
    Changes,
    answered,
    answering,
    await_others,
    given_up,
    not_launched,
    on,
    progress,
    report,
    reporter,
    retire,
    step,
    step_node,
    step_workers,
)
from ftcore.states.fold.health import read
from ftcore.states.health import Reading, wanted
from ftcore.states.job import JobPhase
from ftcore.states.model import (
    HITS_MAX,
    JobState,
    NanState,
    NodeState,
    Report,
    Standstill,
)
from ftcore.states.node import NodePhase
from ftcore.states.phases import is_assembling, is_deferred, is_stuck, is_up
from ftcore.states.revisions import RUN_ANEW, follows
from ftcore.states.worker import WORKER

_HELD_UP = (ParkWorkers, PauseWorkers, ResumeWorkers)
"""Orders about workers that go on: moot for those that are done."""

_ROUND_ORDERS = (StartWorkers, StopWorkers, ParkWorkers, PauseWorkers, ResumeWorkers, RetryStep, SaveCheckpoint)
"""Orders that are answered when a node's workers of their round are stopped."""


@on(node.NodeJoined)
def _node_joined(state: JobState, event: Event, data: node.NodeJoined, changes: Changes) -> None:
    older = state.nodes.get(data.node)
    if older is not None and older.alive:
        if _in_world(state, older):
            report(state, event, older.node, message="its agent came back in a new incarnation")
        _end_node(state, older, "node.joined/again", changes)
    ordinal = _place(state, data)
    state.ordinals[data.node] = ordinal
    state.places[ordinal] = data.node
    state.places_end = max(state.places_end, ordinal + 1)
    gone = state.nodes.pop(data.node, None)
    if gone is not None:
        state.phases[gone.phase] -= 1
    state.phases[NodePhase.STANDBY] = state.phases.get(NodePhase.STANDBY, 0) + 1
    state.nodes[data.node] = NodeState(
        node=data.node,
        incarnation=data.incarnation,
        ordinal=ordinal,
        slots=data.slots,
        host=data.host,
        address=data.address,
        pid=data.pid,
        phase=NodePhase.STANDBY,
        labels=data.labels,
        settled=ordinal == data.ordinal or (gone is not None and gone.settled and ordinal == gone.ordinal),
        accelerators=data.accelerators,
        checks=data.checks,
        again=gone is not None and (gone.again or (gone.host, gone.pid) != (data.host, data.pid)),
        role=data.role,
    )
    _await_check(state, state.nodes[data.node])
    state.cold.pop(data.node, None)
    if data.node in state.quarantined:
        step_node(state, state.nodes[data.node], "node.quarantined", changes)
        state.unchecked.pop(data.node, None)
    elif data.warms:
        state.cold[data.node] = data.incarnation
    state.offered = 0
    stuck = is_stuck(state) and state.before_stuck is JobPhase.ASSEMBLING and follows(state, RUN_ANEW)
    if stuck or is_assembling(state):
        await_others(state, event)


@on(node.NodeWarmed)
def _node_warmed(state: JobState, event: Event, data: node.NodeWarmed, changes: Changes) -> None:
    if state.cold.get(data.node) == data.incarnation:
        del state.cold[data.node]


def _await_check(state: JobState, found: NodeState) -> None:
    state.unchecked.pop(found.node, None)
    if found.checks and wanted(state.declared.health, found.accelerators):
        state.abilities.setdefault("agents", ("check",))
        state.unchecked[found.node] = found.incarnation


def _place(state: JobState, data: node.NodeJoined) -> int:
    """The ordinal of a node that joins: what it asks for or had, if free, else the lowest free one."""
    wanted = data.ordinal if data.ordinal is not None else state.ordinals.get(data.node)
    if data.node in state.quarantined:
        return state.places_end  # it only passes by, and takes nobody's place
    if wanted is not None and wanted not in state.places:
        return wanted
    return state.free_place()


def _in_world(state: JobState, found: NodeState) -> bool:
    return state.world is not None and state.world.has(found.node, found.incarnation)


def _end_node(state: JobState, found: NodeState, trigger: str, changes: Changes) -> None:
    alive = found.alive
    step_node(state, found, trigger, changes)
    if alive and not found.alive:
        state.vacate(found.ordinal)
        state.unchecked.pop(found.node, None)
        state.cold.pop(found.node, None)
    step_workers(found, trigger, changes)
    for ordered in state.actions.values():
        if ordered.waiting.get(found.node) == found.incarnation:
            del ordered.waiting[found.node]
    for round_, host in list(state.store_nodes.items()):
        if host == found.node:
            del state.store_nodes[round_]
            state.stores.pop(round_, None)


@on(node.NodeLeft)
def _node_left(state: JobState, event: Event, data: node.NodeLeft, changes: Changes) -> None:
    found = state.nodes.get(data.node)
    if found is not None and found.incarnation == data.incarnation:
        if found.alive and _in_world(state, found) and not given_up(state, found):
            report(state, event, found.node, message=data.reason, kind=LOST if data.lost else "")
        _end_node(state, found, "node.left", changes)


@on(node.NodeGaveUp)
def _node_gave_up(state: JobState, event: Event, data: node.NodeGaveUp, changes: Changes) -> None:
    """Changes nothing: the end that is decided because of it does, and the node says goodbye after it."""


@on(node.NodeLost)
def _node_lost(state: JobState, event: Event, data: node.NodeLost, changes: Changes) -> None:
    found = state.nodes.get(data.node)
    if found is not None and found.incarnation == data.incarnation:
        if found.alive and state.world is not None and _in_world(state, found):
            if not given_up(state, found):
                report(state, event, found.node, message=data.reason, step=data.step, absolute=data.absolute)
            if data.step is not None:
                progress(state, state.world.round, data.step, data.absolute)
        _end_node(state, found, "node.lost", changes)


@on(worker.WorkersStarted)
def _workers_started(state: JobState, event: Event, data: worker.WorkersStarted, changes: Changes) -> None:
    found = reporter(state, data)
    if found is not None:
        step_node(state, found, "workers.started", changes)
        step_workers(found, "workers.started", changes)
        answered(state, found.node, StartWorkers, round_=data.round)


@on(worker.WorkersStepped)
def _workers_stepped(state: JobState, event: Event, data: worker.WorkersStepped, changes: Changes) -> None:
    found = reporter(state, data)
    if found is not None and found.alive:
        if found.stepped is None and state.world is not None and state.world.round == data.round:
            state.world.stepped += 1
        found.stepped = data.step
        progress(state, data.round, data.step, data.absolute)


@on(worker.WorkerFailed)
def _worker_failed(state: JobState, event: Event, data: worker.WorkerFailed, changes: Changes) -> None:
    found = reporter(state, data)
    if found is None:
        return
    report(
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
    step_node(state, found, "worker.failed", changes)
    if data.local_rank < len(found.workers):
        found.workers[data.local_rank] = step(
            WORKER, f"{found.node}/{data.local_rank}", found.workers[data.local_rank], "worker.failed", changes
        )
    if data.step is not None:
        progress(state, data.round, data.step, data.absolute)


@on(worker.WorkersFinished)
def _workers_finished(state: JobState, event: Event, data: worker.WorkersFinished, changes: Changes) -> None:
    found = reporter(state, data)
    if found is not None:
        step_node(state, found, "workers.finished", changes)
        step_workers(found, "workers.finished", changes)
        answered(state, found.node, StartWorkers, *_HELD_UP, round_=data.round)
        if data.step is not None:
            progress(state, data.round, data.step, state.step_absolute)


@on(worker.WorkersStopped)
def _workers_stopped(state: JobState, event: Event, data: worker.WorkersStopped, changes: Changes) -> None:
    found = reporter(state, data)
    if found is not None:
        if not data.effect and _in_world(state, found):
            report(state, event, found.node, round_=data.round, message=data.reason)
        step_node(state, found, "workers.stopped", changes)
        step_workers(found, "workers.stopped", changes)
        answered(state, found.node, *_ROUND_ORDERS, round_=data.round)


@on(worker.WorkersUnstartable)
def _workers_unstartable(state: JobState, event: Event, data: worker.WorkersUnstartable, changes: Changes) -> None:
    found = reporter(state, data)
    if found is not None:
        report(state, event, found.node, round_=data.round, message=data.error)
        step_node(state, found, "workers.unstartable", changes)
        step_workers(found, "workers.unstartable", changes)
        answered(state, found.node, StartWorkers, round_=data.round)


@on(worker.FaultObserved)
def _fault_observed(state: JobState, event: Event, data: worker.FaultObserved, changes: Changes) -> None:
    found = reporter(state, data)
    if found is None or not _in_world(state, found):
        return
    if data.kind == LASTING_NAN:
        if state.nan is None or state.nan.round < data.round:
            state.nan = NanState(seq=event.seq, round=data.round, since=int(data.values["since"]))
        return
    if data.kind in ADVISORY and not _is_calm(state, data.node):
        return
    if data.kind in CURVES:
        known = state.curves.get(data.kind)
        if known is not None and known[:2] == (data.round, data.step) and known[2] != data.node:
            return  # another node told the same of the same step: one incident is enough for all ranks
        state.curves[data.kind] = (data.round, data.step, data.node)
    report(
        state,
        event,
        data.node,
        data.rank,
        round_=data.round,
        message=data.message,
        step=data.step,
        absolute=data.absolute,
        source=data.source,
        kind=data.kind,
        values=data.values,
    )
    if data.step is not None:
        progress(state, data.round, data.step, data.absolute)


@on(worker.WorkersStood)
def _workers_stood(state: JobState, event: Event, data: worker.WorkersStood, changes: Changes) -> None:
    """Changes nothing: what it is taken for does."""


@on(worker.WorkersWentOn)
def _workers_went_on(state: JobState, event: Event, data: worker.WorkersWentOn, changes: Changes) -> None:
    state.longest_gap_s = max(state.longest_gap_s, data.gap_s)
    if state.standstill is not None and state.standstill.round == data.round:
        state.standstill = None


@on(worker.StandstillJudged)
def _standstill_judged(state: JobState, event: Event, data: worker.StandstillJudged, changes: Changes) -> None:
    if data.verdict != "hang":
        since = state.standstill.since if state.standstill is not None else event.time
        state.standstill = Standstill(
            round=data.round, since=since, cause=data.cause, message=data.message, stacks=data.stacks
        )
        return
    state.standstill = None
    state.ceilings += data.cause == "ceiling"
    for name in data.apart or (data.node,):
        report(
            state,
            event,
            name,
            data.ranks[0] if data.ranks else -1,
            round_=data.round,
            message=data.message,
            step=state.step,
            absolute=state.step_absolute,
            source="detector",
            kind=data.cause,
        )


def _is_calm(state: JobState, name: str) -> bool:
    """Whether a warning of a node is worth to be kept: beside a fault it says nothing, nor of a node about to leave."""
    known = state.incident
    if known is not None and is_deferred(known):
        return name not in known.terms.exclude
    if known is not None:
        return known.kind == "warning"
    return is_up(state)


@on(worker.LogMatched)
def _log_matched(state: JobState, event: Event, data: worker.LogMatched, changes: Changes) -> None:
    if reporter(state, data) is None:
        return
    state.hits.append(
        Report(
            seq=event.seq,
            type=event.type,
            node=data.node,
            rank=data.rank,
            round=data.round,
            time=event.time,
            mono=event.at.mono if event.at is not None else 0,
            boot=event.at.boot if event.at is not None else "",
            exitcode=None,
            message=data.line,
            tail="",
            step=None,
            absolute=False,
            source="log",
            kind=data.cls,
        )
    )
    del state.hits[:-HITS_MAX]


@on(node.NodeQuarantined)
def _node_quarantined(state: JobState, event: Event, data: node.NodeQuarantined, changes: Changes) -> None:
    state.quarantined[data.node] = data.reason
    if data.node in state.admitted:
        state.admitted.remove(data.node)
    found = state.nodes.get(data.node)
    if found is not None:
        step_node(state, found, "node.quarantined", changes)
        retire(state, found)


@on(node.OrderObeyed)
def _order_obeyed(state: JobState, event: Event, data: node.OrderObeyed, changes: Changes) -> None:
    answer = answering(state, data)
    if answer is None:
        return
    found, ordered = answer
    del ordered.waiting[found.node]
    if getattr(ordered.command, "round", found.round) < found.round:
        return  # it was about workers that are gone
    trigger = f"order.obeyed/{tag_of(ordered.command)}"
    step_node(state, found, trigger, changes)
    if isinstance(ordered.command, ParkWorkers):
        step_workers(found, trigger, changes)
    if data.step is not None:
        progress(state, data.round, data.step, state.step_absolute)


@on(node.OrderRefused)
def _order_refused(state: JobState, event: Event, data: node.OrderRefused, changes: Changes) -> None:
    answer = answering(state, data)
    if answer is None:
        return
    found, ordered = answer
    del ordered.waiting[found.node]
    if isinstance(ordered.command, CheckHealth):
        step_node(state, found, "order.refused/check_health", changes)
        read(state, ordered, found.node, Reading(verdict="unavailable", detail=data.reason))
        return
    step_node(state, found, "order.refused", changes)
    if state.incident is not None and state.incident.effect == data.effect:
        state.incident.refused = state.incident.refused or f"{data.node}: {data.reason}"
    elif isinstance(ordered.command, ResumeWorkers):
        report(state, event, found.node, round_=data.round, message=data.reason)


@on(node.PlatformAnswered)
def _platform_answered(state: JobState, event: Event, data: node.PlatformAnswered, changes: Changes) -> None:
    ordered = state.actions.get(data.effect)
    if ordered is None or ordered.waiting.pop(PLATFORM, None) is None:
        return
    if data.ok:
        return
    not_launched(state, data.effect)
    if state.incident is not None and state.incident.effect == data.effect:
        state.incident.refused = f"the platform declined: {data.reason}"

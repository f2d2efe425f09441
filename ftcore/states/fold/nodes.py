"""Handlers of nodes and their workers."""

from ftcore.commands import (
    IN_PLACE,
    OF_KEEPER,
    PLATFORM,
    CheckHealth,
    CommitCheckpoint,
    FindBoundary,
    PaceSaves,
    ParkWorkers,
    PauseWorkers,
    ResumeWorkers,
    StartWorkers,
    StopWorkers,
    tag_of,
)
from ftcore.events import node, worker
from ftcore.events.envelope import Event
from ftcore.events.node import LOST
from ftcore.events.worker import ADVISORY, AGREED, CURVES, LASTING_NAN, MAINTENANCE
from ftcore.states.evidence import HITS_MAX, Report
from ftcore.states.fold import disruptions
from ftcore.states.fold.base import (
    WORKERS,
    Changes,
    answered,
    answering,
    await_others,
    declare_abilities,
    given_up,
    not_launched,
    on,
    order_of_plan,
    progress,
    report,
    reporter,
    retire,
    step,
    step_node,
    step_workers,
)
from ftcore.states.fold.checkpoints import not_committed
from ftcore.states.fold.health import read
from ftcore.states.health import StageFinding, wanted
from ftcore.states.job import JobPhase
from ftcore.states.membership import NodeState
from ftcore.states.model import JobState
from ftcore.states.node import NodePhase
from ftcore.states.norms import NORM, note_norm, stops_step
from ftcore.states.phases import is_assembling, is_deferred, is_up
from ftcore.states.revisions import RANKS_AGREE, RUN_ANEW, follows
from ftcore.states.rounds import WorldState
from ftcore.states.spikes import note_spike
from ftcore.states.training import NanState, NodeMemory, Standstill
from ftcore.states.worker import WORKER

_UNTIL_FINISHED = (FindBoundary, ParkWorkers, PauseWorkers, ResumeWorkers, PaceSaves)
"""Orders that need no answer from a node whose workers have finished."""

_ROUND_ORDERS = (StartWorkers, StopWorkers, ParkWorkers, PaceSaves, *IN_PLACE)
"""Orders that count as answered once the node's workers of their round are stopped."""


@on(node.NodeJoined)
def _node_joined(state: JobState, event: Event, data: node.NodeJoined, changes: Changes) -> None:
    membership = state.membership
    older = membership.nodes.get(data.node)
    if older is not None and older.alive:
        if _in_world(state, older):
            report(state, event, older.node, message="its agent came back in a new incarnation")
        _end_node(state, event, older, "node.joined/again", changes)
    ordinal = _place(state, data)
    membership.ordinals[data.node] = ordinal
    membership.places[ordinal] = data.node
    membership.places_end = max(membership.places_end, ordinal + 1)
    previous = membership.nodes.pop(data.node, None)
    if previous is not None:
        membership.phases[previous.phase] -= 1
    membership.phases[NodePhase.STANDBY] = membership.phases.get(NodePhase.STANDBY, 0) + 1
    membership.nodes[data.node] = NodeState(
        node=data.node,
        incarnation=data.incarnation,
        ordinal=ordinal,
        slots=data.slots,
        host=data.host,
        address=data.address,
        pid=data.pid,
        phase=NodePhase.STANDBY,
        labels=data.labels,
        settled=ordinal == data.ordinal or (previous is not None and previous.settled and ordinal == previous.ordinal),
        accelerators=data.accelerators,
        copies_port=data.copies_port,
        checks=data.checks,
        again=previous is not None and (previous.again or (previous.host, previous.pid) != (data.host, data.pid)),
        role=data.role,
    )
    if data.shards and data.log == state.log.identity:
        state.training.saved.memory[data.node] = NodeMemory(incarnation=data.incarnation, shards=data.shards)
    _await_check(state, membership.nodes[data.node])
    membership.cold.pop(data.node, None)
    if data.node in membership.quarantined:
        step_node(state, membership.nodes[data.node], "node.quarantined", changes)
        membership.unchecked.pop(data.node, None)
    elif data.warms:
        membership.cold[data.node] = data.incarnation
    state.history.offered = 0
    stuck = state.stuck is not None and state.stuck.before is JobPhase.ASSEMBLING and follows(state, RUN_ANEW)
    if stuck or is_assembling(state):
        await_others(state, event)


@on(node.NodeWarmed)
def _node_warmed(state: JobState, event: Event, data: node.NodeWarmed, changes: Changes) -> None:
    if state.membership.cold.get(data.node) == data.incarnation:
        del state.membership.cold[data.node]


def _await_check(state: JobState, found: NodeState) -> None:
    state.membership.unchecked.pop(found.node, None)
    if found.checks and wanted(state.policy.declared.health, found.accelerators):
        state.abilities.declared.setdefault("agents", ("check",))
        state.membership.unchecked[found.node] = found.incarnation


def _place(state: JobState, data: node.NodeJoined) -> int:
    """The ordinal of a node that joins: the requested or previous one if free, else the lowest free one."""
    membership = state.membership
    wanted = data.ordinal if data.ordinal is not None else membership.ordinals.get(data.node)
    if data.node in membership.quarantined:
        return membership.places_end  # a quarantined node takes no place from others
    if wanted is not None and wanted not in membership.places:
        return wanted
    return membership.free_place()


def _in_world(state: JobState, found: NodeState) -> bool:
    return state.rounds.world is not None and state.rounds.world.has(found.node, found.incarnation)


def _end_node(state: JobState, event: Event, found: NodeState, trigger: str, changes: Changes) -> None:
    membership, rounds = state.membership, state.rounds
    alive = found.alive
    step_node(state, found, trigger, changes)
    if alive and not found.alive:
        membership.vacate(found.ordinal)
        membership.unchecked.pop(found.node, None)
        membership.cold.pop(found.node, None)
        disruptions.end(state, event, MAINTENANCE, found.node, trigger, changes)
        disruptions.written(state, event, trigger, changes, found.node)
    step_workers(found, trigger, changes)
    for ordered in state.orders.open.values():
        if ordered.waiting.get(found.node) == found.incarnation:
            del ordered.waiting[found.node]
    for round_, host in list(rounds.store_nodes.items()):
        if host == found.node:
            del rounds.store_nodes[round_]
            rounds.stores.pop(round_, None)


@on(node.NodeLeft)
def _node_left(state: JobState, event: Event, data: node.NodeLeft, changes: Changes) -> None:
    found = state.membership.nodes.get(data.node)
    if found is not None and found.incarnation == data.incarnation:
        if found.alive and _in_world(state, found) and not given_up(state, found):
            report(state, event, found.node, message=data.reason, kind=LOST if data.lost else "")
        _end_node(state, event, found, "node.left", changes)


@on(node.NodeGaveUp)
def _node_gave_up(state: JobState, event: Event, data: node.NodeGaveUp, changes: Changes) -> None:
    """No change: the decision to end the job follows, then the node leaves."""


@on(node.NodeLost)
def _node_lost(state: JobState, event: Event, data: node.NodeLost, changes: Changes) -> None:
    found = state.membership.nodes.get(data.node)
    if found is not None and found.incarnation == data.incarnation:
        if found.alive and state.rounds.world is not None and _in_world(state, found):
            if not given_up(state, found):
                report(state, event, found.node, message=data.reason, step=data.step, absolute=data.absolute)
            if data.step is not None:
                progress(state, state.rounds.world.round, data.step, data.absolute)
        _end_node(state, event, found, "node.lost", changes)


@on(worker.WorkersStarted)
def _workers_started(state: JobState, event: Event, data: worker.WorkersStarted, changes: Changes) -> None:
    found = reporter(state, data)
    if found is not None:
        step_node(state, found, "workers.started", changes)
        step_workers(found, "workers.started", changes)
        answered(state, found.node, StartWorkers, round_=data.round)


@on(worker.WorkersStepped)
def _workers_stepped(state: JobState, event: Event, data: worker.WorkersStepped, changes: Changes) -> None:
    rounds = state.rounds
    found = reporter(state, data)
    if found is not None and found.alive:
        if found.stepped is None and rounds.world is not None and rounds.world.round == data.round:
            rounds.world.stepped += 1
            _count_abilities(state, data.abilities, rounds.world)
        found.stepped = data.step
        state.training.saved.load = None
        progress(state, data.round, data.step, data.absolute)


def _count_abilities(state: JobState, abilities: tuple[str, ...], world: WorldState) -> None:
    """Declare what the workers of all nodes can do, once each has completed a step of this world."""
    found = state.abilities
    if world.stepped == 1:
        found.stepped = {}
    for name in abilities:
        found.stepped[name] = found.stepped.get(name, 0) + 1
    if world.stepped == len(world.members):
        common = tuple(sorted(name for name, count in found.stepped.items() if count == world.stepped))
        if common != found.declared.get(WORKERS, ()):
            declare_abilities(found, WORKERS, common)


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
        answered(state, found.node, StartWorkers, *_UNTIL_FINISHED, round_=data.round)
        if data.step is not None:
            progress(state, data.round, data.step, state.training.step_absolute)


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
    if data.kind == MAINTENANCE and state.membership.current(data.node, data.incarnation) is not None:
        disruptions.begin(state, event, data.kind, data.node, data.message)
        return
    found = reporter(state, data)
    if found is None or not _in_world(state, found):
        return
    if data.kind == LASTING_NAN:
        if state.training.nan is None or state.training.nan.round < data.round:
            state.training.nan = NanState(seq=event.seq, round=data.round, since=int(data.values["since"]))
        return
    if data.kind == NORM and note_norm(state, data):
        return  # the step was computed again, and is accepted
    if data.kind in ADVISORY and not stops_step(state, data.kind, data.source) and not _keeps_warning(state, data.node):
        return
    if data.kind in AGREED and follows(state, RANKS_AGREE) and not note_spike(state, data):
        return
    if data.kind in CURVES:
        known = state.training.curves.get(data.kind)
        if known is not None and known[:2] == (data.round, data.step) and known[2] != data.node:
            return  # already reported for this step by another node: one incident for all ranks
        state.training.curves[data.kind] = (data.round, data.step, data.node)
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
    """No change: the judgement of the standstill follows."""


@on(worker.WorkersWentOn)
def _workers_went_on(state: JobState, event: Event, data: worker.WorkersWentOn, changes: Changes) -> None:
    state.training.longest_gap_s = max(state.training.longest_gap_s, data.gap_s)
    if state.training.standstill is not None and state.training.standstill.round == data.round:
        state.training.standstill = None


@on(worker.StandstillJudged)
def _standstill_judged(state: JobState, event: Event, data: worker.StandstillJudged, changes: Changes) -> None:
    training = state.training
    if data.verdict != "hang":
        since = training.standstill.since if training.standstill is not None else event.time
        training.standstill = Standstill(
            round=data.round, since=since, cause=data.cause, message=data.message, stacks=data.stacks
        )
        return
    training.standstill = None
    training.ceilings += data.cause == "ceiling"
    for name in data.apart or (data.node,):
        report(
            state,
            event,
            name,
            data.ranks[0] if data.ranks else -1,
            round_=data.round,
            message=data.message,
            step=training.step,
            absolute=training.step_absolute,
            source="detector",
            kind=data.cause,
        )


def _keeps_warning(state: JobState, name: str) -> bool:
    """Whether to keep a warning of a node: not during a fault, nor from a node that is about to leave."""
    known = state.incident
    if known is not None and is_deferred(known):
        return known.plan is None or name not in known.plan.terms.exclude
    if known is not None:
        return known.kind == "warning"
    return is_up(state)


@on(worker.LogMatched)
def _log_matched(state: JobState, event: Event, data: worker.LogMatched, changes: Changes) -> None:
    if reporter(state, data) is None:
        return
    state.evidence.hits.append(
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
    del state.evidence.hits[:-HITS_MAX]


@on(node.NodeQuarantined)
def _node_quarantined(state: JobState, event: Event, data: node.NodeQuarantined, changes: Changes) -> None:
    membership = state.membership
    membership.quarantined[data.node] = data.reason
    if data.node in membership.admitted:
        membership.admitted.remove(data.node)
    found = membership.nodes.get(data.node)
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
    of_plan = order_of_plan(state, data.effect)
    if of_plan is not None and of_plan.persists and data.step is not None:
        of_plan.saved_step = max(of_plan.saved_step or 0, data.step)
    if isinstance(ordered.command, OF_KEEPER):
        return  # it is about no worker
    if getattr(ordered.command, "round", found.round) < found.round:
        return  # the order was about workers of an older round
    if isinstance(ordered.command, FindBoundary) and of_plan is not None:
        of_plan.boundary = max(of_plan.boundary, data.boundary)
    trigger = f"order.obeyed/{tag_of(ordered.command)}"
    step_node(state, found, trigger, changes)
    if isinstance(ordered.command, ParkWorkers):
        step_workers(found, trigger, changes)
    if data.step is not None:
        progress(state, data.round, data.step, state.training.step_absolute)


@on(node.OrderRefused)
def _order_refused(state: JobState, event: Event, data: node.OrderRefused, changes: Changes) -> None:
    answer = answering(state, data)
    if answer is None:
        return
    found, ordered = answer
    del ordered.waiting[found.node]
    if isinstance(ordered.command, CheckHealth):
        step_node(state, found, "order.refused/check_health", changes)
        read(state, ordered, found.node, StageFinding(verdict="unavailable", detail=data.reason))
        return
    step_node(state, found, "order.refused", changes)
    if isinstance(ordered.command, CommitCheckpoint):
        not_committed(state, event, ordered.command)
    of_plan = order_of_plan(state, data.effect)
    if of_plan is not None:
        of_plan.refused = of_plan.refused or f"{data.node}: {data.reason}"
    if isinstance(ordered.command, ResumeWorkers) and (of_plan is None or disruptions.is_about_disruption(state)):
        report(state, event, found.node, round_=data.round, message=data.reason)


@on(node.PlatformAnswered)
def _platform_answered(state: JobState, event: Event, data: node.PlatformAnswered, changes: Changes) -> None:
    ordered = state.orders.open.get(data.effect)
    if ordered is None or ordered.waiting.pop(PLATFORM, None) is None:
        return
    if data.ok:
        return
    not_launched(state, data.effect)
    of_plan = order_of_plan(state, data.effect)
    if of_plan is not None:
        of_plan.refused = f"the platform declined: {data.reason}"

"""Handlers of events of worlds and their stores, and of orders and their results."""

from collections.abc import Sequence
from typing import Any

from ftcore.commands import (
    ADVISER,
    IN_PLACE,
    PLATFORM,
    AskPolicy,
    CheckHealth,
    DeleteNodes,
    OpenStore,
    ReleaseNode,
    ReplaceNodes,
    ResumeWorkers,
    StartWorkers,
    StopWorkers,
)
from ftcore.events import action, world
from ftcore.events.envelope import Event
from ftcore.states import timers
from ftcore.states.fold import health
from ftcore.states.fold.base import (
    Changes,
    advised_nothing,
    answered,
    not_launched,
    on,
    report,
    retire,
    step_incident,
    step_job,
    step_node,
)
from ftcore.states.model import (
    ActionState,
    JobState,
    NodeState,
    Plan,
    WorldState,
)
from ftcore.states.phases import has_ended
from ftcore.states.worker import WorkerPhase

PLANS_OWN = (*IN_PLACE, ReplaceNodes)
"""Orders whose failure is a failure of the plan, not a fault of a node."""

_NODES_OWN = (StartWorkers, StopWorkers, OpenStore, ResumeWorkers)
"""Orders that a node in its right mind answers in time; parking is tried, and stopping follows."""


@on(world.StoreOpened)
def _store_opened(state: JobState, event: Event, data: world.StoreOpened, changes: Changes) -> None:
    # One that was asked first and answers late, when another was asked in its place, would be dialled for nothing.
    if state.current(data.node, data.incarnation) is not None and state.store_nodes.get(data.round) == data.node:
        state.stores[data.round] = f"[{data.host}]:{data.port}" if ":" in data.host else f"{data.host}:{data.port}"
    if state.current(data.node, data.incarnation) is not None:
        answered(state, data.node, OpenStore, round_=data.round)


@on(world.StoreFailed)
def _store_failed(state: JobState, event: Event, data: world.StoreFailed, changes: Changes) -> None:
    if state.store_nodes.get(data.round) == data.node:
        report(state, event, data.node, round_=data.round, message=data.error)
        state.stores.pop(data.round, None)
        state.store_nodes.pop(data.round, None)
    answered(state, data.node, OpenStore, round_=data.round)


@on(world.RoundPlanned)
def _round_planned(state: JobState, event: Event, data: world.RoundPlanned, changes: Changes) -> None:
    step_job(state, "round.planned", changes)
    state.round = data.round
    timers.cancel(state, timers.Join())
    state.plan = Plan(round=data.round, want=data.want)
    for timer, after_s in (
        (timers.Backoff(data.round), data.wait_s),
        (timers.Window(data.round), data.wait_s + data.window_s if data.window_s else 0),
        (timers.Return(data.round), data.wait_s + data.give_up_s if data.give_up_s else 0),
    ):
        if after_s > 0:
            timers.start(state, timer, event.time, after_s)


@on(world.WorldMembers)
def _world_members(state: JobState, event: Event, data: world.WorldMembers, changes: Changes) -> None:
    if state.world is None or state.world.round != data.round:
        state.world = WorldState(round=data.round, members=(), size=0, store="")
    state.world.members += data.members
    for member in data.members:
        _seat(state, member)


def _seat(state: JobState, member: world.Member) -> None:
    """A member has the place that it trains at; whoever holds that by now gets the member's own."""
    found = state.nodes[member.node]
    found.settled = True
    if member.node in state.admitted:
        state.admitted.remove(member.node)
    if found.ordinal == member.ordinal:
        return
    state.vacate(found.ordinal)
    other = state.places.get(member.ordinal)
    if other is not None:
        _move(state, state.nodes[other], found.ordinal)
    _move(state, found, member.ordinal)


def _move(state: JobState, found: NodeState, ordinal: int) -> None:
    found.ordinal = state.ordinals[found.node] = ordinal
    state.places[ordinal] = found.node


@on(world.WorldFormed)
def _world_formed(state: JobState, event: Event, data: world.WorldFormed, changes: Changes) -> None:
    step_job(state, "world.formed", changes)
    assert state.world is not None and state.world.round == data.round
    state.world.size, state.world.store = data.size, data.store
    state.world.roles = _roles(state, state.world.members)
    state.plan = state.standstill = None
    timers.cancel(state, timers.Backoff(data.round), timers.Window(data.round), timers.Return(data.round))
    for older in [round_ for round_ in state.stores if round_ < data.round]:
        del state.stores[older]
    for older in [round_ for round_ in state.store_nodes if round_ < data.round]:
        del state.store_nodes[older]


def _roles(state: JobState, members: Sequence[world.Member]) -> tuple[tuple[int, int], ...]:
    """Each member's first rank within its role, and the ranks of that role; empty if there is one role only."""
    roles = [state.nodes[member.node].role if member.node in state.nodes else "" for member in members]
    if len(set(roles)) < 2:
        return ()
    sizes: dict[str, int] = {}
    firsts = []
    for role, member in zip(roles, members, strict=True):
        firsts.append(sizes.get(role, 0))
        sizes[role] = firsts[-1] + member.slots
    return tuple((first, sizes[role]) for first, role in zip(firsts, roles, strict=True))


@on(world.RoundStarted)
def _round_started(state: JobState, event: Event, data: world.RoundStarted, changes: Changes) -> None:
    step_job(state, "round.started", changes)
    if state.world is not None:
        state.world.started = True
    open_incident = step_incident(state, "round.started", changes)
    if open_incident is not None:
        state.applied[open_incident.taken] = event.time
    if open_incident is not None and state.spec is not None:
        timers.start(state, timers.Settle(data.round), event.time, state.spec.timing.settle_s)
        if open_incident.deadline_s > 0:
            timers.start(state, timers.Outcome(data.round), event.time, open_incident.deadline_s)


@on(action.ActionOrdered)
def _action_ordered(state: JobState, event: Event, data: action.ActionOrdered, changes: Changes) -> None:
    state.orders += 1
    command = data.command
    names = data.nodes
    if not names and isinstance(command, CheckHealth):
        names = tuple(name for group in command.groups for name in group)
    elif not names and state.world is not None:
        names = tuple(member.node for member in state.world.members)
    waiting = {name: state.nodes[name].incarnation for name in names if name in state.nodes}
    if names in ((PLATFORM,), (ADVISER,)):
        waiting = {names[0]: ""}
    state.actions[data.effect] = ActionState(effect=data.effect, command=command, waiting=waiting, ordered=event.time)
    if data.deadline_s is not None:
        timers.start(state, timers.Action(data.effect), event.time, data.deadline_s)
    if isinstance(command, OpenStore):
        state.store_nodes[command.round] = names[0]
        state.stores.pop(command.round, None)
    elif isinstance(command, StartWorkers | StopWorkers):
        trigger = "action.ordered/start_workers" if isinstance(command, StartWorkers) else "action.ordered/stop_workers"
        for name in waiting:
            _order_node(state, state.nodes[name], command, trigger, changes)
    elif isinstance(command, CheckHealth):
        health.ordered(state, state.actions[data.effect], changes)
    elif isinstance(command, ReleaseNode) and not has_ended(state):
        for name in waiting:
            step_node(state, state.nodes[name], "action.ordered/release_node", changes)
            retire(state, state.nodes[name])
    elif isinstance(command, PLANS_OWN) and state.incident is not None and event.incident == state.incident.id:
        state.incident.effect, state.incident.refused = data.effect, ""
    if isinstance(command, ReplaceNodes) and command.keep:
        state.launched |= dict.fromkeys(command.nodes, data.effect)
    elif isinstance(command, DeleteNodes):
        state.launched = {name: order for name, order in state.launched.items() if name not in command.nodes}


def _order_node(
    state: JobState, found: NodeState, command: StartWorkers | StopWorkers, trigger: str, changes: Changes
) -> None:
    step_node(state, found, trigger, changes)
    found.round = max(found.round, command.round)
    if isinstance(command, StartWorkers):
        state.cold.pop(found.node, None)
        found.workers = [WorkerPhase.STARTING] * found.slots
        found.stepped = None


@on(action.ActionFailed)
def _action_failed(state: JobState, event: Event, data: action.ActionFailed, changes: Changes) -> None:
    ordered = state.actions.get(data.effect)
    not_launched(state, data.effect)
    if state.incident is not None and state.incident.effect == data.effect:
        state.incident.refused = data.reason
    elif ordered is not None and isinstance(ordered.command, AskPolicy):
        advised_nothing(state, ordered, f"was asked and did not answer: {data.reason}")
    elif ordered is not None and isinstance(ordered.command, CheckHealth):
        health.unanswered(state, ordered, data.reason)
    elif ordered is not None and isinstance(ordered.command, _NODES_OWN):
        for name in ordered.waiting:
            report(state, event, name, round_=ordered.command.round, message=data.reason)
        if isinstance(ordered.command, OpenStore):
            state.store_nodes.pop(ordered.command.round, None)
    _action_closed(state, event, data, changes)


@on(action.ActionSuperseded)
def _action_superseded(state: JobState, event: Event, data: action.ActionSuperseded, changes: Changes) -> None:
    ordered = state.actions.get(data.effect)
    if ordered is not None and isinstance(ordered.command, CheckHealth):
        health.dropped(state, ordered)
    not_launched(state, data.effect)
    _action_closed(state, event, data, changes)


@on(action.ActionDone)
def _action_closed(state: JobState, event: Event, data: Any, changes: Changes) -> None:
    state.actions.pop(data.effect, None)
    timers.cancel(state, timers.Action(data.effect))

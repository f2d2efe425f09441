"""Handlers of worlds and their stores, and of orders and their results."""

from collections.abc import Sequence
from typing import Any

from ftcore.commands import (
    ADVISER,
    IN_PLACE,
    PLATFORM,
    AskPolicy,
    CheckHealth,
    Command,
    CommitCheckpoint,
    DeleteNodes,
    FindBoundary,
    OpenStore,
    PersistShards,
    ReleaseNode,
    ReplaceNodes,
    ResumeWorkers,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.events import action, world
from ftcore.events.envelope import Event
from ftcore.states import timers
from ftcore.states.fold import disruptions, health, pace
from ftcore.states.fold.base import (
    Changes,
    advised_nothing,
    answered,
    not_launched,
    on,
    order_of_plan,
    report,
    retire,
    step_incident,
    step_job,
    step_node,
)
from ftcore.states.fold.checkpoints import not_committed, resumed
from ftcore.states.membership import NodeState
from ftcore.states.model import HISTORY_MAX, ActionState, JobState, PlanOrder, TakenPlan
from ftcore.states.phases import has_ended
from ftcore.states.rounds import PlannedRound, WorldState
from ftcore.states.worker import WorkerPhase

PLANS_OWN = (*IN_PLACE, PersistShards, ReplaceNodes)
"""Orders whose failure fails the plan and is no fault of a node."""

_NODES_OWN = (StartWorkers, StopWorkers, OpenStore, ResumeWorkers)
"""Orders whose missing answer is a fault of the node; not parking, which is followed by stopping."""


@on(world.StoreOpened)
def _store_opened(state: JobState, event: Event, data: world.StoreOpened, changes: Changes) -> None:
    # Another node may have been asked since: workers connect to its store, so a late answer is ignored.
    if state.membership.current(data.node, data.incarnation) is None:
        return
    if state.rounds.store_nodes.get(data.round) == data.node:
        host = f"[{data.host}]" if ":" in data.host else data.host
        state.rounds.stores[data.round] = f"{host}:{data.port}"
    answered(state, data.node, OpenStore, round_=data.round)


@on(world.StoreFailed)
def _store_failed(state: JobState, event: Event, data: world.StoreFailed, changes: Changes) -> None:
    rounds = state.rounds
    if rounds.store_nodes.get(data.round) == data.node:
        report(state, event, data.node, round_=data.round, message=data.error)
        rounds.stores.pop(data.round, None)
        rounds.store_nodes.pop(data.round, None)
    answered(state, data.node, OpenStore, round_=data.round)


@on(world.RoundPlanned)
def _round_planned(state: JobState, event: Event, data: world.RoundPlanned, changes: Changes) -> None:
    step_job(state, "round.planned", changes)
    pace.training_ended(state, event.time)
    plan = state.incident.plan if state.incident is not None else None
    if plan is not None and plan.terms.tolerate:
        kept = [step for step in state.training.tolerated if step != plan.terms.tolerate]
        state.training.tolerated = [*kept, plan.terms.tolerate][-HISTORY_MAX:]
    state.rounds.newest = data.round
    timers.cancel(state, timers.JoinTimer())
    state.rounds.planned = PlannedRound(round=data.round, want=data.want)
    for timer, after_s in (
        (timers.BackoffTimer(data.round), data.wait_s),
        (timers.WindowTimer(data.round), data.wait_s + data.window_s if data.window_s else 0),
        (timers.ReturnTimer(data.round), data.wait_s + data.give_up_s if data.give_up_s else 0),
    ):
        if after_s > 0:
            timers.start(state, timer, event.time, after_s)


@on(world.WorldMembers)
def _world_members(state: JobState, event: Event, data: world.WorldMembers, changes: Changes) -> None:
    rounds = state.rounds
    if rounds.world is None or rounds.world.round != data.round:
        rounds.world = WorldState(round=data.round, members=(), size=0, store="")
    rounds.world.members += data.members
    rounds.world.buddies += data.buddies
    for member in data.members:
        _seat(state, member)


def _seat(state: JobState, member: world.Member) -> None:
    """Give a member the place at which it trains; the node that holds this place gets the member's old one."""
    membership = state.membership
    found = membership.nodes[member.node]
    found.settled = True
    if member.node in membership.admitted:
        membership.admitted.remove(member.node)
    if found.ordinal == member.ordinal:
        return
    membership.vacate(found.ordinal)
    other = membership.places.get(member.ordinal)
    if other is not None:
        _move(state, membership.nodes[other], found.ordinal)
    _move(state, found, member.ordinal)


def _move(state: JobState, found: NodeState, ordinal: int) -> None:
    found.ordinal = state.membership.ordinals[found.node] = ordinal
    state.membership.places[ordinal] = found.node


@on(world.WorldFormed)
def _world_formed(state: JobState, event: Event, data: world.WorldFormed, changes: Changes) -> None:
    rounds = state.rounds
    step_job(state, "world.formed", changes)
    assert rounds.world is not None and rounds.world.round == data.round
    rounds.world.size, rounds.world.store = data.size, data.store
    rounds.world.roles = _roles(state, rounds.world.members)
    rounds.world.resume, rounds.world.batch = data.resume, data.batch
    rounds.world.persist_every = data.persist_every
    rounds.planned = state.training.standstill = state.requests.resume = None
    resumed(state, data.resume)
    timers.cancel(
        state, timers.BackoffTimer(data.round), timers.WindowTimer(data.round), timers.ReturnTimer(data.round)
    )
    for older in [round_ for round_ in rounds.stores if round_ < data.round]:
        del rounds.stores[older]
    for older in [round_ for round_ in rounds.store_nodes if round_ < data.round]:
        del rounds.store_nodes[older]


def _roles(state: JobState, members: Sequence[world.Member]) -> tuple[tuple[int, int], ...]:
    """By member: its first rank within its role, and the number of ranks of the role; empty if all have one role."""
    nodes = state.membership.nodes
    roles = [nodes[member.node].role if member.node in nodes else "" for member in members]
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
    pace.training_began(state, event.time)
    if state.rounds.world is not None:
        state.rounds.world.started = True
    open_incident = step_incident(state, "round.started", changes)
    plan = open_incident.plan if open_incident is not None else None
    if plan is not None:
        state.history.applied[plan.policy] = event.time
    if open_incident is not None and state.spec is not None:
        timers.start(state, timers.SettleTimer(data.round), event.time, state.spec.timing.settle_s)
        if plan is not None and plan.deadline_s > 0:
            timers.start(state, timers.OutcomeTimer(data.round), event.time, plan.deadline_s)


@on(action.ActionOrdered)
def _action_ordered(state: JobState, event: Event, data: action.ActionOrdered, changes: Changes) -> None:
    membership, rounds = state.membership, state.rounds
    state.orders.issued += 1
    command = data.command
    names = data.nodes
    if not names and isinstance(command, CheckHealth):
        names = tuple(name for group in command.groups for name in group)
    elif not names and rounds.world is not None:
        names = tuple(member.node for member in rounds.world.members)
    waiting = {name: membership.nodes[name].incarnation for name in names if name in membership.nodes}
    if names in ((PLATFORM,), (ADVISER,)):
        waiting = {names[0]: ""}
    ordered = ActionState(effect=data.effect, command=command, waiting=waiting, ordered=event.time)
    state.orders.open[data.effect] = ordered
    if data.deadline_s is not None:
        timers.start(state, timers.ActionTimer(data.effect), event.time, data.deadline_s)
    if isinstance(command, OpenStore):
        rounds.store_nodes[command.round] = names[0]
        rounds.stores.pop(command.round, None)
    elif isinstance(command, StartWorkers | StopWorkers):
        trigger = "action.ordered/start_workers" if isinstance(command, StartWorkers) else "action.ordered/stop_workers"
        for name in waiting:
            _order_node(state, membership.nodes[name], command, trigger, changes)
        if state.incident is not None and state.incident.plan is not None:
            state.incident.plan.hold = None
    elif isinstance(command, CheckHealth):
        health.ordered(state, ordered, changes)
    elif isinstance(command, ReleaseNode) and not has_ended(state):
        for name in waiting:
            step_node(state, membership.nodes[name], "action.ordered/release_node", changes)
            retire(state, membership.nodes[name])
    elif isinstance(command, PLANS_OWN):
        known = state.incident
        if known is not None and known.plan is not None and event.incident == known.id:
            _plans_own(known.plan, data.effect, command)
    elif isinstance(command, CommitCheckpoint):
        for saving in state.training.saved.saving:
            saving.tries += (saving.round, saving.step) == (command.round, command.step)
    if isinstance(command, ReplaceNodes) and command.keep:
        membership.launched |= dict.fromkeys(command.nodes, data.effect)
    elif isinstance(command, DeleteNodes):
        launched = membership.launched
        membership.launched = {name: order for name, order in launched.items() if name not in command.nodes}


def _plans_own(plan: TakenPlan, effect: str, command: Command) -> None:
    """Record the order of a plan as the one in progress."""
    made = PlanOrder(effect=effect, finds=isinstance(command, FindBoundary))
    if plan.kind == "restart" and isinstance(command, FindBoundary | SaveCheckpoint):
        plan.hold = made
    elif plan.kind == "restart" and isinstance(command, PersistShards):
        plan.rescue = effect
    else:
        made.persists = isinstance(command, PersistShards) or getattr(command, "boundary", 0) > 0
        made.saved_step = plan.order.saved_step if plan.order is not None else None
        plan.order = made


def _order_node(
    state: JobState, found: NodeState, command: StartWorkers | StopWorkers, trigger: str, changes: Changes
) -> None:
    step_node(state, found, trigger, changes)
    found.round = max(found.round, command.round)
    if isinstance(command, StartWorkers):
        state.membership.cold.pop(found.node, None)
        found.workers = [WorkerPhase.STARTING] * found.slots
        found.stepped = None


@on(action.ActionFailed)
def _action_failed(state: JobState, event: Event, data: action.ActionFailed, changes: Changes) -> None:
    ordered = state.orders.open.get(data.effect)
    not_launched(state, data.effect)
    of_plan = order_of_plan(state, data.effect)
    if of_plan is not None:
        of_plan.refused = data.reason
        resumes = ordered is not None and isinstance(ordered.command, ResumeWorkers)
        if ordered is not None and resumes and disruptions.is_about_disruption(state):
            for name in ordered.waiting:  # no operator would notice it
                report(state, event, name, message=data.reason)
    elif ordered is not None and isinstance(ordered.command, AskPolicy):
        advised_nothing(state, ordered, f"was asked and did not answer: {data.reason}")
    elif ordered is not None and isinstance(ordered.command, CheckHealth):
        health.unanswered(state, ordered, data.reason)
    elif ordered is not None and isinstance(ordered.command, _NODES_OWN):
        for name in ordered.waiting:
            report(state, event, name, round_=ordered.command.round, message=data.reason)
        if isinstance(ordered.command, OpenStore):
            state.rounds.store_nodes.pop(ordered.command.round, None)
    elif ordered is not None and isinstance(ordered.command, CommitCheckpoint):
        not_committed(state, event, ordered.command)
    _action_closed(state, event, data, changes)


@on(action.ActionSuperseded)
def _action_superseded(state: JobState, event: Event, data: action.ActionSuperseded, changes: Changes) -> None:
    ordered = state.orders.open.get(data.effect)
    if ordered is not None and isinstance(ordered.command, CheckHealth):
        health.dropped(state, ordered)
    not_launched(state, data.effect)
    _action_closed(state, event, data, changes)


@on(action.ActionDone)
def _action_closed(state: JobState, event: Event, data: Any, changes: Changes) -> None:
    state.orders.open.pop(data.effect, None)
    timers.cancel(state, timers.ActionTimer(data.effect))

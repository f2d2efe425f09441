"""Order actions: each function emits ``action.ordered`` if the action is still needed, and returns whether it did."""

from collections.abc import Collection

from ftcore.commands import (
    IN_PLACE,
    PLATFORM,
    AskPolicy,
    CheckHealth,
    Command,
    DeleteNodes,
    FindBoundary,
    OpenStore,
    ParkWorkers,
    PauseWorkers,
    ReleaseNode,
    ReplaceNodes,
    ResumeWorkers,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
    tag_of,
)
from ftcore.engine.turn import Turn
from ftcore.events.action import ActionOrdered, ActionSuperseded
from ftcore.events.world import Member
from ftcore.ids import Round
from ftcore.policies.base import Ability, PlanKind
from ftcore.policies.situation import all_workers_alive, have_left
from ftcore.states.faultkey import is_cut
from ftcore.states.membership import NodeState
from ftcore.states.model import IncidentState, JobState
from ftcore.states.node import HOLDING, OUTGOING, NodePhase
from ftcore.states.revisions import DISRUPTIONS, ONE_BOUNDARY, follows
from ftcore.states.worker import WorkerPhase
from ftcore.states.world import Volunteer, form_world

NAMES_MAX = 64
"""Maximum number of node names in a text for users; events with members, and orders, have all of them."""

STORE_DEADLINE_S = 60.0
"""Timeout in seconds for a node to open a store."""

STOP_MARGIN_S = 30.0
"""Seconds in addition to the grace period, for KILL, reaping and the network."""

IN_PLACE_DEADLINE_S = 60.0
"""Default deadline in seconds of a plan in place."""

FIND_DEADLINE_S = 10.0
"""Timeout in seconds for the answer where workers stop; they wait longer than this for the order that follows."""

PLATFORM_ANSWER_S = 60.0
"""Timeout in seconds for a platform to accept an order; the launch itself may take longer."""


def order(
    turn: Turn, command: Command, nodes: tuple[str, ...], deadline_s: float | None, *, incident: str | None = None
) -> None:
    """Order a command from nodes; if ``nodes`` is empty, from all members."""
    effect = f"{tag_of(command)}.{turn.state.run}.{turn.state.orders.issued + 1}"
    turn.emit(ActionOrdered(effect=effect, command=command, nodes=nodes, deadline_s=deadline_s), incident=incident)


def order_stop(turn: Turn, grace_s: float, incident: str | None) -> bool:
    """Order all nodes with workers to stop them, except nodes with such an order."""
    state = turn.state
    ordered = _waited_for(state, StopWorkers)
    names = tuple(node.node for node in state.membership.alive() if _holds_workers(node) and node.node not in ordered)
    if not names:
        return False
    order(
        turn, StopWorkers(round=newest_round(state), grace_s=grace_s), names, grace_s + STOP_MARGIN_S, incident=incident
    )
    return True


def order_park(turn: Turn, incident: IncidentState) -> None:
    """Order nodes with live workers to park them, and the others to stop theirs; nodes with such an order are left."""
    state, grace_s = turn.state, incident.plan_in_force().grace_s
    ordered = _waited_for(state, ParkWorkers) | _waited_for(state, StopWorkers)
    holding = [node for node in state.membership.alive() if _holds_workers(node) and node.node not in ordered]
    live = tuple(node.node for node in holding if _can_park(node))
    if live:
        command = ParkWorkers(round=newest_round(state), grace_s=grace_s)
        order(turn, command, live, grace_s + STOP_MARGIN_S, incident=incident.id)
    rest = tuple(node.node for node in holding if node.node not in live and node.phase is not NodePhase.PARKED)
    if rest:
        stop = StopWorkers(round=newest_round(state), grace_s=grace_s)
        order(turn, stop, rest, grace_s + STOP_MARGIN_S, incident=incident.id)


def _can_park(node: NodeState) -> bool:
    """Whether a node has running workers that can wait for the next round; others of it may have ended."""
    if node.phase in (NodePhase.RUNNING, NodePhase.PAUSED):
        return True
    phases = set(node.workers)
    return node.phase is NodePhase.FAULTED and WorkerPhase.RUNNING in phases and WorkerPhase.STARTING not in phases


def order_rest_stop(turn: Turn, incident: IncidentState) -> bool:
    """After all orders to park are answered: order nodes that did not park to stop their workers.

    Parked workers are stopped, too, if a process is missing and the script cannot go on beside a new one.
    """
    state = turn.state
    if any(isinstance(ordered.command, ParkWorkers) and ordered.waiting for ordered in state.orders.open.values()):
        return False
    stopping = _waited_for(state, StopWorkers)
    holding = [node for node in state.membership.alive() if _holds_workers(node)]
    rest = [node for node in holding if node.phase is not NodePhase.PARKED]
    seats = state.rounds.world.members if state.rounds.world is not None else ()
    if len(holding) - len(rest) < len(seats) and not state.can(Ability.PARK):
        rest = holding
    names = tuple(node.node for node in rest if node.node not in stopping)
    if not names:
        return False
    grace_s = incident.plan_in_force().grace_s
    command = StopWorkers(round=newest_round(state), grace_s=grace_s)
    order(turn, command, names, grace_s + STOP_MARGIN_S, incident=incident.id)
    return True


def order_surplus_stop(turn: Turn, grace_s: float, incident: str | None) -> None:
    """Stop parked workers of nodes that have no place in the new world."""
    state = turn.state
    seated = {member.node for member in state.rounds.world.members} if state.rounds.world is not None else set()
    parked = [node.node for node in state.membership.alive() if node.phase is NodePhase.PARKED]
    names = tuple(name for name in parked if name not in seated)
    if names:
        command = StopWorkers(round=newest_round(state), grace_s=grace_s)
        order(turn, command, names, grace_s + STOP_MARGIN_S, incident=incident)


def order_store(turn: Turn, round_: Round, incident: str | None, without: tuple[str, ...] = ()) -> bool:
    """Order the node with the first ranks to serve the round's store, unless that is already ordered.

    A node that another one cannot reach is chosen only if there is no other: a node that cannot reach the store fails
    its health check.
    """
    state = turn.state
    if round_ in state.rounds.store_nodes:
        return False
    world = coming_world(state, without)
    names = [member.node for member in world]
    apart = state.incident.fault.nodes if state.incident is not None and is_cut(state.incident.fault) else ()
    if apart or not names:
        names += [node.node for node in _free(state, without)]
    host = next((name for name in names if name not in apart), names[0] if names else None)
    if host is None:
        return False
    order(turn, OpenStore(round=round_), (host,), STORE_DEADLINE_S, incident=incident)
    return True


def coming_world(state: JobState, without: Collection[str] = ()) -> tuple[Member, ...]:
    """The world that can be formed now without some nodes; empty if there are too few."""
    if state.spec is None:
        return ()
    nodes, world = state.membership.nodes, state.rounds.world
    seats = world.members if world is not None else ()
    return form_world(
        (_volunteer(node, node.incarnation, node.ordinal, node.slots) for node in _free(state, without)),
        state.spec,
        tuple(_volunteer(nodes[seat.node], seat.incarnation, seat.ordinal, seat.slots) for seat in seats),
    )


def _free(state: JobState, without: Collection[str]) -> list[NodeState]:
    return [node for node in state.membership.alive() if node.phase not in OUTGOING and node.node not in without]


def _volunteer(node: NodeState, incarnation: str, ordinal: int, slots: int) -> Volunteer:
    return Volunteer(
        node=node.node,
        incarnation=incarnation,
        ordinal=ordinal,
        slots=slots,
        labels=node.labels,
        settled=node.settled,
        role=node.role,
    )


def first_order(state: JobState, command: Command) -> Command:
    """The first order of a plan in place: the command, or the order to find the step boundary for it."""
    saves = isinstance(command, SaveCheckpoint) and all_workers_alive(state) and not have_left(state)
    together = isinstance(command, PauseWorkers) or saves
    return FindBoundary(round=newest_round(state)) if together and follows(state, ONE_BOUNDARY) else command


def at_boundary(command: Command, boundary: int) -> Command:
    """A plan's command at a step boundary of all workers; every rank takes part in a save."""
    if isinstance(command, SaveCheckpoint):
        return SaveCheckpoint(round=command.round, boundary=boundary)
    assert isinstance(command, PauseWorkers)
    return PauseWorkers(round=command.round, boundary=boundary)


def order_in_place(turn: Turn, incident: IncidentState, command: Command) -> bool:
    """Order the plan's command from every member whose workers can do it; false if there is none."""
    state = turn.state
    able = [NodePhase.RUNNING, NodePhase.PAUSED, NodePhase.FAULTED]
    if isinstance(command, SaveCheckpoint):
        able.append(NodePhase.PARKED)  # parked workers still have their state
    names = tuple(node.node for node in members(state) if node.phase in able)
    limit_s = incident.plan_in_force().deadline_s or IN_PLACE_DEADLINE_S
    if names:
        deadline_s = min(limit_s, FIND_DEADLINE_S) if isinstance(command, FindBoundary) else limit_s
        order(turn, command, names, deadline_s, incident=incident.id)
    return bool(names)


def order_resume(turn: Turn, pausing: Collection[str] | None) -> None:
    """Undo a pause that not all members could carry out: order paused nodes, and those about to pause, to resume.

    Args:
        turn: the current turn.
        pausing: nodes that have not answered yet; None: all nodes with running workers.
    """
    state = turn.state
    names = tuple(
        node.node
        for node in members(state)
        if node.phase is NodePhase.PAUSED
        or (node.phase is NodePhase.RUNNING and (pausing is None or node.node in pausing))
    )
    if names:
        order(turn, ResumeWorkers(round=newest_round(state)), names, IN_PLACE_DEADLINE_S)


def order_replacements(turn: Turn, incident: IncidentState, *, keep: bool = False) -> bool:
    """Order the platform to replace the plan's nodes; not for a lost node that has come back.

    Args:
        turn: the current turn.
        incident: the incident whose plan is carried out.
        keep: the replaced nodes train until the replacements are ready.
    """
    terms, membership = incident.plan_in_force().terms, turn.state.membership
    nodes, launched = membership.nodes, membership.launched
    out = (*terms.exclude, *terms.quarantine)
    given_up = (name for name in terms.replace if name in out or name not in nodes or not nodes[name].alive)
    names = tuple(name for name in given_up if name not in launched)
    if not names:
        return False
    command = ReplaceNodes(nodes=names, isolate=bool(terms.quarantine), keep=keep)
    order(turn, command, (PLATFORM,), PLATFORM_ANSWER_S, incident=incident.id)
    return True


def order_deletions(turn: Turn, incident: IncidentState) -> bool:
    """Order the platform to delete nodes whose replacements were launched while they trained."""
    terms = incident.plan_in_force().terms
    names = tuple(name for name in terms.replace if name in turn.state.membership.launched)
    if names:
        command = DeleteNodes(nodes=names, isolate=bool(terms.quarantine))
        order(turn, command, (PLATFORM,), PLATFORM_ANSWER_S, incident=incident.id)
    return bool(names)


def release_of(state: JobState) -> ReleaseNode:
    """The order to leave for the nodes of a job that has ended."""
    ending = state.ending
    assert ending is not None, state.phase
    return ReleaseNode(outcome=ending.outcome, exit_code=ending.exit_code, reason=ending.reason)


def order_release(turn: Turn, names: tuple[str, ...], reason: str, incident: str | None) -> None:
    """Order nodes to leave while the job continues."""
    order(turn, ReleaseNode(outcome="released", exit_code=5, reason=reason), names, None, incident=incident)


def supersede(turn: Turn, incident: IncidentState) -> None:
    """Supersede the orders of earlier plans, except orders to stop.

    The launch of a replacement for a node that was still training is kept as well, unless the job ends, and so are the
    order to resume after a pause that failed, unless the workers are stopped, and the order to park workers, if the
    plan parks them as well: nodes that have obeyed it could not obey another one.
    """
    passing = (AskPolicy, StartWorkers, ParkWorkers, CheckHealth, ReplaceNodes, *IN_PLACE)
    kind = incident.plan.kind if incident.plan is not None else ""
    parks = kind == PlanKind.RESTART and incident.plan_in_force().terms.survivors == "park"
    goes_on = kind != PlanKind.END
    resumes = kind in (PlanKind.IN_PLACE, PlanKind.TELL) and follows(turn.state, DISRUPTIONS)
    for ordered in list(turn.state.orders.open.values()):
        if (resumes and isinstance(ordered.command, ResumeWorkers)) or (
            parks and isinstance(ordered.command, ParkWorkers) and ordered.command.round == newest_round(turn.state)
        ):
            continue
        if isinstance(ordered.command, passing) and not (goes_on and getattr(ordered.command, "keep", False)):
            turn.emit(ActionSuperseded(effect=ordered.effect, reason=f"incident {incident.id}"), incident=incident.id)


def members(state: JobState) -> list[NodeState]:
    """The members of the world whose incarnation is still the one that joined it."""
    if state.rounds.world is None:
        return []
    found = (state.membership.current(member.node, member.incarnation) for member in state.rounds.world.members)
    return [node for node in found if node is not None]


def next_round(state: JobState) -> Round:
    """The number of the next round."""
    return Round(state.rounds.world.round + 1 if state.rounds.world is not None else state.rounds.first)


def newest_round(state: JobState) -> Round:
    """The number of the round whose workers may run."""
    # Before the first world of a run, there may be workers of the previous run that were never stopped.
    return Round(state.rounds.world.round if state.rounds.world is not None else state.rounds.first - 1)


def _holds_workers(node: NodeState) -> bool:
    return node.phase in HOLDING or node.phase is NodePhase.FINISHED


def _waited_for(state: JobState, kind: type[Command]) -> set[str]:
    actions = [action for action in state.orders.open.values() if isinstance(action.command, kind)]
    return {name for action in actions for name in action.waiting}

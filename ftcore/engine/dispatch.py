"""Giving orders: each helper emits ``action.ordered`` for what is still missing, and says whether it did."""

from collections.abc import Collection

from ftcore.commands import (
    IN_PLACE,
    PLATFORM,
    AskPolicy,
    CheckHealth,
    Command,
    DeleteNodes,
    OpenStore,
    ParkWorkers,
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
from ftcore.policies.base import PlanKind
from ftcore.states.faultkey import is_cut
from ftcore.states.model import IncidentState, JobState, NodeState
from ftcore.states.node import HOLDING, OUTGOING, NodePhase
from ftcore.states.world import Volunteer, form_world

NAMES_MAX = 64
"""Names of nodes in one event meant for people; members events and orders hold all."""

STORE_DEADLINE_S = 60.0
"""A node that cannot open a store in this time is treated as unable to."""

STOP_MARGIN_S = 30.0
"""Beyond the grace: reaping, killing of what ignored TERM, and a slow wire."""

IN_PLACE_DEADLINE_S = 60.0
"""For a plan in place whose policy names no deadline."""

PLATFORM_ANSWER_S = 60.0
"""A platform that has not even taken an order by then declines it; the nodes themselves may take longer."""


def order(
    turn: Turn, command: Command, nodes: tuple[str, ...], deadline_s: float | None, *, incident: str | None = None
) -> None:
    """Order something from nodes; no nodes: from all members."""
    effect = f"{tag_of(command)}.{turn.state.run}.{turn.state.orders + 1}"
    turn.emit(ActionOrdered(effect=effect, command=command, nodes=nodes, deadline_s=deadline_s), incident=incident)


def order_stop(turn: Turn, grace_s: float, incident: str | None) -> bool:
    """Have every node that holds workers stop them, unless it was told to already."""
    state = turn.state
    told = _waited_for(state, StopWorkers)
    names = tuple(node.node for node in state.alive() if _holds_workers(node) and node.node not in told)
    if not names:
        return False
    order(turn, StopWorkers(round=_newest(state), grace_s=grace_s), names, grace_s + STOP_MARGIN_S, incident=incident)
    return True


def order_park(turn: Turn, known: IncidentState) -> None:
    """Have the nodes whose workers are whole park them, and the others stop theirs."""
    state, grace_s = turn.state, known.grace_s
    holding = [node for node in state.alive() if _holds_workers(node)]
    whole = tuple(node.node for node in holding if node.phase in (NodePhase.RUNNING, NodePhase.PAUSED))
    if whole:
        command = ParkWorkers(round=_newest(state), grace_s=grace_s)
        order(turn, command, whole, grace_s + STOP_MARGIN_S, incident=known.id)
    rest = tuple(node.node for node in holding if node.node not in whole and node.phase is not NodePhase.PARKED)
    if rest:
        stop = StopWorkers(round=_newest(state), grace_s=grace_s)
        order(turn, stop, rest, grace_s + STOP_MARGIN_S, incident=known.id)


def order_rest_stop(turn: Turn, known: IncidentState) -> bool:
    """Once those who were to park have answered: stop whoever did not."""
    state = turn.state
    if any(isinstance(ordered.command, ParkWorkers) and ordered.waiting for ordered in state.actions.values()):
        return False
    told = _waited_for(state, StopWorkers)
    left = (node for node in state.alive() if _holds_workers(node) and node.phase is not NodePhase.PARKED)
    names = tuple(node.node for node in left if node.node not in told)
    if not names:
        return False
    command = StopWorkers(round=_newest(state), grace_s=known.grace_s)
    order(turn, command, names, known.grace_s + STOP_MARGIN_S, incident=known.id)
    return True


def order_store(turn: Turn, round_: Round, incident: str | None, without: tuple[str, ...] = ()) -> bool:
    """Have the node that is to have the first ranks serve the round's store, unless that is ordered already.

    A node that another one cannot reach serves it only if there is no third: a node fails a health check whose store
    it cannot reach.
    """
    state = turn.state
    if round_ in state.store_nodes:
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
    """The world that could be formed now, without some nodes; empty if there are too few."""
    if state.spec is None:
        return ()
    seats = state.world.members if state.world is not None else ()
    return form_world(
        (_volunteer(node, node.incarnation, node.ordinal, node.slots) for node in _free(state, without)),
        state.spec,
        tuple(_volunteer(state.nodes[seat.node], seat.incarnation, seat.ordinal, seat.slots) for seat in seats),
    )


def _free(state: JobState, without: Collection[str]) -> list[NodeState]:
    return [node for node in state.alive() if node.phase not in OUTGOING and node.node not in without]


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


def order_in_place(turn: Turn, known: IncidentState, command: Command) -> bool:
    """Order the plan's command from every member whose workers can do it; false if there is none."""
    state = turn.state
    able = [NodePhase.RUNNING, NodePhase.PAUSED, NodePhase.FAULTED]
    if isinstance(command, SaveCheckpoint):
        able.append(NodePhase.PARKED)  # out of their round, but their state is whole
    names = tuple(node.node for node in members(state) if node.phase in able)
    if names:
        order(turn, command, names, known.deadline_s or IN_PLACE_DEADLINE_S, incident=known.id)
    return bool(names)


def order_resume(turn: Turn, pausing: Collection[str] | None) -> None:
    """A pause that not every member could keep is kept by none: let those go on that wait, or soon would.

    Args:
        turn: the turn.
        pausing: who has not answered yet; None: everybody whose workers run.
    """
    state = turn.state
    names = tuple(
        node.node
        for node in members(state)
        if node.phase is NodePhase.PAUSED
        or (node.phase is NodePhase.RUNNING and (pausing is None or node.node in pausing))
    )
    if names:
        order(turn, ResumeWorkers(round=_newest(state)), names, IN_PLACE_DEADLINE_S)


def order_replacements(turn: Turn, known: IncidentState, *, keep: bool = False) -> bool:
    """Ask the platform for other nodes in the places of those given up; not for one that was gone and came back.

    Args:
        turn: the turn.
        known: the incident whose plan it is.
        keep: those given up train until the others are ready.
    """
    terms, nodes, launched = known.terms, turn.state.nodes, turn.state.launched
    out = (*terms.exclude, *terms.quarantine)
    given_up = (name for name in terms.replace if name in out or name not in nodes or not nodes[name].alive)
    names = tuple(name for name in given_up if name not in launched)
    if not names:
        return False
    command = ReplaceNodes(nodes=names, isolate=bool(terms.quarantine), keep=keep)
    order(turn, command, (PLATFORM,), PLATFORM_ANSWER_S, incident=known.id)
    return True


def order_deletions(turn: Turn, known: IncidentState) -> bool:
    """Have the platform end the nodes for whose places others were launched while they trained."""
    names = tuple(name for name in known.terms.replace if name in turn.state.launched)
    if names:
        command = DeleteNodes(nodes=names, isolate=bool(known.terms.quarantine))
        order(turn, command, (PLATFORM,), PLATFORM_ANSWER_S, incident=known.id)
    return bool(names)


def order_release(turn: Turn, names: tuple[str, ...], reason: str, incident: str | None) -> None:
    """Tell nodes to leave while the job goes on."""
    order(turn, ReleaseNode(outcome="released", exit_code=5, reason=reason), names, None, incident=incident)


def supersede(turn: Turn, known: IncidentState) -> None:
    """Take back the orders of plans that are no longer wanted; orders to stop stand.

    So does a launch for a node that trained then, while the job goes on: whoever is wanted in that place comes of it.
    """
    passing = (AskPolicy, StartWorkers, ParkWorkers, CheckHealth, ReplaceNodes, *IN_PLACE)
    goes_on = known.plan != PlanKind.END
    for ordered in list(turn.state.actions.values()):
        if isinstance(ordered.command, passing) and not (goes_on and getattr(ordered.command, "keep", False)):
            turn.emit(ActionSuperseded(effect=ordered.effect, reason=f"incident {known.id}"), incident=known.id)


def members(state: JobState) -> list[NodeState]:
    """The members of the world that are still the incarnation that was taken in."""
    if state.world is None:
        return []
    found = (state.current(member.node, member.incarnation) for member in state.world.members)
    return [node for node in found if node is not None]


def next_round(state: JobState) -> Round:
    """The number of the round to come."""
    return Round(state.world.round + 1 if state.world is not None else state.round_first)


def _newest(state: JobState) -> Round:
    # Before the first world of a run: workers that a node of the run before never stopped.
    return Round(state.world.round if state.world is not None else state.round_first - 1)


def _holds_workers(node: NodeState) -> bool:
    return node.phase in HOLDING or node.phase is NodePhase.FINISHED


def _waited_for(state: JobState, kind: type[Command]) -> set[str]:
    return {name for ordered in state.actions.values() if isinstance(ordered.command, kind) for name in ordered.waiting}

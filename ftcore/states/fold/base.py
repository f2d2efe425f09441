"""What the handlers of the fold share: their registry, the stepping of machines, reports of faults."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias

from ftcore.commands import ADVISER, AskPolicy
from ftcore.events.envelope import Event
from ftcore.events.policy import PolicyAnswered
from ftcore.states import timers
from ftcore.states.incident import INCIDENT
from ftcore.states.job import JOB
from ftcore.states.model import (
    REPORTS_MAX,
    TAIL_BYTES_MAX,
    ActionState,
    IncidentState,
    JobState,
    NodeState,
    Report,
)
from ftcore.states.node import NODE, OUTGOING
from ftcore.states.phases import is_acting
from ftcore.states.table import Machine
from ftcore.states.worker import WORKER
from ftcore.states.world import usable


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

handlers: dict[type[Any], Handler] = {}


def on(payload: type[Any]) -> Callable[[Handler], Handler]:
    """Declare the handler of a payload type."""

    def register(handler: Handler) -> Handler:
        assert payload not in handlers, payload
        handlers[payload] = handler
        return handler

    return register


def step(machine: Machine, instance: str, source: Any, trigger: str, changes: Changes, context: Any = None) -> Any:
    """Step one machine and note what happened; an anomaly leaves it where it is."""
    target = machine.step(source, trigger, context)
    changes.append(Change(machine.name, instance, trigger, source, target))
    return source if target is None else target


def report(
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
    source: str = "",
    kind: str = "",
    values: dict[str, float] | None = None,
) -> None:
    """Keep what a fact says of a fault, bounded, for classification."""
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
            source=source,
            kind=kind,
            values=values or {},
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


def advised_nothing(state: JobState, ordered: ActionState, reason: str) -> None:
    """A policy that is not ftcore's gave no answer that can be used: that counts as a pass."""
    command = ordered.command
    assert isinstance(command, AskPolicy)
    answer = PolicyAnswered(effect=ordered.effect, policy=command.policy, verdict="pass", reason=reason)
    advised(state, ordered, answer)


def advised(state: JobState, ordered: ActionState, answer: PolicyAnswered) -> None:
    """Take in what a policy that is not ftcore's said, if it was about the incident as it is now."""
    ordered.waiting.pop(ADVISER, None)
    command, known = ordered.command, state.incident
    assert isinstance(command, AskPolicy)
    if known is not None and (known.id, known.revision) == (command.incident, command.revision):
        known.answers[command.policy] = answer


def step_job(state: JobState, trigger: str, changes: Changes) -> None:
    """Step the job's machine."""
    state.phase = step(JOB, state.job, state.phase, trigger, changes, state.before_stuck)


def step_incident(state: JobState, trigger: str, changes: Changes) -> IncidentState | None:
    """Step the open incident's machine; returns the incident, if one is open."""
    open_incident = state.incident
    if open_incident is not None:
        open_incident.phase = step(INCIDENT, open_incident.id, open_incident.phase, trigger, changes)
    return open_incident


def step_node(state: JobState, found: NodeState, trigger: str, changes: Changes) -> None:
    """Step a node's machine and keep count of the phases."""
    before = found.phase
    found.phase = step(NODE, found.node, before, trigger, changes)
    if found.phase is not before:
        state.phases[before] -= 1
        state.phases[found.phase] = state.phases.get(found.phase, 0) + 1


def given_up(state: JobState, found: NodeState) -> bool:
    """Whether a node is on its way out, or about to be let go by the plan that waits for somebody in its place."""
    known = state.incident
    if known is None or not is_acting(known) or not known.effect:
        return found.phase in OUTGOING
    return found.phase in OUTGOING or found.node in known.terms.exclude


def not_launched(state: JobState, effect: str) -> None:
    """Nobody comes of an order to launch nodes while others train."""
    state.launched = {node: order for node, order in state.launched.items() if order != effect}


def retire(state: JobState, found: NodeState) -> None:
    """A node on its way out leaves its place to whoever replaces it, and waits behind all others.

    A store that it serves for a round to come would be lost with it, so that round needs another.
    """
    if found.phase in OUTGOING:
        state.unchecked.pop(found.node, None)
        state.cold.pop(found.node, None)
        formed = state.world.round if state.world is not None else 0
        for round_ in [r for r, host in state.store_nodes.items() if host == found.node and r > formed]:
            del state.store_nodes[round_]
            state.stores.pop(round_, None)
    if found.phase in OUTGOING and state.places.get(found.ordinal) == found.node:
        state.vacate(found.ordinal)
        found.ordinal = state.places_end
        state.places[found.ordinal] = found.node
        state.places_end += 1


def step_workers(found: NodeState, trigger: str, changes: Changes) -> None:
    """Step the machine of every worker of a node."""
    for local_rank, phase in enumerate(found.workers):
        found.workers[local_rank] = step(WORKER, f"{found.node}/{local_rank}", phase, trigger, changes)


def reporter(state: JobState, data: Any) -> NodeState | None:
    """The node that a fact is about; None if it is stale: of an older incarnation or round, or of a life given up."""
    found = state.current(data.node, data.incarnation)
    if found is None:
        return None
    return None if data.round < found.round else found


def answered(state: JobState, node_name: str, *commands: type[Any], round_: int | None = None) -> None:
    """Take the node off the orders of those kinds, up to a round."""
    for ordered in state.actions.values():
        command = ordered.command
        if isinstance(command, commands) and (round_ is None or getattr(command, "round", 0) <= round_):
            ordered.waiting.pop(node_name, None)


def answering(state: JobState, data: Any) -> tuple[NodeState, ActionState] | None:
    """The node and the order that a fact answers; None if either is not of now."""
    found, ordered = state.nodes.get(data.node), state.actions.get(data.effect)
    if found is None or ordered is None or ordered.waiting.get(data.node) != data.incarnation:
        return None
    return found, ordered


def await_others(state: JobState, event: Event) -> None:
    """Start the join window of the first round, once there are nodes that it could be formed with."""
    spec = state.spec
    if spec is not None and not timers.is_running(state, timers.Join()) and usable(state.available(), spec):
        timers.start(state, timers.Join(), event.time, spec.timing.join_window_s)


def progress(state: JobState, round_: int, step: int, absolute: bool) -> None:
    """Take in a completed step."""
    if round_ > state.step_round or state.step is None or step > state.step:
        state.step, state.step_round, state.step_absolute = step, round_, absolute
    state.reports_steps = True

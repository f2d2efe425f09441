"""Shared by the handlers of the fold: their registry, steps of machines, reports of faults."""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias, cast

from ftcore.commands import ADVISER, AskPolicy
from ftcore.events.envelope import Event
from ftcore.events.policy import PolicyAnswered
from ftcore.states import timers
from ftcore.states.evidence import REPORTS_MAX, TAIL_BYTES_MAX, Report
from ftcore.states.incident import INCIDENT
from ftcore.states.job import JOB
from ftcore.states.membership import NodeState
from ftcore.states.model import AbilitiesState, ActionState, IncidentState, JobState, PlanOrder
from ftcore.states.node import NODE, OUTGOING
from ftcore.states.phases import is_acting
from ftcore.states.table import Machine
from ftcore.states.worker import WORKER, WorkerPhase
from ftcore.states.world import usable


class Change(NamedTuple):
    """The effect of one event on one machine.

    Args:
        machine: the machine's name.
        instance: name of the instance, for example ``node1`` or ``node1/0``.
        trigger: the trigger that the event was for the machine.
        source: the state before.
        target: the state after; the same if ignored; None for an anomaly.
    """

    machine: str
    instance: str
    trigger: str
    source: StrEnum
    target: StrEnum | None


Changes: TypeAlias = list[Change]


class _NoChanges(list[Change]):
    """Drops what is appended."""

    def append(self, change: Change) -> None:
        """Drop a change."""


DROPPED: Changes = _NoChanges()
"""For a fold whose changes nobody reads: of the workers of a node, they cost more than the fold itself."""

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
    """Step one machine, append the change, and return the new state; an anomaly keeps the state."""
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
    """Store the evidence in a fact for classification; the number of reports and the tail are bounded."""
    round_ = round_ if round_ is not None else state.rounds.world.round if state.rounds.world is not None else 0
    if len(state.evidence.reports) >= REPORTS_MAX and not _make_room(state, event, round_):
        return
    state.evidence.reports.append(
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
    """Drop the oldest report of an earlier round, if any; else only a failed order drops a report, the newest."""
    for place, report in enumerate(state.evidence.reports):
        if report.round < round_:
            del state.evidence.reports[place]
            return True
    if event.type == "action.failed":
        state.evidence.reports.pop()
        return True
    return False


def advised_nothing(state: JobState, ordered: ActionState, reason: str) -> None:
    """Record a pass for a policy of another package that gave no usable answer."""
    command = ordered.command
    assert isinstance(command, AskPolicy)
    answer = PolicyAnswered(effect=ordered.effect, policy=command.policy, verdict="pass", reason=reason)
    advised(state, ordered, answer)


def advised(state: JobState, ordered: ActionState, answer: PolicyAnswered) -> None:
    """Record the answer of a policy of another package, if it is about the current revision of the incident."""
    ordered.waiting.pop(ADVISER, None)
    command, known = ordered.command, state.incident
    assert isinstance(command, AskPolicy)
    if known is not None and (known.id, known.revision) == (command.incident, command.revision):
        known.answers[command.policy] = answer


def step_job(state: JobState, trigger: str, changes: Changes) -> None:
    """Step the job's machine."""
    before = state.stuck.before if state.stuck is not None else None
    state.phase = step(JOB, state.job, state.phase, trigger, changes, before)


def step_incident(state: JobState, trigger: str, changes: Changes) -> IncidentState | None:
    """Step the machine of the open incident; return the incident, if one is open."""
    open_incident = state.incident
    if open_incident is not None:
        open_incident.phase = step(INCIDENT, open_incident.id, open_incident.phase, trigger, changes)
    return open_incident


def step_node(state: JobState, found: NodeState, trigger: str, changes: Changes) -> None:
    """Step a node's machine and update the number of nodes in each phase."""
    membership = state.membership
    before = found.phase
    found.phase = step(NODE, found.node, before, trigger, changes)
    if found.phase is not before:
        membership.phases[before] -= 1
        membership.phases[found.phase] = membership.phases.get(found.phase, 0) + 1


def given_up(state: JobState, found: NodeState) -> bool:
    """Whether a node is leaving, or the plan in force excludes it and has already issued its own order."""
    known = state.incident
    if known is None or known.plan is None or not is_acting(known) or known.plan.order is None:
        return found.phase in OUTGOING
    return found.phase in OUTGOING or found.node in known.plan.terms.exclude


WORKERS = "workers"
"""The source of the abilities that running workers report."""

FILE = "file"
"""The source of the abilities that the policy file declares."""

REGISTERED = "registered"
"""The source of the abilities that follow from the state that the script registered."""


def declare_abilities(abilities: AbilitiesState, source: str, names: tuple[str, ...]) -> None:
    """Replace the abilities of a source; passes of policies that lacked a changed one are recorded anew."""
    changed = {*abilities.declared.get(source, ())} ^ {*names}
    abilities.declared[source] = names
    abilities.lacking = {policy: lacks for policy, lacks in abilities.lacking.items() if not changed & {*lacks}}


def order_of_plan(state: JobState, effect: str) -> PlanOrder | None:
    """The order of the plan in force with this effect."""
    plan = state.incident.plan if state.incident is not None else None
    orders = (plan.order, plan.hold) if plan is not None else ()
    return next((order for order in orders if order is not None and order.effect == effect), None)


def not_launched(state: JobState, effect: str) -> None:
    """Forget the nodes launched by an order: they are not expected any more."""
    state.membership.launched = {node: order for node, order in state.membership.launched.items() if order != effect}


def retire(state: JobState, found: NodeState) -> None:
    """Free the place of a node that is leaving for its replacement; the node moves behind all other places.

    A store that it serves for a future round would be lost with it, so that round opens another one.
    """
    membership, rounds = state.membership, state.rounds
    if found.phase in OUTGOING:
        membership.unchecked.pop(found.node, None)
        membership.cold.pop(found.node, None)
        formed = rounds.world.round if rounds.world is not None else 0
        for round_ in [r for r, host in rounds.store_nodes.items() if host == found.node and r > formed]:
            del rounds.store_nodes[round_]
            rounds.stores.pop(round_, None)
    if found.phase in OUTGOING and membership.places.get(found.ordinal) == found.node:
        membership.vacate(found.ordinal)
        found.ordinal = membership.places_end
        membership.places[found.ordinal] = found.node
        membership.places_end += 1


def step_workers(found: NodeState, trigger: str, changes: Changes) -> None:
    """Step the machine of every worker of a node."""
    workers = found.workers
    if changes is DROPPED and workers and workers.count(workers[0]) == len(workers):
        following = cast(WorkerPhase | None, WORKER.step(workers[0], trigger))
        if following is not None:
            workers[:] = [following] * len(workers)
        return
    targets: dict[WorkerPhase, WorkerPhase | None] = {}  # most workers of a node are in the same phase
    for local_rank, phase in enumerate(found.workers):
        if phase not in targets:
            targets[phase] = cast(WorkerPhase | None, WORKER.step(phase, trigger))
        target = targets[phase]
        changes.append(Change(WORKER.name, f"{found.node}/{local_rank}", trigger, phase, target))
        if target is not None:
            found.workers[local_rank] = target


def reporter(state: JobState, data: Any) -> NodeState | None:
    """The node of a fact; None if the fact is stale: of another incarnation or an older round."""
    found = state.membership.current(data.node, data.incarnation)
    if found is None:
        return None
    return None if data.round < found.round else found


def answered(state: JobState, node_name: str, *commands: type[Any], round_: int | None = None) -> None:
    """Mark the orders of these kinds as answered by the node, up to a round."""
    for ordered in state.orders.open.values():
        command = ordered.command
        if isinstance(command, commands) and (round_ is None or getattr(command, "round", 0) <= round_):
            ordered.waiting.pop(node_name, None)


def answering(state: JobState, data: Any) -> tuple[NodeState, ActionState] | None:
    """The node and the order that a fact answers; None if the node has another incarnation or is not awaited."""
    found, ordered = state.membership.nodes.get(data.node), state.orders.open.get(data.effect)
    if found is None or ordered is None or ordered.waiting.get(data.node) != data.incarnation:
        return None
    return found, ordered


def await_others(state: JobState, event: Event) -> None:
    """Start the join window of the first round, once enough nodes for a world are available."""
    spec = state.spec
    if spec is None or timers.is_running(state, timers.JoinTimer()):
        return
    if usable(state.membership.available(), spec):
        timers.start(state, timers.JoinTimer(), event.time, spec.timing.join_window_s)


def progress(state: JobState, round_: int, step: int, absolute: bool) -> None:
    """Record a completed step."""
    training = state.training
    if round_ > training.step_round or training.step is None or step > training.step:
        training.step, training.step_round, training.step_absolute = step, round_, absolute
    training.reports_steps = True

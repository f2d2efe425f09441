"""What a leading master tells whom, and whose silence counts: the parts of its work that need no waiting. Pure.

Turned by ``runtime/master`` in production and by ``sim`` in a simulation. What a fact leads to is ``decide.py``; here
is what follows for the agents once it is durable, and who may take part.
"""

from collections.abc import Iterable, Sequence

import attrs

from ftcore.engine.orders import Order, order_for, orders_of
from ftcore.engine.turn import MASTER
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import Event
from ftcore.states.job import ENDED
from ftcore.states.model import JobState


@attrs.frozen
class Answers:
    """What agents are told of a batch that has become durable.

    Args:
        acks: by node and incarnation: its facts up to this number are in the log.
        orders: by node, oldest first.
    """

    acks: dict[tuple[str, str], int]
    orders: dict[str, list[Order]]


def answers_to(state: JobState, batch: Iterable[Event]) -> Answers:
    """What agents are told of a batch.

    Args:
        state: the state behind the batch, and not beyond.
        batch: durable events.
    """
    acks: dict[tuple[str, str], int] = {}
    orders: dict[str, list[Order]] = {}
    for event in batch:
        if event.id.source != MASTER:
            acks[event.id.source, event.id.incarnation] = event.id.n
        if isinstance(event.data, ActionOrdered):
            action = state.actions.get(event.data.effect)
            for node, order in orders_of(state, action).items() if action is not None else ():
                orders.setdefault(node, []).append(order)
    return Answers(acks, orders)


def unanswered(state: JobState, node: str, incarnation: str) -> list[Order]:
    """The orders that this life of a node has not answered: what it is told again when it connects."""
    return [
        order_for(state, action, node) for action in state.actions.values() if action.waiting.get(node) == incarnation
    ]


def acknowledged(state: JobState, node: str, incarnation: str) -> int:
    """The number of the node's last fact in the log, if it is of this life; else 0."""
    source = state.sources.get(node)
    return source[1] if source is not None and source[0] == incarnation else 0


@attrs.frozen
class Refusal:
    """Why an agent cannot take part.

    Args:
        reason: why, and what to do.
        rejoin: a new life may try again, once this one's workers are gone.
    """

    reason: str
    rejoin: bool


def is_known(state: JobState, node: str, incarnation: str) -> bool:
    """Whether this life of the node has joined before."""
    found = state.nodes.get(node)
    return found is not None and found.incarnation == incarnation


def refusal(state: JobState, node: str, incarnation: str, acked: int, occupied: bool) -> Refusal | None:
    """Why an agent that calls cannot take part under that name and life; None: nothing speaks against it.

    Args:
        state: the folded state.
        node: its name.
        incarnation: its life.
        acked: its facts up to this number were acknowledged; above 0, its life in the log has begun.
        occupied: another agent of that name was heard a moment ago.
    """
    found = state.nodes.get(node)
    if found is not None and found.incarnation == incarnation:
        return None if found.alive else Refusal(f"this incarnation of {node} is {found.phase}", rejoin=True)
    if acked:
        return Refusal(f"another agent has taken the place of this one on {node}", rejoin=True)
    if occupied and found is not None:
        return Refusal(
            f"a node named {node} takes part already (on {found.host}); give every ftrun of a job its own --node-id",
            rejoin=False,
        )
    return None


def wants_run(state: JobState) -> bool:
    """Whether a newcomer begins a run, since none lives."""
    return state.run == 0 or (state.phase in ENDED and not state.alive())


def wrong_job(job: str) -> Refusal:
    """A newcomer that was asked to run something else than the living run does."""
    return Refusal(
        f"job {job} is under way with another command or another number of nodes; "
        f"choose another --job, or end that one with `ftctl stop --job {job}`",
        rejoin=False,
    )


class Leases:
    """When each node was last heard of.

    House rule: only time during which this process was really running counts against a node. A master that was frozen
    or starved learns of it by the gap between its own looks and gives the gap to everybody.

    Args:
        lease_ns: nanoseconds of silence after which a node is lost.
        look_ns: nanoseconds between two looks, as planned.
    """

    def __init__(self, lease_ns: int, look_ns: int) -> None:
        self._lease = lease_ns
        self._look = look_ns
        self._heard: dict[tuple[str, str], int] = {}
        self._looked = 0

    def heard(self, node: str, incarnation: str, mono_ns: int) -> None:
        """A frame came."""
        self._heard[node, incarnation] = mono_ns

    def last_heard(self, node: str, incarnation: str) -> int:
        """When a frame came last, in monotonic nanoseconds; 0 if never."""
        return self._heard.get((node, incarnation), 0)

    def silent(self, expected: Sequence[tuple[str, str]], mono_ns: int) -> list[tuple[str, str]]:
        """The expected nodes whose lease is over; one that was never heard of starts its lease now."""
        if self._looked and mono_ns - self._looked > 2 * self._look:
            gap = mono_ns - self._looked - self._look
            for key in self._heard:
                self._heard[key] += gap
        self._looked = mono_ns
        wanted = set(expected)
        for key in [key for key in self._heard if key not in wanted]:
            del self._heard[key]
        for key in wanted:
            self._heard.setdefault(key, mono_ns)
        return [key for key in sorted(wanted) if mono_ns - self._heard[key] > self._lease]

"""What a leading master tells whom, and whose silence counts: the parts of its work that need no waiting. Pure.

Turned by ``runtime/master`` in production and by ``sim`` in a simulation. What a fact leads to is ``decide.py``; here
is what follows for the agents once it is durable, and who may take part.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ftcore.commands import ReleaseNode
from ftcore.engine.orders import Order, order_for, orders_of
from ftcore.engine.turn import MASTER
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import Event
from ftcore.events.job import OWN_FIELDS, JobSpec
from ftcore.ids import seconds
from ftcore.states.model import Contradicted, JobState
from ftcore.states.phases import has_ended, has_left
from ftcore.timing import Timing


@attrs.frozen
class Answers:
    """What agents are told of a batch that has become durable.

    Args:
        acks: by node and incarnation: its facts up to this number are in the log.
        orders: by node and incarnation, oldest first; what was ordered from one life is nothing to the next.
    """

    acks: dict[tuple[str, str], int]
    orders: dict[tuple[str, str], list[Order]]


def answers_to(state: JobState, batch: Iterable[Event]) -> Answers:
    """What agents are told of a batch.

    Args:
        state: the state behind the batch, and not beyond.
        batch: durable events.
    """
    acks: dict[tuple[str, str], int] = {}
    orders: dict[tuple[str, str], list[Order]] = {}
    for event in batch:
        if event.id.source != MASTER:
            acks[event.id.source, event.id.incarnation] = event.id.n
        if isinstance(event.data, ActionOrdered):
            action = state.actions.get(event.data.effect)
            if action is not None:
                for node, order in orders_of(state, action).items():
                    orders.setdefault((node, action.waiting[node]), []).append(order)
    return Answers(acks, orders)


def unanswered(state: JobState, node: str, incarnation: str) -> list[Order]:
    """The orders that this life of a node has not answered: what it is told again when it connects."""
    return [
        order_for(state, action, node) for action in state.actions.values() if action.waiting.get(node) == incarnation
    ]


def acknowledged(durable: Mapping[str, tuple[str, int]], node: str, incarnation: str) -> int:
    """The number of the node's last fact in the log, if it is of this life; else 0.

    Args:
        durable: as ``JobState.sources``, but of what is durable: a state that runs ahead of the log would have an agent
            forget facts that may never land.
        node: its name.
        incarnation: its life.
    """
    life, n = durable.get(node, ("", 0))
    return n if life == incarnation else 0


def listens_to(state: JobState, node: str, caller: str, life: str) -> bool:
    """Whether a fact of this life is taken from an agent that calls.

    An agent hands on what the life before it could not tell. What lay on its host since an older one was told by those
    that came after it, on another host maybe, and would be taken for new. A life that was given up tells nothing more:
    what happened to its workers since then is no fault of those that train without it.

    Args:
        state: the folded state.
        node: the node's name.
        caller: the life that calls.
        life: the life that the fact is of.
    """
    found = state.nodes.get(node)
    return life == caller or found is None or (found.incarnation == life and found.alive)


@attrs.frozen
class Refusal:
    """Why an agent cannot take part.

    Args:
        reason: why, and what to do.
        rejoin: a new life may try again, once this one's workers are gone.
        release: the run that it is of has ended without it, or it is kept out: it leaves with this.
        kind: what ``caller.refused`` says of one that can neither rejoin nor is released.
    """

    reason: str
    rejoin: bool
    release: ReleaseNode | None = None
    kind: str = "name"


def is_known(state: JobState, node: str, incarnation: str) -> bool:
    """Whether this life of the node has joined before."""
    found = state.nodes.get(node)
    return found is not None and found.incarnation == incarnation


def takes_part(state: JobState, node: str, incarnation: str) -> bool:
    """Whether this life of the node has joined and is not over."""
    found = state.nodes.get(node)
    return found is not None and found.alive and found.incarnation == incarnation


def refusal(
    state: JobState, node: str, incarnation: str, acked: int, occupied: bool, again: bool = False, launch: str = ""
) -> Refusal | None:
    """Why an agent that calls cannot take part under that name and life; None: nothing speaks against it.

    Args:
        state: the folded state.
        node: its name.
        incarnation: its life.
        acked: its facts up to this number were acknowledged; above 0, its life in the log has begun.
        occupied: another agent of that name was heard a moment ago.
        again: this agent took part before, in an older life.
        launch: the one call that started this agent and others, if one did.
    """
    found = state.nodes.get(node)
    mine = found is not None and found.incarnation == incarnation
    of_this_run = again or acked or (launch and launch == state.launch)
    if state.contradicted is Contradicted.RESUMED:
        of_this_run = False  # it is of a run that the log does not know
    if has_ended(state) and of_this_run and not (mine and found is not None and found.alive):
        # It was away when the run ended, or came too late for it; to join would begin another run, of this node alone.
        came = ReleaseNode(outcome=state.outcome, exit_code=state.exit_code, reason=state.reason)
        return Refusal(f"the run has {state.phase}", rejoin=False, release=came)
    if mine and found is not None:
        return None if found.alive else Refusal(f"this incarnation of {node} is {found.phase}", rejoin=True)
    if acked:
        return Refusal(f"another agent has taken the place of this one on {node}", rejoin=True)
    if node in state.quarantined and not has_ended(state):
        # To let it in and send it away again would fill the log, as often as its host starts it.
        reason = f"{node} is kept out: {state.quarantined[node]}; once it is repaired: ftctl admit {node}"
        return Refusal(reason, rejoin=False, release=ReleaseNode(outcome="released", exit_code=5, reason=reason))
    if occupied and found is not None:
        return Refusal(
            f"a node named {node} takes part already (on {found.host}); give every ftrun of a job its own --node-id",
            rejoin=False,
        )
    return None


def wants_run(state: JobState) -> bool:
    """Whether a newcomer begins a run, since none lives."""
    if state.contradicted is Contradicted.OPEN:
        return False
    return state.run == 0 or has_left(state)


@attrs.frozen
class Mark:
    """How far somebody knows a log to be durable.

    Args:
        log_id: the log's identity.
        seq: an event of it.
        digest: hex digest of the log up to there.
    """

    log_id: str
    seq: int
    digest: str


def contradiction(mark: Mark, log: Mark, digest: str) -> str:
    """What of a node's mark cannot be true if the log is the one that the node takes part in; empty: nothing.

    Args:
        mark: what the node knows.
        log: what is durable of the log now.
        digest: the log's digest at the node's seq; empty if the log does not hold that event any more.
    """
    if mark.log_id != log.log_id:
        return f"the log was deleted or replaced: it is log {log.log_id[:8]}, the node takes part in {mark.log_id[:8]}"
    if mark.seq > log.seq:
        return f"the log was restored from an older copy: it ends at event {log.seq}, the node has seen {mark.seq}"
    if digest and digest != mark.digest:
        return f"the log was restored from an older copy and continued: its event {mark.seq} is not the one of then"
    return ""


def wrong_job(job: str, asked: JobSpec | None = None, wanted: JobSpec | None = None) -> Refusal:
    """A newcomer that was asked to run something else than the living run does.

    Args:
        job: the job's name.
        asked: what the newcomer was asked to run.
        wanted: what the living run does.
    """
    told = _differences(asked, wanted) if asked is not None and wanted is not None else []
    what = f" asks for something else: {'; '.join(told)}" if told else " asks for something else"
    return Refusal(
        f"job {job} is under way, and this node{what}; choose another name for the job (--job), ask for the same, or "
        f"end that one with `ftctl stop --job {job}`",
        rejoin=False,
        kind="spec",
    )


_FLAGS = {
    "argv": "the command",
    "nodes_min": "the least of --nnodes",
    "nodes_max": "the most of --nnodes",
    "node_unit": "--node-unit",
    "sizes": "--node-sizes",
    "order_by": "--order-by",
    "role": "--role",
    "cwd": "the directory",
}
"""Fields of a spec as its user knows them."""

_SHOWN_CHARS_MAX = 80


def _differences(asked: JobSpec, wanted: JobSpec) -> list[str]:
    found = []
    for field in attrs.fields(JobSpec):
        if field.name in OWN_FIELDS and asked.own_commands and wanted.own_commands:
            continue
        here, there = getattr(asked, field.name), getattr(wanted, field.name)
        if here == there:
            continue
        if field.name == "timing":
            found.append(_other_times(here, there))
        elif field.name in _FLAGS:
            found.append(f"{_FLAGS[field.name]} is {_shown(here)} here and {_shown(there)} there")
        else:
            found.append(f"{field.name} differs")
    return found


def _other_times(here: Timing, there: Timing) -> str:
    if here.join_window_s != there.join_window_s:
        return f"--join-window is {here.join_window_s:g} s here and {there.join_window_s:g} s there"
    return "time constants differ"


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    text = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
    return text or "nothing"


def due(deadline: int, led_since: int, lease_s: float) -> int:
    """When a deadline of the folded state is over, in nanoseconds since the epoch.

    A new master gives everybody two leases first: what was answered while nobody led lies in the agents' outboxes, and
    an answer that nobody could take is not a missing one. So does one whose log could not be written: what it decided
    then was ordered only after that.

    Args:
        deadline: as the state has it.
        led_since: when this master's term began, or when its log could be written again, if that was later.
        lease_s: the lease of nodes.
    """
    return max(deadline, led_since + seconds(2 * lease_s))


class Leases:
    """When each node was last heard of.

    A new master does not know who is still there: its nodes have to find it first, and have two leases. Once one has
    come, those that have not are lost a lease after the last that came for the first time: a small job learns of its
    loss soon, and of thousands, who wait for one another at the door, nobody is lost for standing in the queue.

    House rule: only time during which this process was really running counts against a node. A master that was frozen
    or starved learns of it by the gap between its own looks and gives the gap to everybody. And who has not come yet
    finds this master by the log's store alone, so time during which that does not answer does not count either.

    Args:
        lease_ns: nanoseconds of silence after which a node is lost.
        look_ns: nanoseconds between two looks, as planned.
    """

    def __init__(self, lease_ns: int, look_ns: int) -> None:
        self._lease = lease_ns
        self._look = look_ns
        self._heard: dict[tuple[str, str], int] = {}
        self._looked = 0
        self._expected: frozenset[tuple[str, str]] = frozenset()
        self._missing: set[tuple[str, str]] = set()
        self._arrival = 0

    def heard(self, node: str, incarnation: str, mono_ns: int) -> None:
        """A frame came, not before any other that came."""
        key = (node, incarnation)
        if key in self._missing:
            self._missing.discard(key)
            self._arrival = mono_ns
        self._heard.pop(key, None)
        self._heard[key] = mono_ns  # at the end: they stand in the order in which they were heard
        self._looked = self._looked or mono_ns  # a gap may come before the first look

    def last_heard(self, node: str, incarnation: str) -> int:
        """When a frame came last, in monotonic nanoseconds; 0 if never."""
        return self._heard.get((node, incarnation), 0)

    @property
    def awaited(self) -> bool:
        """Somebody was not heard yet who was expected at the last look."""
        return bool(self._missing)

    def excuse(self, mono_ns: int) -> None:
        """Who has not come could not find this master until now: they have two leases again."""
        self._arrival = mono_ns + self._lease

    def silent(self, expected: frozenset[tuple[str, str]], mono_ns: int) -> list[tuple[str, str]]:
        """The expected nodes whose lease is over.

        Args:
            expected: all nodes that are to be heard of. While it is the same object as at the last look, only the
                silent ones are looked at: thousands may beat, and nobody comes or goes.
            mono_ns: now.
        """
        if self._looked and mono_ns - self._looked > 2 * self._look:
            gap = mono_ns - self._looked - self._look
            self._arrival += gap
            for key, heard in self._heard.items():
                self._heard[key] = min(heard + gap, mono_ns)
        self._looked = mono_ns
        if expected is not self._expected:
            self._expect(expected, mono_ns)
        silent = []
        for key, heard in self._heard.items():
            if mono_ns - heard <= self._lease:
                break
            if key in expected:
                silent.append(key)
        if mono_ns - self._arrival > self._lease:
            silent += self._missing
        return sorted(silent)

    def _expect(self, expected: frozenset[tuple[str, str]], mono_ns: int) -> None:
        missing = set(expected - self._heard.keys())
        if missing - self._missing:
            # the first look, or nodes that are new in the log
            self._arrival = mono_ns + (self._lease if len(missing) == len(expected) else 0)
        self._expected, self._missing = expected, missing
        if len(self._heard) > len(expected):
            self._heard = {key: heard for key, heard in self._heard.items() if key in expected}

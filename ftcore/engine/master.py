"""The leading master's answers to agents, admission of agents, and leases of nodes. Pure.

Used by ``runtime/master`` in production and by ``sim`` in a simulation. ``decide.py`` decides what follows from a fact;
this module computes what agents receive once the decisions are durable, and which agents may take part.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import attrs

from ftcore.commands import ReleaseNode
from ftcore.engine.dispatch import release_of
from ftcore.engine.orders import Order, order_for, orders_of
from ftcore.engine.turn import MASTER
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import Event
from ftcore.events.job import OWN_FIELDS, JobSpec
from ftcore.ids import seconds
from ftcore.states.model import Contradicted, JobState
from ftcore.states.phases import has_ended, has_left
from ftcore.timing import Timing
from ftcore.wording import about


@attrs.frozen
class Answers:
    """The acknowledgements and orders for agents after a batch has become durable.

    Args:
        acks: by node and incarnation: number of its newest fact in the log.
        orders: by node and incarnation, oldest first; an order is for one incarnation only.
    """

    acks: dict[tuple[str, str], int]
    orders: dict[tuple[str, str], list[Order]]


def answers_to(state: JobState, batch: Iterable[Event]) -> Answers:
    """Compute the answers to agents for a batch.

    Args:
        state: the folded state exactly at the end of the batch.
        batch: durable events.
    """
    acks: dict[tuple[str, str], int] = {}
    orders: dict[tuple[str, str], list[Order]] = {}
    for event in batch:
        if event.id.source != MASTER:
            acks[event.id.source, event.id.incarnation] = event.id.n
        if isinstance(event.data, ActionOrdered):
            action = state.orders.open.get(event.data.effect)
            if action is not None:
                for node, order in orders_of(state, action).items():
                    orders.setdefault((node, action.waiting[node]), []).append(order)
    return Answers(acks, orders)


def unanswered(state: JobState, node: str, incarnation: str) -> list[Order]:
    """The orders that an incarnation has not answered; they are sent again when it connects."""
    actions = state.orders.open.values()
    return [order_for(state, action, node) for action in actions if action.waiting.get(node) == incarnation]


def acknowledged(durable: Mapping[str, tuple[str, int]], node: str, incarnation: str) -> int:
    """The number of an incarnation's newest fact in the log; 0 if there is none.

    Args:
        durable: as ``LogState.sources``, but for durable events only; otherwise an agent would drop facts that may
            never be appended.
        node: name of the node.
        incarnation: the agent's incarnation.
    """
    life, n = durable.get(node, ("", 0))
    return n if life == incarnation else 0


def accepts_facts_of(state: JobState, node: str, caller: str, life: str) -> bool:
    """Whether an agent may report facts of an incarnation.

    An agent reports the remaining facts of its previous incarnation. Facts of older incarnations are refused: they were
    already reported, maybe from another host, and would look new. Facts of an incarnation that was declared lost are
    refused as well: its workers are no longer part of the job.

    Args:
        state: the folded state.
        node: name of the node.
        caller: incarnation of the connected agent.
        life: incarnation of the fact.
    """
    found = state.membership.nodes.get(node)
    return life == caller or found is None or (found.incarnation == life and found.alive)


@attrs.frozen
class Refusal:
    """Why an agent cannot take part.

    Args:
        reason: why, and what to do.
        rejoin: a new incarnation may try again after the workers of this one are stopped.
        release: the agent must leave with this, because its run has ended or its node is quarantined.
        kind: the kind in ``caller.refused``, if the agent can neither rejoin nor is released.
    """

    reason: str
    rejoin: bool
    release: ReleaseNode | None = None
    kind: str = "name"


def is_known(state: JobState, node: str, incarnation: str) -> bool:
    """Whether this incarnation of the node has joined."""
    found = state.membership.nodes.get(node)
    return found is not None and found.incarnation == incarnation


def takes_part(state: JobState, node: str, incarnation: str) -> bool:
    """Whether this incarnation of the node has joined and is alive."""
    found = state.membership.nodes.get(node)
    return found is not None and found.alive and found.incarnation == incarnation


def refusal(
    state: JobState, node: str, incarnation: str, acked: int, occupied: bool, again: bool = False, launch: str = ""
) -> Refusal | None:
    """Why a connecting agent cannot take part with its name and incarnation; None if it can.

    Args:
        state: the folded state.
        node: name of the node.
        incarnation: incarnation of the agent.
        acked: number of its newest acknowledged fact; above 0, this incarnation is in the log.
        occupied: a recent heartbeat came from another agent with this name.
        again: this agent took part before, in an older incarnation.
        launch: ID of the launch that started this agent together with others; empty if there is none.
    """
    found = state.membership.nodes.get(node)
    mine = found is not None and found.incarnation == incarnation
    of_this_run = again or acked or (launch and launch == state.launch)
    if state.log.contradicted is Contradicted.RESUMED:
        of_this_run = False  # its run is not in this log
    if has_ended(state) and of_this_run and not (mine and found is not None and found.alive):
        # It was unreachable when the run ended, or is late: to join would begin another run with this node alone.
        release = release_of(state)
        return Refusal(f"the run has {state.phase}", rejoin=False, release=release)
    if mine and found is not None:
        return None if found.alive else Refusal(f"this incarnation of {node} is {found.phase}", rejoin=True)
    if acked:
        return Refusal(f"another agent has replaced this one on {node}", rejoin=True)
    if node in state.membership.quarantined and not has_ended(state):
        # To admit and release it again would fill the log whenever its host starts the agent.
        why = about(node, state.membership.quarantined[node])
        reason = f"{node} is quarantined: {why}; after the repair: ftctl admit {node}"
        return Refusal(reason, rejoin=False, release=ReleaseNode(outcome="released", exit_code=5, reason=reason))
    if occupied and found is not None:
        return Refusal(
            f"a node named {node} already takes part (on {found.host}); give every ftrun of a job its own --node-id",
            rejoin=False,
        )
    return None


def wants_run(state: JobState) -> bool:
    """Whether a joining agent begins a run, because there is no current one."""
    if state.log.contradicted is Contradicted.OPEN:
        return False
    return state.run == 0 or has_left(state)


@attrs.frozen
class DurableMark:
    """A position up to which a log is known to be durable.

    Args:
        log_id: identity of the log.
        seq: sequence number of an event.
        digest: hex digest of the log up to this event.
    """

    log_id: str
    seq: int
    digest: str


def contradiction(mark: DurableMark, log: DurableMark, digest: str) -> str:
    """How a node's mark contradicts the log; empty if it does not.

    Args:
        mark: the position that the node has seen.
        log: the log's durable position now.
        digest: digest of the log at the node's position; empty if the log no longer has that event.
    """
    if mark.log_id != log.log_id:
        return f"the log was deleted or replaced: it is log {log.log_id[:8]}, the node takes part in {mark.log_id[:8]}"
    if mark.seq > log.seq:
        return f"the log was restored from an older copy: it ends at event {log.seq}, the node has seen {mark.seq}"
    if digest and digest != mark.digest:
        return f"the log was restored from an older copy and continued: its event {mark.seq} differs from the original"
    return ""


def wrong_job(job: str, asked: JobSpec | None = None, wanted: JobSpec | None = None) -> Refusal:
    """The refusal of an agent whose job specification differs from that of the current run.

    Args:
        job: name of the job.
        asked: specification of the agent.
        wanted: specification of the run.
    """
    found = _differences(asked, wanted) if asked is not None and wanted is not None else []
    differences = f": {'; '.join(found)}" if found else ""
    return Refusal(
        f"job {job} is already running with a different specification{differences}; use another job name (--job), the "
        f"same specification, or end the running job with `ftctl stop --job {job}`",
        rejoin=False,
        kind="spec",
    )


_FLAGS = {
    "argv": "the command",
    "nodes_min": "the minimum of --nnodes",
    "nodes_max": "the maximum of --nnodes",
    "node_unit": "--node-unit",
    "sizes": "--node-sizes",
    "order_by": "--order-by",
    "role": "--role",
    "cwd": "the directory",
    "batch": "--global-batch",
}
"""Fields of a job specification, as named on the command line."""

_SHOWN_CHARS_MAX = 80


def _differences(asked: JobSpec, wanted: JobSpec) -> list[str]:
    found = []
    for name in JobSpec.__struct_fields__:
        if name in OWN_FIELDS and asked.own_commands and wanted.own_commands:
            continue
        here, there = getattr(asked, name), getattr(wanted, name)
        if here == there:
            continue
        if name == "timing":
            found.append(_other_times(here, there))
        elif name in _FLAGS:
            found.append(f"{_FLAGS[name]} is {_shown(here)} here and {_shown(there)} there")
        else:
            found.append(f"{name} differs")
    return found


def _other_times(here: Timing, there: Timing) -> str:
    if here.join_window_s != there.join_window_s:
        return f"--join-window is {here.join_window_s:g} s here and {there.join_window_s:g} s there"
    return "time constants differ"


def _shown(value: Any) -> str:
    text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    text = "nothing" if value is None else text
    text = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
    return text or "nothing"


def due(deadline: int, led_since: int, lease_s: float) -> int:
    """When a deadline of the folded state expires, in nanoseconds since the epoch.

    A deadline does not expire before two leases of this master's term: answers from the time without a leader are still
    in the agents' outboxes. The same holds after the log was not writable, because orders were delayed.

    Args:
        deadline: the deadline in the folded state.
        led_since: start of this master's term, or the time since which the log is writable again, if later.
        lease_s: lease of nodes in seconds.
    """
    return max(deadline, led_since + seconds(2 * lease_s))


class Leases:
    """The time of each node's last heartbeat.

    Nodes must find a new master first, so it gives them two leases. Once a node has connected, the missing ones are
    lost one lease after the last first-time connection. So a small job detects a lost node soon, and in a job with
    thousands of nodes none is lost while it waits to be accepted.

    Only time during which this process was running counts against a node. A master that was frozen or starved detects
    it by the gap between two of its checks, and extends all leases by that gap. Nodes that have not connected find the
    master through the store only, so time during which the store does not answer does not count either.

    Args:
        lease_ns: nanoseconds without a heartbeat after which a node is lost.
        look_ns: planned nanoseconds between two checks.
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
        """Record a frame; ``mono_ns`` must not be earlier than that of the previous frame."""
        key = (node, incarnation)
        if key in self._missing:
            self._missing.discard(key)
            self._arrival = mono_ns
        self._heard.pop(key, None)
        self._heard[key] = mono_ns  # at the end: the dict is ordered by time
        self._looked = self._looked or mono_ns  # there may be a gap before the first check

    def last_heard(self, node: str, incarnation: str) -> int:
        """Time of the last frame in monotonic nanoseconds; 0 if there was none."""
        return self._heard.get((node, incarnation), 0)

    @property
    def awaited(self) -> bool:
        """Whether a node that was expected at the last check has not connected yet."""
        return bool(self._missing)

    def excuse(self, mono_ns: int, disconnected: Collection[tuple[str, str]] = ()) -> None:
        """Give missing nodes two leases again, because they could not find this master until now.

        Args:
            mono_ns: the current time in monotonic nanoseconds.
            disconnected: incarnations whose stream has ended and that could not connect again; they get a new lease.
        """
        self._arrival = mono_ns + self._lease
        for key in disconnected:
            if self._heard.pop(key, None) is not None:
                self._heard[key] = mono_ns

    def silent(self, expected: frozenset[tuple[str, str]], mono_ns: int) -> list[tuple[str, str]]:
        """The expected nodes whose lease has expired.

        Args:
            expected: the incarnations that should send heartbeats. As long as this is the same object as in the last
                call, only expired leases are examined, which keeps the check cheap for thousands of nodes.
            mono_ns: the current time in monotonic nanoseconds.
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
            # the first check, or nodes that are new in the log
            self._arrival = mono_ns + (self._lease if len(missing) == len(expected) else 0)
        self._expected, self._missing = expected, missing
        if len(self._heard) > len(expected):
            self._heard = {key: heard for key, heard in self._heard.items() if key in expected}

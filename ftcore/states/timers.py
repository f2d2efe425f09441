"""The timers of a job: a closed family, with the consequence of each expiry.

A timer runs while ``JobState.deadlines`` has its key, for example ``settle/3``. The key is also in
``deadline.expired`` and in snapshots, so it is part of the log format.

House rules: no other module builds or parses a key. The key of a newer ftcore is kept: ``parse`` returns an
``UnknownTimer``, which expires without a consequence.
"""

from typing import ClassVar

import attrs

from ftcore.ids import seconds
from ftcore.states.job import LIVING, JobPhase
from ftcore.states.model import JobState

P = JobPhase


@attrs.frozen
class Timer:
    """A timer of a job.

    Attributes:
        kind: the first part of its key.
        expiry: the consequence of its expiry.
        phases: phases of the job in which it may run; timers that run when the job becomes stuck keep running.
        of_plan: whether it belongs to the plan of the open incident and is cancelled with the plan.
    """

    kind: ClassVar[str]
    expiry: ClassVar[str]
    phases: ClassVar[tuple[JobPhase, ...]]
    of_plan: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """The key in events and snapshots."""
        return self.kind


@attrs.frozen
class _RoundTimer(Timer):
    of_plan = True
    round: int

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.round}"


@attrs.frozen
class JoinTimer(Timer):
    """Enough nodes for the first round have joined; more nodes may still join."""

    kind = "join"
    expiry = "the first round is planned with the nodes that have joined"
    phases = (P.ASSEMBLING, P.CHECKING, P.RECOVERING)


@attrs.frozen
class BackoffTimer(_RoundTimer):
    """The planned round is delayed, because earlier rounds failed."""

    kind = "backoff"
    expiry = "the world is formed as soon as its nodes and its store are ready"
    phases = (P.FORMING,)


@attrs.frozen
class WindowTimer(_RoundTimer):
    """The planned round waits for all nodes that its plan requests."""

    kind = "window"
    expiry = "the world is formed with fewer nodes, if the job can train with them"
    phases = (P.FORMING,)


@attrs.frozen
class ReturnTimer(_RoundTimer):
    """The planned round waits for nodes without which it cannot be formed."""

    kind = "return"
    expiry = "the plan has failed: the incident is escalated"
    phases = (P.FORMING,)


@attrs.frozen
class SettleTimer(_RoundTimer):
    """The first wait for a plan's outcome: a completed step of every member."""

    kind = "settle"
    expiry = "the incident is resolved if some member has completed a step, or if the job reports no steps"
    phases = (P.RUNNING, P.PAUSED)


@attrs.frozen
class OutcomeTimer(_RoundTimer):
    """The longest wait for a plan's outcome, as the policy declares it: a completed step of every member."""

    kind = "outcome"
    expiry = "the plan has failed: the incident is escalated"
    phases = (P.RUNNING, P.PAUSED)


@attrs.frozen
class ActionTimer(Timer):
    """An order waits for the answers of its nodes, of the platform or of a policy."""

    kind = "action"
    expiry = "the order has failed"
    phases = LIVING
    effect: str

    @property
    def key(self) -> str:
        """The key in events and snapshots."""
        return f"{self.kind}/{self.effect}"


@attrs.frozen
class DepartureTimer(Timer):
    """A deferred departure: nodes leave only after their replacements are ready."""

    kind = "departure"
    expiry = "the plan has failed if it launches replacements; if not, the nodes leave now"
    phases = (P.RUNNING,)
    of_plan = True


@attrs.frozen
class DiagnosisTimer(Timer):
    """No node is replaced or quarantined yet: other failures may not have been reported."""

    kind = "diagnosis"
    expiry = "the nodes at fault are replaced or quarantined"
    phases = (P.RECOVERING,)
    of_plan = True


@attrs.frozen
class OfferTimer(Timer):
    """A policy declined an opportunity for now."""

    kind = "offer"
    expiry = "the opportunity is considered again"
    phases = tuple(phase for phase in LIVING if phase is not P.ASSEMBLING)


@attrs.frozen
class DisruptionTimer(Timer):
    """The training is paused until a disruption ends."""

    kind = "disruption"
    expiry = "the disruption is no longer awaited: its node is drained, or training goes on"
    phases = tuple(phase for phase in LIVING if phase is not P.ASSEMBLING)
    disruption: str

    @property
    def key(self) -> str:
        """The key in events and snapshots."""
        return f"{self.kind}/{self.disruption}"


@attrs.frozen
class ManifestTimer(Timer):
    """A manifest could not be written."""

    kind = "manifest"
    expiry = "manifests that could not be written are ordered again"
    phases = tuple(phase for phase in LIVING if phase is not P.ASSEMBLING)


@attrs.frozen
class UnknownTimer(Timer):
    """A timer that only a newer ftcore defines."""

    kind = "?"
    expiry = "nothing"
    phases = LIVING
    text: str

    @property
    def key(self) -> str:
        """The key in events and snapshots."""
        return self.text


TIMERS: tuple[type[Timer], ...] = (
    JoinTimer,
    DiagnosisTimer,
    BackoffTimer,
    WindowTimer,
    ReturnTimer,
    SettleTimer,
    OutcomeTimer,
    ActionTimer,
    DepartureTimer,
    OfferTimer,
    DisruptionTimer,
    ManifestTimer,
)
"""All kinds except ``UnknownTimer``."""

_PLAIN: dict[str, Timer] = {
    timer.kind: timer for timer in (JoinTimer(), DepartureTimer(), DiagnosisTimer(), OfferTimer(), ManifestTimer())
}
_OF_ROUND: dict[str, type[_RoundTimer]] = {kind.kind: kind for kind in TIMERS if issubclass(kind, _RoundTimer)}


def parse(key: str) -> Timer:
    """The timer of a key from an event or a snapshot; ``UnknownTimer`` if no kind has this key."""
    kind, _, rest = key.partition("/")
    timer: Timer | None = None
    if kind == ActionTimer.kind:
        timer = ActionTimer(rest)
    elif kind == DisruptionTimer.kind:
        timer = DisruptionTimer(rest)
    elif kind in _OF_ROUND and rest.isdecimal() and len(rest) < 20:
        timer = _OF_ROUND[kind](int(rest))
    else:
        timer = _PLAIN.get(kind)
    return timer if timer is not None and timer.key == key else UnknownTimer(key)


def start(state: JobState, timer: Timer, since: int, after_s: float) -> None:
    """Start or restart a timer.

    Args:
        state: the folded state; changed.
        timer: the timer.
        since: start, in nanoseconds since the epoch.
        after_s: seconds from the start to the expiry.
    """
    state.deadlines[timer.key] = since + seconds(after_s)


def cancel(state: JobState, *timers: Timer) -> None:
    """Stop these timers; a timer that does not run is skipped."""
    for timer in timers:
        state.deadlines.pop(timer.key, None)


def cancel_of_plan(state: JobState) -> None:
    """Stop the timers of the plan of the open incident."""
    for key in [key for key in state.deadlines if parse(key).of_plan]:
        del state.deadlines[key]


def cancel_all(state: JobState) -> None:
    """Stop every timer."""
    state.deadlines.clear()


def is_running(state: JobState, timer: Timer) -> bool:
    """Whether a timer was started and has neither expired nor been cancelled."""
    return timer.key in state.deadlines


def due(state: JobState, timer: Timer) -> int | None:
    """Expiry of a timer, in nanoseconds since the epoch; None if the timer does not run."""
    return state.deadlines.get(timer.key)


def all_due(state: JobState) -> dict[str, int]:
    """Return when each running timer expires, in nanoseconds of the master's clock, by key."""
    return dict(state.deadlines)


def expire(state: JobState, key: str, due_at: int) -> Timer | None:
    """Stop a timer whose expiry is a fact.

    Args:
        state: the folded state; changed.
        key: the timer's key in the fact.
        due_at: the expiry in the fact, in nanoseconds since the epoch; 0: not recorded, any expiry matches.

    Returns:
        The timer; None if it was cancelled or restarted before the fact was recorded.
    """
    if due_at and state.deadlines.get(key) != due_at:
        return None
    state.deadlines.pop(key, None)
    return parse(key)


def next_deadline(state: JobState) -> tuple[str, int] | None:
    """The key and time (nanoseconds since the epoch) of the timer that expires first."""
    if not state.deadlines:
        return None
    key = min(state.deadlines, key=lambda name: (state.deadlines[name], name))
    return key, state.deadlines[key]

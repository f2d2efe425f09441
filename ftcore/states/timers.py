"""The timers of a job: a closed family, what each one limits, and what its expiry leads to.

A timer runs while ``JobState.deadlines`` has its key. Such a key, as ``settle/3``, is also in ``deadline.expired`` and
in snapshots, so it is part of the format of a log.

House rules: no other module builds or parses a key. A key that a newer ftcore wrote stays what it is: ``parse`` makes
an ``Unknown`` of it, it expires as any other, and nothing follows.
"""

from typing import ClassVar

import attrs

from ftcore.ids import seconds
from ftcore.states.job import LIVING, JobPhase
from ftcore.states.model import JobState

P = JobPhase


@attrs.frozen
class Timer:
    """A timer of a job, by its kind and its key fields.

    Attributes:
        kind: the first part of its key.
        expiry: what its expiry leads to.
        phases: phases of the job in which it may run; in ``stuck``, those of the phase before run on.
        of_plan: whether it belongs to the plan of the open incident, and is cancelled with it.
    """

    kind: ClassVar[str]
    expiry: ClassVar[str]
    phases: ClassVar[tuple[JobPhase, ...]]
    of_plan: ClassVar[bool] = False

    @property
    def key(self) -> str:
        """The timer as events and snapshots have it."""
        return self.kind


@attrs.frozen
class _OfRound(Timer):
    of_plan = True
    round: int

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.round}"


@attrs.frozen
class Join(Timer):
    """Enough nodes for the first round have joined; more of them are awaited."""

    kind = "join"
    expiry = "the first round is planned with the nodes that have joined"
    phases = (P.ASSEMBLING, P.CHECKING, P.RECOVERING)


@attrs.frozen
class Backoff(_OfRound):
    """The planned round is held back, because rounds before it failed."""

    kind = "backoff"
    expiry = "the world is formed as soon as its nodes and its store are ready"
    phases = (P.FORMING,)


@attrs.frozen
class Window(_OfRound):
    """The planned round waits for all the nodes that its plan wants."""

    kind = "window"
    expiry = "the world is formed with fewer nodes, if the job can train with them"
    phases = (P.FORMING,)


@attrs.frozen
class Return(_OfRound):
    """The planned round waits for nodes that it cannot be formed without."""

    kind = "return"
    expiry = "the plan has failed: the incident is escalated"
    phases = (P.FORMING,)


@attrs.frozen
class Settle(_OfRound):
    """The outcome of a plan is awaited at first: a completed step of every member."""

    kind = "settle"
    expiry = "the incident is resolved if some member has completed a step, or if the job reports no steps"
    phases = (P.RUNNING, P.PAUSED)


@attrs.frozen
class Outcome(_OfRound):
    """A completed step of every member is awaited for as long as the policy allows."""

    kind = "outcome"
    expiry = "the plan has failed: the incident is escalated"
    phases = (P.RUNNING, P.PAUSED)


@attrs.frozen
class Action(Timer):
    """An order waits for the answers of its nodes, of the platform or of a policy."""

    kind = "action"
    expiry = "the order has failed"
    phases = LIVING
    effect: str

    @property
    def key(self) -> str:
        """The timer as events and snapshots have it."""
        return f"{self.kind}/{self.effect}"


@attrs.frozen
class Departure(Timer):
    """Newcomers are awaited that are to be ready before other nodes leave."""

    kind = "departure"
    expiry = "the plan has failed if it launches newcomers; if not, the nodes leave now"
    phases = (P.RUNNING,)
    of_plan = True


@attrs.frozen
class Diagnosis(Timer):
    """No node is given up yet: what failed with it may not have been reported."""

    kind = "diagnosis"
    expiry = "the nodes at fault are replaced or quarantined"
    phases = (P.RECOVERING,)
    of_plan = True


@attrs.frozen
class Offer(Timer):
    """An opportunity was declined."""

    kind = "offer"
    expiry = "the opportunity is considered again"
    phases = tuple(phase for phase in LIVING if phase is not P.ASSEMBLING)


@attrs.frozen
class Unknown(Timer):
    """A timer of a newer ftcore."""

    kind = "?"
    expiry = "nothing"
    phases = LIVING
    text: str

    @property
    def key(self) -> str:
        """The timer as events and snapshots have it."""
        return self.text


TIMERS: tuple[type[Timer], ...] = (
    Join,
    Diagnosis,
    Backoff,
    Window,
    Return,
    Settle,
    Outcome,
    Action,
    Departure,
    Offer,
)
"""Every kind there is."""

_PLAIN: dict[str, Timer] = {timer.kind: timer for timer in (Join(), Departure(), Diagnosis(), Offer())}
_OF_ROUND: dict[str, type[_OfRound]] = {kind.kind: kind for kind in TIMERS if issubclass(kind, _OfRound)}


def parse(key: str) -> Timer:
    """The timer that a key of an event or a snapshot means; ``Unknown`` if no kind has such a key."""
    kind, _, rest = key.partition("/")
    timer: Timer | None = None
    if kind == Action.kind:
        timer = Action(rest)
    elif kind in _OF_ROUND and rest.isdecimal() and len(rest) < 20:
        timer = _OF_ROUND[kind](int(rest))
    else:
        timer = _PLAIN.get(kind)
    return timer if timer is not None and timer.key == key else Unknown(key)


def start(state: JobState, timer: Timer, since: int, after_s: float) -> None:
    """Start a timer, or start it anew.

    Args:
        state: the folded state; changed.
        timer: which.
        since: nanoseconds since the epoch.
        after_s: the seconds from then on after which it expires.
    """
    state.deadlines[timer.key] = since + seconds(after_s)


def cancel(state: JobState, *timers: Timer) -> None:
    """Stop those of the timers that run."""
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
    """When a timer expires, in nanoseconds since the epoch; None if it does not run."""
    return state.deadlines.get(timer.key)


def expire(state: JobState, key: str, due_at: int) -> Timer | None:
    """Stop a timer whose expiry is a fact.

    Args:
        state: the folded state; changed.
        key: the timer, as the fact has it.
        due_at: when it expired, in nanoseconds since the epoch; 0: whenever it was.

    Returns:
        The timer; None if nothing expires: it was cancelled or started anew before the fact came.
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

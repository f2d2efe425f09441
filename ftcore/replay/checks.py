"""Named properties of a log, for ``ftctl bisect --check``: what every log of a master must satisfy.

They are the invariants of the protocol simulator (``sim/protocol/checkers.py``) that a log alone can show, without the
simulated world beside it. A check gets every event once, in order, and returns what is wrong with it.
"""

from collections.abc import Callable
from typing import Protocol

from ftcore.events.action import ActionDone, ActionFailed, ActionOrdered, ActionSuperseded
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentExhausted, IncidentOpened, IncidentResolved
from ftcore.events.job import JobFinished, JobSubmitted, LogSalvaged
from ftcore.events.policy import PolicyConsidered
from ftcore.events.registry import Kind
from ftcore.events.world import WorldFormed
from ftcore.replay.verification import Verifier


class LogCheck(Protocol):
    """A property of a log."""

    def feed(self, event: Event) -> str:
        """What is wrong with the next event; empty if nothing is."""


class FactsInOrder:
    """Facts of one incarnation have rising numbers, without repeats."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}

    def feed(self, event: Event) -> str:
        """See ``LogCheck.feed``."""
        if event.kind is not Kind.FACT or event.id.source == "master":
            return ""
        life = (event.id.source, event.id.incarnation)
        before, self._newest[life] = self._newest.get(life, 0), event.id.n
        return "" if event.id.n > before else f"fact {event.id.n} of {life[1]} follows its fact {before}"


class TermsRise:
    """Terms and times never decrease, and events are numbered without a gap."""

    def __init__(self) -> None:
        self._before: Event | None = None

    def feed(self, event: Event) -> str:
        """See ``LogCheck.feed``."""
        before, self._before = self._before, event
        if before is None:
            return ""
        if event.seq != before.seq + 1:
            return f"event {event.seq} follows event {before.seq}"
        if event.term < before.term:
            return f"term {event.term} follows term {before.term}"
        early = before.time - event.time
        return f"its time is {early} ns before that of event {before.seq}" if early > 0 else ""


class DecisionsFollowFacts:
    """A decision names the fact before it as its cause, and has its time."""

    def __init__(self) -> None:
        self._fact: Event | None = None

    def feed(self, event: Event) -> str:
        """See ``LogCheck.feed``."""
        if event.kind is Kind.FACT:
            self._fact = event
            return ""
        if self._fact is None:
            return "a decision without a fact before it"
        if event.type in ("job.parked", "log.salvaged"):
            return ""  # recorded without their fact
        if event.cause != self._fact.seq:
            return f"its cause is event {event.cause}, the fact before it is event {self._fact.seq}"
        return "" if event.time == self._fact.time else "its time is not that of its fact"


class OneIncident:
    """One incident is open at a time, and a run ends with none open; a policy is asked once per revision."""

    def __init__(self) -> None:
        self._open = ""
        self._asked: set[tuple[int, str]] = set()

    def feed(self, event: Event) -> str:
        """See ``LogCheck.feed``."""
        data = event.data
        if isinstance(data, IncidentOpened):
            before, self._open, self._asked = self._open, str(event.incident), set()
            return f"{event.incident} opens while {before} is open" if before else ""
        if isinstance(data, IncidentResolved | IncidentExhausted | JobSubmitted | LogSalvaged):
            self._open = ""
        elif isinstance(data, JobFinished) and self._open:
            return f"the run ends while {self._open} is open"
        elif isinstance(data, PolicyConsidered):
            key = (data.revision, data.policy)
            if key in self._asked:
                return f"{data.policy} is asked twice about revision {data.revision} of {event.incident}"
            self._asked.add(key)
        return ""


class RoundsRise:
    """The rounds of worlds rise within a run."""

    def __init__(self) -> None:
        self._round = 0

    def feed(self, event: Event) -> str:
        """See ``LogCheck.feed``."""
        if isinstance(event.data, JobSubmitted):
            self._round = 0
        elif isinstance(event.data, WorldFormed):
            before, self._round = self._round, event.data.round
            return "" if event.data.round > before else f"round {event.data.round} forms after round {before}"
        return ""


class ResultsFollowOrders:
    """Every result of an action is of an order that the log holds, and an order has one result."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def feed(self, event: Event) -> str:
        """See ``LogCheck.feed``."""
        data = event.data
        if isinstance(data, ActionOrdered):
            self._open.add(data.effect)
        elif isinstance(data, ActionDone | ActionFailed | ActionSuperseded):
            if data.effect not in self._open:
                return f"a result of {data.effect}, which is not an open order"
            self._open.discard(data.effect)
        elif isinstance(data, JobSubmitted):
            self._open = set()
        return ""


class DecisionsAgree:
    """Deciding again from the facts gives the recorded decisions, as ``ftctl replay --verify``."""

    def __init__(self) -> None:
        self._verifier = Verifier()
        self._found = 0

    def feed(self, event: Event) -> str:
        """See ``LogCheck.feed``. A group is compared when the next one begins: the text names the event."""
        self._verifier.feed(event)
        mismatches = self._verifier.mismatches
        if len(mismatches) == self._found:
            return ""
        new, self._found = mismatches[self._found], len(mismatches)
        return str(new)


CHECKS: dict[str, Callable[[], LogCheck]] = {
    "facts-in-order": FactsInOrder,
    "terms-rise": TermsRise,
    "decisions-follow-facts": DecisionsFollowFacts,
    "one-incident": OneIncident,
    "rounds-rise": RoundsRise,
    "results-follow-orders": ResultsFollowOrders,
    "decisions-agree": DecisionsAgree,
}
"""The named checks."""

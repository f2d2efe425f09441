"""Named properties of a log, for ``ftctl bisect --check``: what every log of a master must satisfy.

They are the invariants of the protocol simulator (``sim/protocol/checkers.py``) that a log alone can show, without the
simulated world beside it. A check gets every event once, in order, and returns what is wrong.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from ftcore.events.action import ActionDone, ActionFailed, ActionOrdered, ActionSuperseded
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentExhausted, IncidentOpened, IncidentResolved
from ftcore.events.job import JobFinished, JobSubmitted, LogSalvaged
from ftcore.events.policy import PolicyConsidered
from ftcore.events.registry import Kind
from ftcore.events.world import WorldFormed
from ftcore.replay.verification import Mismatch, Verifier
from ftcore.wording import plural


@attrs.frozen
class CheckProblem:
    """A violation of a property.

    Args:
        seq: the event; one after the last event if an event is missing at the end.
        why: what is wrong with it.
    """

    seq: int
    why: str


class LogCheck(Protocol):
    """A property of a log."""

    def feed(self, event: Event) -> Sequence[CheckProblem]:
        """The problems that the next event shows, of this event or of earlier ones; each is returned once."""

    def close(self, *, cut: bool = False) -> Sequence[CheckProblem]:
        """The problems that the end of the log shows.

        Args:
            cut: the log could not be read to its end.
        """

    @property
    def stopped(self) -> str:
        """Why later events were not judged; empty: all were."""


class EventCheck(ABC):
    """A ``LogCheck`` that judges each event by itself and those before it."""

    @abstractmethod
    def problem(self, event: Event) -> str:
        """What is wrong with the next event; empty if nothing is."""

    def feed(self, event: Event) -> Sequence[CheckProblem]:
        """See ``LogCheck.feed``."""
        why = self.problem(event)
        return [CheckProblem(event.seq, why)] if why else []

    def close(self, *, cut: bool = False) -> Sequence[CheckProblem]:
        """See ``LogCheck.close``: nothing is left."""
        return []

    @property
    def stopped(self) -> str:
        """See ``LogCheck.stopped``: every event is judged."""
        return ""


class FactsInOrder(EventCheck):
    """Facts of one incarnation have rising numbers, without repeats."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], int] = {}

    def problem(self, event: Event) -> str:
        """See ``EventCheck.problem``."""
        if event.kind is not Kind.FACT or event.id.source == "master":
            return ""
        life = (event.id.source, event.id.incarnation)
        before, self._newest[life] = self._newest.get(life, 0), event.id.n
        return "" if event.id.n > before else f"fact {event.id.n} of {life[1]} follows its fact {before}"


class TermsRise(EventCheck):
    """Terms and times never decrease, and events are numbered without a gap."""

    def __init__(self) -> None:
        self._before: Event | None = None

    def problem(self, event: Event) -> str:
        """See ``EventCheck.problem``."""
        before, self._before = self._before, event
        if before is None:
            return ""
        if event.seq != before.seq + 1:
            return f"event {event.seq} follows event {before.seq}"
        if event.term < before.term:
            return f"term {event.term} follows term {before.term}"
        early = before.time - event.time
        return f"its time is {early} ns before that of event {before.seq}" if early > 0 else ""


class DecisionsFollowFacts(EventCheck):
    """A decision names the fact before it as its cause, and has its time."""

    def __init__(self) -> None:
        self._fact: Event | None = None

    def problem(self, event: Event) -> str:
        """See ``EventCheck.problem``."""
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


class OneIncident(EventCheck):
    """One incident is open at a time, and a run ends with none open; a policy is asked once per revision."""

    def __init__(self) -> None:
        self._open = ""
        self._asked: set[tuple[int, str]] = set()

    def problem(self, event: Event) -> str:
        """See ``EventCheck.problem``."""
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


class RoundsRise(EventCheck):
    """The rounds of worlds rise within a run."""

    def __init__(self) -> None:
        self._round = 0

    def problem(self, event: Event) -> str:
        """See ``EventCheck.problem``."""
        if isinstance(event.data, JobSubmitted):
            self._round = 0
        elif isinstance(event.data, WorldFormed):
            before, self._round = self._round, event.data.round
            return "" if event.data.round > before else f"round {event.data.round} forms after round {before}"
        return ""


class ResultsFollowOrders(EventCheck):
    """Every result of an action is of an order that the log holds, and an order has one result."""

    def __init__(self) -> None:
        self._open: set[str] = set()

    def problem(self, event: Event) -> str:
        """See ``EventCheck.problem``."""
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
        self._stopped = ""

    def feed(self, event: Event) -> Sequence[CheckProblem]:
        """See ``LogCheck.feed``. A group is compared when the next one begins."""
        self._verifier.feed(event)
        return self._new(self._verifier.mismatches)

    def close(self, *, cut: bool = False) -> Sequence[CheckProblem]:
        """See ``LogCheck.close``: the last group is compared."""
        report = self._verifier.report(cut=cut)
        if not report.complete:
            self._stopped = f"decisions after {plural(len(report.mismatches), 'difference')} are not compared"
        return self._new(report.mismatches)

    @property
    def stopped(self) -> str:
        """See ``LogCheck.stopped``; known after ``close``."""
        return self._stopped

    def _new(self, mismatches: Sequence[Mismatch]) -> list[CheckProblem]:
        new, self._found = mismatches[self._found :], len(mismatches)
        return [CheckProblem(each.seq, "; ".join(each.differences)) for each in new]


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

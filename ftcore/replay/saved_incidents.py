"""The incidents of an ``Explainer`` as records that JSON can hold, for an overview.

House rules: what two incidents share, they share again after they were restored: the same event, the same list.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ftcore.events.codec import decode, encode
from ftcore.events.envelope import Event
from ftcore.events.incident import Fault, IncidentExhausted, IncidentResolved
from ftcore.faults.failure import Failure
from ftcore.replay.hang import HangingRanks
from ftcore.replay.incident_events import Asked, FaultOrigin, IncidentEvents
from ftcore.replay.timeline import Step

Failures = dict[tuple[int, str], tuple[Event, Failure]]

_FACTS: Final = ("opening", "took", "departed", "applied", "planned", "formed", "started", "closing", "unpaused")
"""Fields of ``IncidentEvents`` with an event."""

_ALIKE: Final = (
    "id",
    "run",
    "first",
    "fault",
    "kind",
    "revision",
    "asked",
    "steps",
    "hang",
    "job_ended",
    "state",
    "last",
)
"""Fields that need no conversion."""


class SavedCase(msgspec.Struct, frozen=True, kw_only=True):
    """An ``IncidentEvents``: events, failures and further failures by their places in ``SavedIncidents``."""

    id: str
    run: int
    first: int
    fault: Fault
    kind: str
    revision: int
    asked: list[Asked]
    left_out: list[str]
    failed: int
    finished: list[FaultOrigin]
    further: int
    steps: list[Step]
    hang: tuple[HangingRanks, ...]
    facts: dict[str, int]
    resolved: IncidentResolved | None
    exhausted: IncidentExhausted | None
    job_ended: str | None
    state: str
    last: int


class SavedFailure(msgspec.Struct, frozen=True, array_like=True):
    """The place of the fact that reports a failure, and the failure."""

    fact: int
    failure: Failure


class SavedIncidents(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents and what they refer to.

    Args:
        events: each event once.
        failed: each collection of failures once.
        further: each list of further failures once.
        cases: the incidents in order.
    """

    events: list[msgspec.Raw]
    failed: list[list[SavedFailure]]
    further: list[list[FaultOrigin]]
    cases: list[SavedCase]


class IncidentSaver:
    """Converts incidents to ``SavedIncidents``."""

    def __init__(self) -> None:
        self._places: dict[int, int] = {}
        self._events: list[Event] = []
        self._failed: list[Failures] = []
        self._further: list[list[FaultOrigin]] = []
        self._cases: list[SavedCase] = []

    def event(self, event: Event) -> int:
        """The place of an event."""
        if id(event) not in self._places:
            self._places[id(event)] = len(self._events)
            self._events.append(event)
        return self._places[id(event)]

    def failed(self, failed: Failures) -> int:
        """The place of a collection of failures."""
        return _place(self._failed, failed)

    def further(self, further: list[FaultOrigin]) -> int:
        """The place of a list of further failures."""
        return _place(self._further, further)

    def case(self, case: IncidentEvents) -> None:
        """Add an incident."""
        facts = {name: self.event(fact) for name in _FACTS if (fact := getattr(case, name)) is not None}
        saved = SavedCase(
            left_out=sorted(case.left_out),
            failed=self.failed(case.failed),
            finished=list(case.finished),
            further=self.further(case.further),
            facts=facts,
            resolved=case.end if isinstance(case.end, IncidentResolved) else None,
            exhausted=case.end if isinstance(case.end, IncidentExhausted) else None,
            **{name: getattr(case, name) for name in _ALIKE},
        )
        self._cases.append(saved)

    def saved(self) -> SavedIncidents:
        """The records of all that was added."""
        failed = [
            [SavedFailure(self.event(event), failure) for event, failure in several.values()]
            for several in self._failed
        ]
        events = [msgspec.Raw(encode(event)) for event in self._events]
        return SavedIncidents(events=events, failed=failed, further=self._further, cases=self._cases)


class IncidentRestorer:
    """Converts ``SavedIncidents`` back.

    Attributes:
        events, failed, further: by their places.
        cases: the incidents in order.

    Raises:
        LogCorrupt, IndexError: the records contradict each other.
    """

    def __init__(self, saved: SavedIncidents) -> None:
        self.events = [decode(bytes(event)) for event in saved.events]
        self.failed: list[Failures] = [
            {(each.failure.seq, each.failure.node): (self.events[each.fact], each.failure) for each in several}
            for several in saved.failed
        ]
        self.further = saved.further
        self.cases = [self._case(case) for case in saved.cases]

    def _case(self, saved: SavedCase) -> IncidentEvents:
        facts: dict[str, Any] = {name: self.events[place] for name, place in saved.facts.items()}
        return IncidentEvents(
            left_out=set(saved.left_out),
            failed=self.failed[saved.failed],
            finished=dict.fromkeys(saved.finished),
            further=self.further[saved.further],
            end=saved.resolved or saved.exhausted,
            **facts,
            **{name: getattr(saved, name) for name in _ALIKE},
        )


def _place(known: list[Any], wanted: Sequence[Any] | Failures) -> int:
    """The place of this very object, which is added if it is not there."""
    for place in range(len(known) - 1, -1, -1):
        if known[place] is wanted:
            return place
    known.append(wanted)
    return len(known) - 1

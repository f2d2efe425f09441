"""Evaluation of a campaign's log: incidents, results of policies, violated invariants.

Everything is read from the groups of events, nothing from the simulator's state. A violation is one sentence. Checks:

- decisions are reproducible (``replay.Verifier``; the first ``VERIFIED_MAX`` events, as it costs as much as deciding);
- no machine refuses an event;
- a policy takes an incident at most once per revision, and not more often than its budget;
- no incident stays open for longer than ``OPEN_MAX_S``.
"""

from typing import Any

import attrs

from ftcore.events.anomaly import AnomalyObserved
from ftcore.events.envelope import Event
from ftcore.events.incident import (
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.policy import ChainEntry, PolicyConsidered, PolicyLoaded
from ftcore.ids import SECOND
from ftcore.policies.traits import limit, traits_of
from ftcore.replay.verification import Verifier

VERIFIED_MAX = 200_000
"""Most events whose decisions are repeated; the result has the number."""

OPEN_MAX_S = 7 * 86400.0
"""Seconds after which an open incident counts as forgotten; far above every deadline and duration of a campaign."""

VIOLATIONS_MAX = 20


@attrs.define(kw_only=True)
class SimulatedIncident:
    """An incident of a campaign.

    Args:
        id: its ID.
        kind: ``fault``, ``warning``, ``request`` or ``opportunity``.
        cls: class of the fault in the last revision.
        detail: subclass.
        nodes: affected nodes.
        opened: nanoseconds since the epoch, as in the log.
        seconds: from the fault (else from the opening) to its end; None while it is open.
        resolved_by: the policy that resolved it.
        outcome: as in ``incident.resolved``, or ``exhausted``.
        policies: policies that took it, in order.
        steps_lost: steps to be repeated.
    """

    id: str
    kind: str
    cls: str
    detail: str
    nodes: tuple[str, ...]
    opened: int
    seconds: float | None = None
    resolved_by: str | None = None
    outcome: str | None = None
    policies: list[str] = attrs.field(factory=list)
    steps_lost: int | None = None

    def to_json(self, origin: int) -> dict[str, Any]:
        """Plain JSON values; ``day``, ``class`` and ``policies_taken`` replace ``opened``, ``cls`` and ``policies``.

        Args:
            origin: start of the campaign's clock, nanoseconds since the epoch.
        """
        named = {"cls": "class", "policies": "policies_taken"}
        fields = {named.get(key, key): value for key, value in attrs.asdict(self).items()}
        fields["day"] = round((fields.pop("opened") - origin) / SECOND / 86400, 6)
        return fields


@attrs.define
class Fared:
    """Results of a policy: incidents taken, resolved, continued with the next policy, escalated after a failure."""

    taken: int = 0
    resolved: int = 0
    continued: int = 0
    escalated: int = 0


class Tally:
    """Evaluates the groups of a campaign.

    Args:
        verified_max: number of events whose decisions are repeated.
    """

    def __init__(self, verified_max: int = VERIFIED_MAX) -> None:
        self.events = self.verified = 0
        self.incidents: list[SimulatedIncident] = []
        self.policies: dict[str, Fared] = {}
        self._violations: list[str] = []
        self._verified_max = verified_max
        self._verifier = Verifier()
        self._chain: dict[str, ChainEntry] = {}
        self._asked: set[tuple[str, int, str]] = set()
        self._opened = 0
        self._hit = 0
        self._open: SimulatedIncident | None = None
        self._run = 0
        self._last = 0

    def take(self, group: list[Event]) -> None:
        """Evaluate a group."""
        self.events += len(group)
        if self.events <= self._verified_max:
            for event in group:
                self._verifier.feed(event)
            self.verified = self.events
        if len(group) > 1:
            for event in group[1:]:
                self._decided(event, group[0])
        elif type(group[0].data) is PolicyLoaded:
            self._chain = {entry.policy: entry for entry in group[0].data.chain}
        self._last = group[0].time

    def violations(self) -> list[str]:
        """The violations found so far."""
        report = self._verifier.report()
        found = [f"a repeated decision differs: {mismatch}" for mismatch in report.mismatches]
        if self._open is not None and self._last - self._opened > OPEN_MAX_S * SECOND:
            found.append(f"incident {self._open.id} stayed open for {(self._last - self._opened) / SECOND:.0f} s")
        return [*self._violations, *found][:VIOLATIONS_MAX]

    def _decided(self, event: Event, fact: Event) -> None:
        data = event.data
        if type(data) is PolicyLoaded:
            self._chain = {entry.policy: entry for entry in data.chain}
        elif type(data) is AnomalyObserved:
            self._violate(f"event {fact.seq}: {data.machine} {data.instance} refused {data.event} in {data.state}")
        elif type(data) is IncidentOpened:
            self._begin(event, data, fact)
        elif self._open is not None and event.incident is not None:
            self._continue(event, data, self._open)

    def _begin(self, event: Event, data: IncidentOpened, fact: Event) -> None:
        if self._open is not None:
            self._violate(f"event {event.seq}: {event.incident} was opened while {self._open.id} was open")
        self._opened = event.time
        self._hit = min(fact.at.wall, event.time) if fact.at is not None and data.kind == "fault" else event.time
        self._open = SimulatedIncident(
            id=str(event.incident),
            kind=data.kind,
            cls=data.fault.cls,
            detail=data.fault.detail,
            nodes=data.fault.nodes,
            opened=event.time,
        )
        self._run += 1
        self.incidents.append(self._open)

    def _continue(self, event: Event, data: Any, record: SimulatedIncident) -> None:
        if type(data) is IncidentRediagnosed:
            record.kind, record.cls, record.detail, record.nodes = (
                data.kind,
                data.fault.cls,
                data.fault.detail,
                data.fault.nodes,
            )
        elif type(data) is PolicyConsidered and data.verdict == "take":
            self._record_take(event, data, record)
        elif type(data) is IncidentContinued:
            self._result_of(data.policy).continued += 1
        elif type(data) is IncidentEscalated:
            self._result_of(data.policy).escalated += 1
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            record.seconds = (event.time - self._hit) / SECOND
            record.outcome = "exhausted"
            if isinstance(data, IncidentResolved):
                self._result_of(data.policy).resolved += 1
                record.resolved_by, record.outcome, record.steps_lost = data.policy, data.outcome, data.steps_lost
            self._open = None

    def _record_take(self, event: Event, data: PolicyConsidered, record: SimulatedIncident) -> None:
        self._result_of(data.policy).taken += 1
        record.policies.append(data.policy)
        key = (f"{self._run}/{record.id}", data.revision, data.policy)
        if key in self._asked:
            self._violate(f"event {event.seq}: {data.policy} took revision {data.revision} of {record.id} twice")
        self._asked.add(key)
        entry = self._chain.get(data.policy)
        if entry is None:
            self._violate(f"event {event.seq}: {data.policy} took {record.id} and is not in the chain")
            return
        if traits_of(data.policy).budget and data.attempt is not None and data.attempt > limit(entry):
            window = entry.options.get("window", 0.0)
            self._violate(f"event {event.seq}: {data.policy} took {data.attempt} times in {window:g} s")

    def _result_of(self, policy: str) -> Fared:
        return self.policies.setdefault(policy, Fared())

    def _violate(self, sentence: str) -> None:
        if len(self._violations) < VIOLATIONS_MAX:
            self._violations.append(sentence)

"""What a campaign's log says: its incidents, how each policy fared, and what must never happen.

House rules: everything here is read from the groups of events, as from any other log; nothing from the simulator's own
knowledge. A violation is one sentence. Checked are: every decision is made again from its fact (``replay.Verifier``,
over the first ``VERIFIED_MAX`` events: it costs as much as deciding did); no event that a machine does not accept; a
policy is taken at most once in a reading of an incident, and no oftener than its budget; no incident stays open for
longer than anything could take.
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
from ftcore.replay.verify import Verifier

VERIFIED_MAX = 200_000
"""Events that are decided again; a longer log is checked so far, and the result says how far."""

OPEN_MAX_S = 7 * 86400.0
"""An incident open for this long has been forgotten: no deadline and no duration of a campaign comes near it."""

VIOLATIONS_MAX = 20


@attrs.define(kw_only=True)
class Told:
    """An incident of a campaign.

    Args:
        id: its identity.
        kind: ``fault``, ``warning``, ``request`` or ``opportunity``.
        cls: class of the fault, by its last reading.
        detail: the finer distinction.
        nodes: nodes that are named by it.
        opened: nanoseconds since the epoch, as in the log.
        seconds: from the fault (or the opening, for what is no fault) to its end; None while it is open.
        resolved_by: the policy that ended it.
        outcome: as ``incident.resolved`` says, or ``exhausted``.
        policies: policies that were taken, in order.
        steps_lost: steps that had to be done again.
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
        """Plain JSON values; the day of the campaign instead of ``opened``, ``class`` and ``policies_taken`` instead of
        ``cls`` and ``policies``.

        Args:
            origin: when the campaign's clock began, nanoseconds since the epoch.
        """
        named = {"cls": "class", "policies": "policies_taken"}
        fields = {named.get(key, key): value for key, value in attrs.asdict(self).items()}
        fields["day"] = round((fields.pop("opened") - origin) / SECOND / 86400, 6)
        return fields


@attrs.define
class Fared:
    """How a policy fared: plans taken, incidents ended by it, plans that went on to the next, plans that failed."""

    taken: int = 0
    resolved: int = 0
    continued: int = 0
    escalated: int = 0


class Tally:
    """Takes in the groups of a campaign.

    Args:
        verified_max: events that are decided again.
    """

    def __init__(self, verified_max: int = VERIFIED_MAX) -> None:
        self.events = self.facts = self.verified = 0
        self.incidents: list[Told] = []
        self.policies: dict[str, Fared] = {}
        self._violations: list[str] = []
        self._verified_max = verified_max
        self._verifier = Verifier()
        self._chain: dict[str, ChainEntry] = {}
        self._taken: dict[str, list[int]] = {}
        self._asked: set[tuple[str, int, str]] = set()
        self._opened = 0
        self._hit = 0
        self._open: Told | None = None
        self._run = 0
        self._last = 0

    def take(self, group: list[Event]) -> None:
        """Take in a group, as it would be appended."""
        self.events += len(group)
        self.facts += 1
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
        """What must never happen and did; empty if nothing."""
        report = self._verifier.report()
        found = [f"deciding again gives something else: {mismatch}" for mismatch in report.mismatches]
        if self._open is not None and self._last - self._opened > OPEN_MAX_S * SECOND:
            found.append(f"incident {self._open.id} stayed open for {(self._last - self._opened) / SECOND:.0f} s")
        return [*self._violations, *found][:VIOLATIONS_MAX]

    def _decided(self, event: Event, fact: Event) -> None:
        data = event.data
        if type(data) is PolicyLoaded:
            self._chain = {entry.policy: entry for entry in data.chain}
        elif type(data) is AnomalyObserved:
            self._violate(f"event {fact.seq}: {data.machine} {data.instance} takes no {data.event} when {data.state}")
        elif type(data) is IncidentOpened:
            self._begin(event, data, fact)
        elif self._open is not None and event.incident is not None:
            self._go_on(event, data, self._open)

    def _begin(self, event: Event, data: IncidentOpened, fact: Event) -> None:
        if self._open is not None:
            self._violate(f"event {event.seq}: {event.incident} is opened while {self._open.id} is open")
        self._opened = event.time
        self._hit = min(fact.at.wall, event.time) if fact.at is not None and data.kind == "fault" else event.time
        self._open = Told(
            id=str(event.incident),
            kind=data.kind,
            cls=data.fault.cls,
            detail=data.fault.detail,
            nodes=data.fault.nodes,
            opened=event.time,
        )
        self._run += 1
        self.incidents.append(self._open)

    def _go_on(self, event: Event, data: Any, told: Told) -> None:
        if type(data) is IncidentRediagnosed:
            told.kind, told.cls, told.detail, told.nodes = (
                data.kind,
                data.fault.cls,
                data.fault.detail,
                data.fault.nodes,
            )
        elif type(data) is PolicyConsidered and data.verdict == "take":
            self._took(event, data, told)
        elif type(data) is IncidentContinued:
            self._of(data.policy).continued += 1
        elif type(data) is IncidentEscalated:
            self._of(data.policy).escalated += 1
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            told.seconds = (event.time - self._hit) / SECOND
            told.outcome = "exhausted"
            if isinstance(data, IncidentResolved):
                self._of(data.policy).resolved += 1
                told.resolved_by, told.outcome, told.steps_lost = data.policy, data.outcome, data.steps_lost
            self._open = None

    def _took(self, event: Event, data: PolicyConsidered, told: Told) -> None:
        self._of(data.policy).taken += 1
        told.policies.append(data.policy)
        key = (f"{self._run}/{told.id}", data.revision, data.policy)
        if key in self._asked:
            self._violate(f"event {event.seq}: {data.policy} is taken twice in revision {data.revision} of {told.id}")
        self._asked.add(key)
        entry = self._chain.get(data.policy)
        if entry is None:
            self._violate(f"event {event.seq}: {data.policy} is taken and not in the chain")
            return
        if traits_of(data.policy).budget and data.attempt is not None and data.attempt > limit(entry):
            window = entry.options.get("window", 0.0)
            self._violate(f"event {event.seq}: {data.policy} is taken {data.attempt} times in {window:g} s")

    def _of(self, policy: str) -> Fared:
        return self.policies.setdefault(policy, Fared())

    def _violate(self, sentence: str) -> None:
        if len(self._violations) < VIOLATIONS_MAX:
            self._violations.append(sentence)

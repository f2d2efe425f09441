"""One turn: fact -> fold -> decide -> the group of events to append.

The contract with the runtime, in this order:

1. ``turn(state, fact)`` folds the fact and its decisions into ``state``, speculatively, and returns the group: the fact
   first, then its decisions.
2. The runtime appends the group as a whole. BEFORE the append returns, nothing of the group may become visible outside.
3. AFTER the append is durable: acknowledge the fact, and send the orders of the group (``orders.py``).
4. If the append fails permanently (fenced, conflict), the state is ahead of the log: discard it and fold again.

Verification calls the same function with recorded facts and compares the result with the recorded group.
"""

from typing import Any

from ftcore.events.anomaly import AnomalyObserved
from ftcore.events.envelope import Event, EventId, Fact
from ftcore.events.registry import Kind, type_of
from ftcore.ids import IncidentId, Nanoseconds, Seq, Term
from ftcore.states.fold import fold
from ftcore.states.model import JobState

MASTER = "master"
"""Source of the master's own events; no node may have this name."""


class Turn:
    """A turn in progress.

    Args:
        state: the folded state; changed by every event of the turn.
        fact: the fact, sequenced.
    """

    def __init__(self, state: JobState, fact: Event) -> None:
        self.state = state
        self.fact = fact
        self.events: list[Event] = []
        self._take_in(fact)

    def emit(self, payload: Any, *, incident: str | None = None) -> None:
        """Add a decision to the group, and fold it.

        Args:
            payload: an instance of a declared decision type.
            incident: the incident that the decision belongs to.
        """
        known = type_of(payload)
        assert known.kind is Kind.DECISION, known.name
        seq = Seq(self.state.seq + 1)
        self._take_in(
            Event(
                seq=seq,
                id=EventId(MASTER, str(self.fact.term), seq),
                time=self.fact.time,
                type=known.name,
                kind=Kind.DECISION,
                source=MASTER,
                term=self.fact.term,
                v=known.version,
                cause=self.fact.seq,
                incident=None if incident is None else IncidentId(incident),
                ignorable=known.ignorable,
                data=payload,
            )
        )

    def _take_in(self, event: Event) -> None:
        self.events.append(event)
        changes = fold(self.state, event)
        for change in changes:
            if change.target is None:
                self.emit(
                    AnomalyObserved(
                        machine=change.machine, instance=change.instance, state=str(change.source), event=change.trigger
                    )
                )


def sequence(state: JobState, fact: Fact, *, now: Nanoseconds, term: Term) -> Event:
    """Give a fact its sequence number and time in the log.

    Args:
        state: the folded state before the fact.
        fact: the reported fact.
        now: the master's clock in nanoseconds; the event's time is never before that of the previous event.
        term: the master's term.
    """
    known = type_of(fact.data)
    seq = Seq(state.seq + 1)
    return Event(
        seq=seq,
        id=fact.id if fact.id.source != MASTER else EventId(MASTER, str(term), seq),
        time=Nanoseconds(max(now, state.time)),
        type=known.name,
        kind=Kind.FACT,
        source=fact.id.source,
        term=term,
        v=known.version,
        at=fact.at,
        cause=fact.cause,
        ignorable=known.ignorable,
        data=fact.data,
    )


def own_fact(data: Any) -> Fact:
    """A fact of the master itself; ``sequence`` gives it its identity."""
    return Fact(id=EventId(MASTER, "", 0), data=data)

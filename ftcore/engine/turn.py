"""One turn of the wheel: fact -> fold -> decide -> the group of events to be appended.

The contract with the runtime, in this order:

1. ``turn(state, fact)`` folds the fact and everything decided because of it into ``state``, speculatively, and returns
   the group: the fact first, its decisions right behind it.
2. The runtime appends the group, unsplit. BEFORE that returns, nobody outside may learn of it.
3. AFTER the append is durable: acknowledge the fact, send the orders that the group holds (``orders.py``).
4. If the append fails for good (fenced, conflict), the state has run ahead of the log: throw it away and fold again.

Verification calls the same function with recorded facts and compares what it returns with what was recorded.
"""

from typing import Any

from ftcore.events.anomaly import AnomalyObserved
from ftcore.events.envelope import Event, EventId, Fact
from ftcore.events.registry import Kind, type_of
from ftcore.ids import IncidentId, Nanoseconds, Seq, Term
from ftcore.states.fold import Changes, fold
from ftcore.states.model import JobState

MASTER = "master"
"""The source of what the master says itself; no node may be called so."""


class Turn:
    """A turn under way: what ``decide`` works with.

    Args:
        state: the folded state; changed by every event of the turn.
        fact: the fact, sequenced.
    """

    def __init__(self, state: JobState, fact: Event) -> None:
        self.state = state
        self.fact = fact
        self.events: list[Event] = []
        self.changes: Changes = []
        self._take_in(fact)

    def emit(self, payload: Any, *, incident: str | None = None) -> None:
        """Decide something: it becomes an event behind the fact and is folded at once.

        Args:
            payload: an instance of a declared decision type.
            incident: the incident that it belongs to.
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
        self.changes += changes
        for change in changes:
            if change.target is None:
                self.emit(
                    AnomalyObserved(
                        machine=change.machine, instance=change.instance, state=str(change.source), event=change.trigger
                    )
                )


def sequence(state: JobState, fact: Fact, *, now: Nanoseconds, term: Term) -> Event:
    """Give a fact its place in the log.

    Args:
        state: the folded state that it follows.
        fact: what was reported.
        now: the master's clock; the event's time is this, but never before the time of the event before it.
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
    """A fact that the master states itself; ``sequence`` gives it its identity."""
    return Fact(id=EventId(MASTER, "", 0), data=data)

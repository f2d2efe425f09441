"""The fold of one event, and queries of a folded state."""

from ftcore.errors import UnknownEvent
from ftcore.events.envelope import Event, Unknown
from ftcore.states.fold import checkpoints, disruptions, health, incidents, job, nodes, pace, queues, worlds  # noqa: F401  (registers the handlers)
from ftcore.states.fold.base import DROPPED, Changes, handlers
from ftcore.states.model import ActionState, JobState


def fold(state: JobState, event: Event, *, keep_changes: bool = True) -> Changes:
    """Fold one event into a state, in place.

    Args:
        state: the state after ``event.seq - 1``; changed.
        event: the next event of the log.
        keep_changes: false: the changes are not needed.

    Returns:
        The changes of the machines; empty without ``keep_changes``.

    Raises:
        UnknownEvent: this ftcore does not know the type or version, and the event is not ignorable.
    """
    assert event.seq == state.seq + 1, f"event {event.seq} after {state.seq}"
    changes: Changes = [] if keep_changes else DROPPED
    data = event.data
    if not state.log.poisoned:
        if type(data) is Unknown:
            _check_ignorable(event)
        else:
            handler = handlers.get(type(data))
            if handler is not None:
                handler(state, event, data, changes)
    state.seq = event.seq
    state.time = event.time
    if event.term > state.term:
        state.term = event.term
    if event.id.source != "master":
        state.log.sources[event.id.source] = (event.id.incarnation, event.id.n)
    return changes


def is_duplicate(state: JobState, source: str, incarnation: str, n: int) -> bool:
    """Whether a fact of this source, incarnation and number was folded before."""
    last = state.log.sources.get(source)
    return last is not None and last[0] == incarnation and n <= last[1]


def pending(state: JobState) -> list[ActionState]:
    """Orders without a result, oldest first; a new master issues them again with the same effect IDs."""
    return list(state.orders.open.values())


def _check_ignorable(event: Event) -> None:
    if not event.ignorable:
        raise UnknownEvent(
            f"event {event.seq} is a {event.type} v{event.v}, which this ftcore does not know and may not skip: "
            f"read this log with an ftcore that knows {event.type} v{event.v}"
        )

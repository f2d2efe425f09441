"""Reading a log in one pass: events are fed, in order, to readers."""

from collections.abc import AsyncIterable, Iterable
from typing import Protocol

from ftcore.errors import FtcoreError, LogCorrupt
from ftcore.events.envelope import Event
from ftcore.states.fold import fold
from ftcore.states.model import JobState


class Reader(Protocol):
    """Processes a log event by event."""

    def feed(self, event: Event) -> None:
        """Process the next event; the first one has seq 1.

        Raises:
            UnknownEvent: a type or version that this ftcore does not know, and that may not be ignored.
        """


def fold_recorded(state: JobState, event: Event) -> None:
    """Fold an event of a log that may be damaged or altered.

    Raises:
        LogCorrupt: it contradicts what was recorded before it.
        UnknownEvent: a type or version that this ftcore does not know, and that may not be ignored.
    """
    try:
        fold(state, event, keep_changes=False)
    except FtcoreError:
        raise
    except Exception as error:
        raise LogCorrupt(
            f"event {event.seq} ({event.type}) contradicts the events before it: {type(error).__name__}: {error}"
        ) from error


class Folder:
    """A reader that folds events.

    Args:
        state: the state to continue from, changed in place; None for a new one.
    """

    def __init__(self, state: JobState | None = None) -> None:
        self.state = state if state is not None else JobState()

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        fold_recorded(self.state, event)


def read(events: Iterable[Event], *readers: Reader, until: int | None = None) -> None:
    """Feed events to readers.

    Args:
        events: a log's events in order.
        readers: each event goes to them in this order.
        until: the last seq to feed; None for all.
    """
    for event in events:
        if until is not None and event.seq > until:
            break
        for reader in readers:
            reader.feed(event)


async def read_async(events: AsyncIterable[Event], *readers: Reader, until: int | None = None) -> None:
    """Feed events to readers; see ``read``."""
    async for event in events:
        if until is not None and event.seq > until:
            break
        for reader in readers:
            reader.feed(event)


def fold_log(events: Iterable[Event], until: int | None = None) -> JobState:
    """The state after the events up to a seq; ``states.model.digest`` gives its digest.

    Args:
        events: a log's events from the first, in order.
        until: the last seq to fold; all if None.

    Raises:
        LogCorrupt: an event contradicts those before it.
        UnknownEvent: a type or version that this ftcore does not know, and that may not be ignored.
    """
    folder = Folder()
    read(events, folder, until=until)
    return folder.state


async def fold_log_async(events: AsyncIterable[Event], until: int | None = None) -> JobState:
    """The state after the events up to a seq; see ``fold_log``."""
    folder = Folder()
    await read_async(events, folder, until=until)
    return folder.state

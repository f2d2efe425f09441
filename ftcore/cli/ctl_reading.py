"""Reading a log as far as possible.

A log may be damaged, cut off, or written by a newer ftcore. What it says before that point is what an operator needs
then. So every command that reads a log answers from the events before that point, says on stderr how far it could read
and why, and ends with the exit code of the reason.
"""

import argparse
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import msgspec

from ftcore.cli.ctl_output import say
from ftcore.cli.ctl_store import joined, opened
from ftcore.errors import FtcoreError, LogCorrupt, UnknownEvent
from ftcore.events.envelope import Event
from ftcore.ids import Seq
from ftcore.logs.stores import archive_file
from ftcore.ports import EventLog
from ftcore.states.revisions import NEWEST
from ftcore.states.unknown import UnknownParts
from ftcore.wording import plural, printable


class Fed(Protocol):
    """A ``Reader`` whose answers are not needed."""

    def feed(self, event: Event) -> object:
        """See ``Reader.feed``."""


class LogReading(msgspec.Struct):
    """A log that is read as far as possible.

    Attributes:
        log: the log.
        cut: why the log ends before its end, known since it was opened; None: it does not.
        error: why a reading ended too early; None: none did.
        ends: the last event before that point.
        halfway: a reader failed at an event after that point, which it may have processed in part.
        unknown: what this ftcore does not know of the events that were read.
    """

    log: EventLog
    cut: LogCorrupt | None = None
    error: FtcoreError | None = None
    ends: Seq = Seq(0)
    halfway: bool = False
    unknown: UnknownParts = msgspec.field(default_factory=UnknownParts)
    _noted: int = 0
    _told: set[str] = msgspec.field(default_factory=set)

    @property
    def exit_code(self) -> int:
        """Exit code of a command that has nothing worse to report."""
        return 0 if self.error is None else self.error.exit_code

    def stop(self, last: int, error: FtcoreError) -> None:
        """Note that an event could not be read; the error of the earliest one counts.

        Args:
            last: the event before it.
            error: why.
        """
        if self.error is None or last < self.ends:
            self.error, self.ends = error, Seq(last)

    def begin_again(self) -> None:
        """Forget what an earlier reading found, before the log is read again from its start."""
        self.error, self.ends, self.halfway = None, Seq(0), False
        self.go_on(Seq(0), UnknownParts())

    def go_on(self, after: Seq, unknown: UnknownParts) -> None:
        """Take over what an earlier reading found in the events up to one.

        Args:
            after: the last of them.
            unknown: see the class.
        """
        self._noted, self.unknown = after, unknown.copy()

    async def note_cut(self) -> None:
        """Note that the log ends before its end, for a command that reads the log by itself."""
        if self.cut is not None:
            self.stop(await self.log.last_seq(), self.cut)

    async def events(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """The events ``after < seq <= until``, up to the first one that the log cannot give."""
        async for events in self._batches(after, until):
            for event in events:
                self._note(event)
                yield event

    def _note(self, event: Event) -> None:
        if event.seq > self._noted:
            self._noted = event.seq
            self.unknown.note(event)

    async def _batches(self, after: Seq, until: Seq | None) -> AsyncIterator[list[Event]]:
        last = after
        try:
            async for events in self.log.read_batches(after, until):
                last = events[-1].seq
                yield events
        except LogCorrupt as error:
            if until is None or last < until:  # an archive is verified to its end, also if a part is asked for
                self.stop(last, error)
            return
        if until is None or until > await self.log.last_seq():
            await self.note_cut()

    async def feed(
        self,
        *readers: Fed,
        after: Seq = Seq(0),
        until: Seq | None = None,
        past: Callable[[Event], bool] | None = None,
    ) -> None:
        """Feed events to readers, up to the first event that one of them cannot process.

        Args:
            readers: each event goes to them in this order.
            after, until: see ``events``.
            past: whether an event is after the wanted ones.
        """
        feeds = [self._note, *(reader.feed for reader in readers)]
        async for events in self._batches(after, until):
            for event in events:
                if past is not None and past(event):
                    return
                try:
                    for feed in feeds:
                        feed(event)
                except (LogCorrupt, UnknownEvent) as error:
                    self.halfway = isinstance(error, LogCorrupt)
                    self.stop(event.seq - 1, error)
                    return

    def lines(self) -> list[str]:
        """What the user should know, as messages."""
        found, skipped, newer = [], self.unknown.skipped, self.unknown.newer
        if skipped:
            types = ", ".join(f"{name} ({count})" for name, count in skipped.items())
            found.append(f"skipped {plural(sum(skipped.values()), 'event')} of unknown types: {types}")
        if newer:
            found.append(
                f"a master decided by revision {newer} of the rules, this ftcore knows up to {NEWEST}: the state "
                "may lack what is newer, and decisions cannot be compared"
            )
        if self.error is not None:
            found.append(f"the log could be read up to event {self.ends}: {self.error}")
        return [printable(line) for line in found]

    def tell(self, *, again: bool = False) -> None:
        """Print the messages that were not printed before, or with ``again`` all."""
        for line in self.lines():
            if again or line not in self._told:
                self._told.add(line)
                say(line)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        stopped = None if self.error is None else str(self.error)
        unknown = self.unknown
        return {"skipped_types": unknown.skipped, "stopped": stopped, "newer_revision": unknown.newer or None}


@contextlib.asynccontextmanager
async def opened_reading(args: argparse.Namespace) -> AsyncIterator[LogReading]:
    """Open the log as ``ctl_store.opened`` does, also an archive that was cut off; say at exit how far it was read."""
    async with contextlib.AsyncExitStack() as stack:
        cut = None
        try:
            log = await stack.enter_async_context(opened(args))
        except LogCorrupt as error:
            path = archive_file(args.store)
            if path is None:
                raise
            from ftcore.logs.archived import readable_part

            cut, log = error, joined(readable_part(path), args)
            args.job = log.job
        reading = LogReading(log, cut)
        try:
            yield reading
        except FtcoreError:
            await reading.note_cut()  # what was not found may be in the part that is lost
            raise
        finally:
            reading.tell()

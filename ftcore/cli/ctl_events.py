"""``ftctl events``: prints the event log, a line per event, decisions indented below the fact that caused them."""

import argparse
import contextlib
import sys
import time
from collections.abc import AsyncIterator

from ftcore.cli.ctl_lines import style_of, summary
from ftcore.cli.ctl_output import clock, columns, date, paint, print_json, say, wants_colour
from ftcore.cli.ctl_reading import LogReading, opened_reading
from ftcore.errors import LogCorrupt, NotFound, Truncated
from ftcore.events.envelope import Event
from ftcore.events.registry import Kind
from ftcore.ids import Seq
from ftcore.launch.hints import hinted
from ftcore.ports import AppendOnlyLog
from ftcore.replay.as_json import event_json
from ftcore.replay.bounds import Bound
from ftcore.replay.select import Names, Selection, Selector
from ftcore.wording import printable

TYPE_WIDTH = 22


async def events(args: argparse.Namespace) -> int:
    """Show the selected events, and with ``--follow`` wait for new ones.

    Without the archive, the events in the store are shown, with a message about the missing ones: reading recent events
    must not need the archive. If ``--since`` names a missing event, the command fails.

    Raises:
        NotFound: the log has no event type, node or incident of that name. With ``--follow`` only the type is checked:
            a node or incident may still appear.
    """
    show = _show_json if args.format == "json" else Lines(args).show
    async with opened_reading(args) as reading:
        log = reading.log
        since, until = [await settled_bound(bound, log) for bound in (args.since, args.until)]
        selection = Selection(since=since, until=until, types=args.type, node=args.node, incident=args.incident)
        selector = Selector(selection)
        shown, code = False, 0
        if Names().unknown(named := Selection(types=args.type)):
            await _require_known(named, reading)  # a newer release may have types that this ftcore does not know
        async for event, missing in _readable(reading, Seq(selection.after), args.follow):
            if missing is not None and (since is None or since.compare(event) > 0):
                say(hinted(f"{missing}; showing the events in the store", args))
                code = missing.exit_code
            if selection.is_past(event):
                break
            for wanted in selector.feed(event):
                show(wanted)
                shown = True
                if args.follow:
                    sys.stdout.flush()
        if not shown:
            await _require_known(selection, reading)
            if args.format == "table":
                empty = since is not None and until is not None and since.is_after(until)
                say(f"no events match the selection{': --since is after --until' if empty else ''}")
    return code or reading.exit_code


async def _require_known(selection: Selection, reading: LogReading) -> None:
    """Refuse names that are not in the log: an empty answer would suggest that nothing happened to them."""
    names = Names()
    async for event, _ in _readable(reading, Seq(0), follow=False):
        names.feed(event)
    if problem := names.unknown(selection):
        raise NotFound(f"{reading.log.job}: {problem}")


async def _readable(reading: LogReading, after: Seq, follow: bool) -> AsyncIterator[tuple[Event, Truncated | None]]:
    """Yield the events that can be read, each with the error about events missing directly before it."""
    missing: Truncated | None = None
    while True:
        try:
            async for event in reading.log.follow(after) if follow else reading.events(after):
                yield event, missing
                missing = None
            return
        except Truncated as error:
            if after > 0 or missing is not None:
                raise
            missing, after = error, Seq(error.floor)


async def settled_bound(bound: Bound | None, log: AppendOnlyLog) -> Bound | None:
    """Convert a bound with ``ago`` to a time. Now is this host's clock, but never before the log's last event, because
    the master's clock may be ahead."""
    if bound is None or bound.ago is None:
        return bound
    last = await log.last_seq()
    times: list[int] = []
    with contextlib.suppress(LogCorrupt):  # who reads the log says it
        times = [event.time async for event in log.read(Seq(max(last - 1, 0)))]
    return bound.settled(max([time.time_ns(), *times]))


def _show_json(event: Event) -> None:
    print_json(event_json(event))


class Lines:
    """Prints events as lines, and the date whenever it changes.

    Args:
        args: of the command; their store and job are added to ``ftctl`` commands in the lines.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._day = ""
        self._colour = wants_colour()
        self._columns = columns()

    def show(self, event: Event) -> None:
        """Print one event."""
        day = date(event.time)
        if day != self._day:
            self._day = day
            print(paint(f"{day} (UTC)", "strong", self._colour))
        name = event.type if event.kind is Kind.FACT else f"  {event.type}"
        head = f"{event.seq:>6} {clock(event.time)}  {name:<{TYPE_WIDTH}} "
        text = printable(hinted(summary(event), self._args))
        if self._columns is not None:
            room = max(20, self._columns - len(head))
            text = text if len(text) <= room else text[: room - 1] + "…"
        print(paint(head + text, style_of(event), self._colour))

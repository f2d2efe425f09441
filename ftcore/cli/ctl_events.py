"""``ftctl events``: the audit log, a line per event, decisions indented under the fact that they answer."""

import argparse
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ftcore.cli.ctl_lines import style_of, summary
from ftcore.cli.ctl_output import clock, columns, date, paint, print_json, say, wants_colour
from ftcore.cli.ctl_store import opened
from ftcore.errors import NotFound, Truncated
from ftcore.events.codec import payload_to_json
from ftcore.events.envelope import Event
from ftcore.events.policy import PolicyLoaded
from ftcore.events.registry import Kind
from ftcore.ids import Seq
from ftcore.launch.hints import hinted
from ftcore.policies.targets import hidden
from ftcore.ports import EventLog
from ftcore.replay.select import Bound, Names, Selection, Selector
from ftcore.wording import clean, moment

TYPE_WIDTH = 22


async def events(args: argparse.Namespace) -> int:
    """Show the wanted events, and with ``--follow`` go on with new ones.

    Where the archive is away, what is left is shown, and what is missing told: a log that is read to see what happens
    now must not need its past. Who names the first event wanted gets that one or an error.

    Raises:
        NotFound: the log knows no type, node or incident of that name. With ``--follow`` a node or an incident may
            still come, so only a type must be known.
    """
    show = _show_json if args.format == "json" else Lines(args).show
    async with opened(args) as log:
        since, until = [await _settled(bound, log) for bound in (args.since, args.until)]
        selection = Selection(since=since, until=until, types=args.type, node=args.node, incident=args.incident)
        selector = Selector(selection)
        shown, code = False, 0
        if Names().unknown(named := Selection(types=args.type)):
            await _must_know(named, log)  # a type that this ftcore does not know may be in the log of a newer one
        async for event, missing in _there(log, Seq(selection.after), args.follow):
            if missing is not None and (since is None or since.compare(event) > 0):
                say(hinted(f"{missing}; shown is what is there", args))
                code = missing.exit_code
            if selection.is_past(event):
                break
            for wanted in selector.feed(event):
                show(wanted)
                shown = True
                if args.follow:
                    sys.stdout.flush()
        if not shown:
            await _must_know(selection, log)
            if args.format == "table":
                say("no events in this selection")
    return code


async def _must_know(selection: Selection, log: EventLog) -> None:
    """Refuse names that the log does not know: an empty answer would say that nothing happened to them."""
    names = Names()
    async for event, _ in _there(log, Seq(0), follow=False):
        names.feed(event)
    if wrong := names.unknown(selection):
        raise NotFound(f"{log.job}: {wrong}")


async def _there(log: EventLog, after: Seq, follow: bool) -> AsyncIterator[tuple[Event, Truncated | None]]:
    """The events that can be read, each with the error of those missing right before it."""
    missing: Truncated | None = None
    while True:
        try:
            async for event in log.follow(after) if follow else log.read(after):
                yield event, missing
                missing = None
            return
        except Truncated as gone:
            if after > 0 or missing is not None:
                raise
            missing, after = gone, Seq(gone.floor)


async def _settled(bound: Bound | None, log: EventLog) -> Bound | None:
    """A place by its time. It is now what this host's clock says, and never before the log's last event, whose clock
    may be ahead."""
    if bound is None or bound.ago is None:
        return bound
    last = await log.last_seq()
    times = [event.time async for event in log.read(Seq(max(last - 1, 0)))]
    return bound.settled(max([time.time_ns(), *times]))


def _show_json(event: Event) -> None:
    print_json(event_json(event))


def event_json(event: Event) -> dict[str, Any]:
    """An event with every field of its envelope, those without a value too; of URLs in a policy the scheme alone.

    The id is an object here, under a name of its own: ``id`` is a name in all other output.
    """
    fields: dict[str, Any] = msgspec.structs.asdict(event)
    fields = {"seq": event.seq, "event_id": event.id._asdict()} | {k: v for k, v in fields.items() if k != "id"}
    data = payload_to_json(event.data)
    at = event.at
    fields["at"] = None if at is None else {**moment("wall", at.wall), "mono_ns": at.mono, "boot": at.boot}
    fields = {key: value for name, told in fields.items() for key, value in _told(name, told).items()}
    return {**fields, "data": hidden(data) if isinstance(event.data, PolicyLoaded) else data}


def _told(name: str, value: Any) -> dict[str, Any]:
    return moment(name, value) if name == "time" else {name: value}


class Lines:
    """Prints events as lines; says the day whenever it changes.

    Args:
        args: of the command; their store and job complete the hints in the lines.
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
        text = clean(hinted(summary(event), self._args))
        if self._columns is not None:
            room = max(20, self._columns - len(head))
            text = text if len(text) <= room else text[: room - 1] + "…"
        print(paint(head + text, style_of(event), self._colour))

"""``ftctl replay --interactive``: steps through a log, event by event, with what each one changed.

A line-based prompt: it works over ssh, and with commands from a pipe. Going back begins at a kept copy of the state, so
the cost of a step back is bounded. A jump begins at a snapshot of the log, if there is one.
"""

import argparse
import copy
import sys
from typing import Any

import attrs

from ftcore.cli.ctl_events import Lines
from ftcore.cli.ctl_known import change_line, seq_of, shown_state
from ftcore.cli.ctl_output import indented, say
from ftcore.cli.ctl_reading import LogReading, opened_reading
from ftcore.errors import LogCorrupt, UnknownEvent
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentOpened
from ftcore.ids import Seq
from ftcore.replay.as_json import event_json
from ftcore.replay.differences import FieldChange, StateDiffer
from ftcore.replay.reading import fold_recorded
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall
from ftcore.wording import plural, printable

HELP = """\
n, Enter      next event            p             previous event
NUMBER        go to that event      i             next incident
c             all its changes       e             the event as JSON
s [PATH]      the state, or a part of it, as membership.nodes
h             this help             q             quit"""

CHANGES_SHOWN = 8
KEEP_EVERY = 1000
"""Events between kept copies of the state."""
KEPT_MAX = 200


@attrs.define
class _Stepper:
    reading: LogReading
    lines: Lines
    last: Seq
    state: JobState = attrs.field(factory=JobState)
    kept: dict[int, JobState] = attrs.field(factory=dict)
    event: Event | None = None
    changes: list[str] = attrs.field(factory=list)

    async def go(self, seq: int, *, to_incident: bool = False) -> bool:
        """Go to an event, or to the first incident that is opened between the next event and ``seq``."""
        if seq < 1 or seq > self.last:
            say(f"there are events 1 to {self.last}")
            return False
        await self._start(seq, jump=not to_incident)
        async for event in self.reading.events(Seq(self.state.seq), Seq(seq)):
            shown = event.seq == seq or (to_incident and isinstance(event.data, IncidentOpened))
            changes: list[FieldChange] = []
            try:
                if shown:  # comparing costs as much as the whole state has fields: only where it is shown
                    changes = StateDiffer(self.state).feed(event)
                else:
                    fold_recorded(self.state, event)
            except (LogCorrupt, UnknownEvent) as error:
                self.reading.stop(event.seq - 1, error)
                self.reading.halfway = isinstance(error, LogCorrupt)
                break
            if event.seq % KEEP_EVERY == 0 and event.seq not in self.kept and len(self.kept) < KEPT_MAX:
                self.kept[event.seq] = copy.deepcopy(self.state)
            if shown:
                self.event, self.changes = event, [change_line(change) for change in changes]
                return True
        if self.reading.error is not None and self.reading.ends < seq:
            await self._show_last_known()
        return False

    async def _show_last_known(self) -> None:
        """Say why a later event cannot be shown, and show the last one before it."""
        self.reading.tell(again=True)
        shown = 0 if self.event is None else self.event.seq
        if self.reading.halfway:
            self.state = JobState()
        if self.reading.ends and (self.reading.halfway or shown != self.reading.ends):
            await self.go(self.reading.ends)
            if shown != self.reading.ends:
                self.show()

    async def _start(self, seq: int, *, jump: bool) -> None:
        """Begin before an event: at the state that is shown, at a kept one, or with ``jump`` at a snapshot."""
        here = self.state.seq if self.state.seq < seq else 0
        near = max((kept for kept in self.kept if here < kept < seq), default=here) if jump else here
        if jump and seq - 1 - near > KEEP_EVERY:
            restored = await recall(self.reading.log, Seq(seq - 1))
            if restored.state.seq > near:
                self.state = restored.state
                return
        if near != self.state.seq:
            self.state = copy.deepcopy(self.kept[near]) if near else JobState()

    def show(self) -> None:
        """Print the event and the first of its changes."""
        if self.event is None:
            return
        self.lines.show(self.event)
        for line in self.changes[:CHANGES_SHOWN]:
            print(f"         {line}")
        if len(self.changes) > CHANGES_SHOWN:
            print(f"         and {plural(len(self.changes) - CHANGES_SHOWN, 'more change')}: c")

    def show_state(self, path: str) -> None:
        """Print the state, or the part at a path."""
        part: Any = shown_state(self.state)
        names = list(filter(None, path.split(".")))
        while names:
            known = part if isinstance(part, dict) else {}
            keys = [".".join(names[:count]) for count in range(len(names), 0, -1)]
            key = next((key for key in keys if key in known), None)  # the longest one: names of hosts have dots
            if key is None:
                there = f"; there are: {', '.join(known)}" if known else ""
                say(printable(f"no {'.'.join(names)!r}{there}"[:1000]))
                return
            part, names = known[key], names[key.count(".") + 1 :]
        print(indented(part))


async def step_through(args: argparse.Namespace) -> int:
    """Read commands until the end of standard input or ``q``."""
    async with opened_reading(args) as reading:
        log = reading.log
        last = await log.last_seq()
        stepper = _Stepper(reading, Lines(args), last)
        if reading.cut is not None:
            reading.stop(last, reading.cut)
            reading.tell()
        if not last:
            say(f"the log of {log.job} is empty")
            return 0
        if await stepper.go(await seq_of(args.at, reading) or 1):
            stepper.show()
        while (line := _ask(f"{stepper.state.seq}/{last}> ")) is not None:
            command, _, rest = line.strip().partition(" ")
            if command in ("q", "quit"):
                break
            await _do(stepper, command, rest.strip())
    return reading.exit_code


async def _do(stepper: _Stepper, command: str, rest: str) -> None:
    at = stepper.state.seq
    goes = {"": at + 1, "n": at + 1, "p": at - 1}
    if command in goes or command.isdecimal():
        if await stepper.go(goes[command] if command in goes else _number(command)):
            stepper.show()
    elif command == "i":
        if at == stepper.last or not await stepper.go(stepper.last, to_incident=True):
            say("no further event")
        else:
            stepper.show()
            if stepper.event is not None and not isinstance(stepper.event.data, IncidentOpened):
                say("no further incident: this is the last event")
    elif command == "c":
        print("\n".join(stepper.changes) or "no change of the state")
    elif command == "e" and stepper.event is not None:
        print(indented(event_json(stepper.event)))
    elif command == "s":
        stepper.show_state(rest)
    else:
        if command not in ("h", "help", "?"):
            say(printable(f"unknown command {command[:80]!r}"))
        print(HELP)


def _number(digits: str) -> int:
    """The number of an event; a number that no log reaches is not converted, because very long ones cannot be."""
    return int(digits) if len(digits) <= len(str(sys.maxsize)) else sys.maxsize


def _ask(prompt: str) -> str | None:
    """The next line; None at the end. The prompt is printed for people only."""
    if sys.stdin.isatty():
        print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    return line if line else None

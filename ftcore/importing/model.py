"""What the readers find: sightings with place and time, and what is kept of a file."""

from enum import StrEnum
from typing import NamedTuple

import attrs

from ftcore.ids import SECOND


class Act(StrEnum):
    """What a line or record shows."""

    STARTED = "started"
    OUTPUT = "output"
    STEPPED = "stepped"
    MATCHED = "matched"
    FAILED = "failed"
    STOPPED = "stopped"
    FINISHED = "finished"
    OBSERVED = "observed"
    LOST = "lost"
    RESTARTED = "restarted"
    ENDED = "ended"
    SUBMITTED = "submitted"


@attrs.frozen(kw_only=True)
class SourceTime:
    """A time as far as it is known.

    Args:
        ns: nanoseconds since the epoch; None: not known.
        error_s: seconds that it may be earlier or later; None: not known.
        basis: as in ``source.cited``.
        local: the time stamp has no time zone; it was read as UTC.
        yearless: the time stamp has no year; one was guessed.
        shift_s: seconds that were added.
    """

    ns: int | None = None
    error_s: float | None = None
    basis: str = "bound"
    local: bool = False
    yearless: bool = False
    shift_s: float = 0.0

    def moved(self, seconds: float) -> "SourceTime":
        """The same moment by a clock that is so many seconds ahead."""
        if self.ns is None or not seconds:
            return self
        return attrs.evolve(self, ns=self.ns + round(seconds * SECOND), shift_s=self.shift_s + seconds)


UNKNOWN = SourceTime()


@attrs.frozen(kw_only=True)
class Sighting:
    """What a line or record shows.

    Args:
        act: what happened.
        place: ``FILE:LINE``.
        when: when it happened.
        host: the host that it is about; empty: not known.
        run: number of the job's submission (a requeue begins a new one), from 0.
        attempt: number of the attempt within it, from 0; None: not known.
        rank: global rank; None: not known.
        local_rank: rank on the host; None: not known.
        pid: the process; 0: not known.
        code: exit code, negative for a signal; None: not known.
        text: message or line.
        callstack: the traceback of an exception.
        tail: last output of the rank.
        step: a step that was completed.
        loss: the loss reported with it.
        rule: the matched rule, and ``cls`` its class.
        cls: see ``rule``.
        count: number of matching lines.
        source: of an observation: the observer, as in ``fault.observed``.
        outcome: of an end: ``succeeded``, ``failed`` or ``stopped``.
    """

    act: Act
    place: str
    when: SourceTime = UNKNOWN
    host: str = ""
    run: int = 0
    attempt: int | None = None
    rank: int | None = None
    local_rank: int | None = None
    pid: int = 0
    code: int | None = None
    text: str = ""
    callstack: str = ""
    tail: str = ""
    step: int | None = None
    loss: float | None = None
    rule: str = ""
    cls: str = ""
    count: int = 1
    source: str = "log"
    outcome: str = ""


class TimedLine(NamedTuple):
    """A line with a time stamp.

    Args:
        when: its time.
        host: the host that wrote it; empty: not known.
        place: ``FILE:LINE``.
    """

    when: SourceTime
    host: str
    place: str


@attrs.define(kw_only=True)
class FileReading:
    """What was read of one file.

    Args:
        name: its name, relative to the given folder.
        kind: how it was read; empty: not at all.
        lines: number of lines.
        timed: lines with a time stamp.
        understood: lines that a pattern matched, beyond their time stamp.
        long: lines that were cut.
        first, last: the first and last time stamp.
        why: why it was not read.
    """

    name: str
    kind: str = ""
    lines: int = 0
    timed: int = 0
    understood: int = 0
    long: int = 0
    first: SourceTime | None = None
    last: SourceTime | None = None
    why: str = ""


@attrs.define(kw_only=True)
class Collected:
    """Everything that the readers found.

    Args:
        source: how the files were read.
        files: the files.
        sightings: what they show.
        hosts: number of ranks by host, as far as the files show it.
        run_hosts: by run: its hosts, where a record lists them.
        job: name of the job; empty: not known.
        argv: its script; empty: not known.
        launcher: what started and restarted the workers, for example ``torchrun``.
        notes: what was assumed.
        changed: when the newest file was last changed, in nanoseconds since the epoch.
        times: lines that may bound a gap, in any order.
    """

    source: str
    files: list[FileReading] = attrs.field(factory=list)
    sightings: list[Sighting] = attrs.field(factory=list)
    hosts: dict[str, int] = attrs.field(factory=dict)
    run_hosts: dict[int, tuple[str, ...]] = attrs.field(factory=dict)
    job: str = ""
    argv: tuple[str, ...] = ()
    launcher: str = "torchrun"
    notes: list[str] = attrs.field(factory=list)
    changed: int = 0
    times: list[TimedLine] = attrs.field(factory=list)

    def note(self, text: str) -> None:
        """Keep a note once."""
        if text not in self.notes:
            self.notes.append(text)

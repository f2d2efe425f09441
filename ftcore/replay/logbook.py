"""The chronicle of a job: dated entries, and a summary, read from the event log for a person who was asleep.

In the manner of the logbooks of OPT-175B and BLOOM: what happened, why, what was done, what it cost, and what people
wrote down meanwhile. Routine is summarized, so that the length follows what happened and not the number of events: a
quiet stretch is one line, and of a day with very many entries the later ones are counted.

House rules: the only input is events; texts are plain and untrusted, ``cli/ctl_logbook.py`` makes them Markdown.
Incidents are collected by the ``Explainer`` of the same pass; ``chronicle.py`` puts both together.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from ftcore.events.checkpoint import CheckpointCommitted, CheckpointFailed
from ftcore.events.envelope import Event, Unknown
from ftcore.events.incident import IncidentOpened, IncidentRediagnosed
from ftcore.events.job import (
    DataSkipped,
    JobFinished,
    JobParked,
    JobProgressed,
    JobRolledBack,
    JobSubmitted,
    JobUnparked,
    LogContradicted,
    LogSalvaged,
    RateLowered,
)
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeQuarantined
from ftcore.events.operator import OperatorCommanded, OperatorNoted
from ftcore.events.policy import AlertSent, PolicyFaulted
from ftcore.events.retention import ArchiveFailed, SpaceRanLow, SpaceRecovered
from ftcore.events.worker import LASTING_NAN, FaultObserved, StandstillJudged, WorkersWentOn
from ftcore.events.world import WorldFormed
from ftcore.ids import SECOND
from ftcore.replay.failures import short
from ftcore.states.model import JobState
from ftcore.wording import plural, reason_suffix, sentence, stacks_suffix

QUIET_S: Final = 3600.0
"""A longer time between two entries gets an entry of its own: what the training did."""

STORED_PER_DAY_MAX: Final = 500
"""Entries of a day that are stored; ``chronicle.PER_DAY_MAX`` of them are written out, the others are counted."""

KEPT: Final = ("submitted", "end", "note", "operator")
"""Kinds of entries that are always written out."""

DAY_NS: Final = 86400 * SECOND


@attrs.define(kw_only=True)
class LogbookEntry:
    """One entry.

    Args:
        seq: its event; of an incident its first one.
        time: nanoseconds since the epoch, by the master's clock.
        kind: ``submitted``, ``start``, ``incident``, ``operator``, ``note``, ``checkpoint``, ``size``, ``rollback``,
            ``master``, ``problem``, ``quiet``, ``more`` (entries that were only counted) or ``end``.
        text: the entry in a sentence; of a note its text.
        who: the person, of ``operator`` and ``note``.
        incident: the incident that it tells of, if any.
        lines: details.
        times: how many equal entries it stands for.
    """

    seq: int
    time: int
    kind: str
    text: str
    who: str = ""
    incident: str | None = None
    lines: list[str] = attrs.field(factory=list)
    times: int = 1


@attrs.define
class _Stretch:
    """Routine since the last entry."""

    begin: int = 0
    steps: tuple[int, int] | None = None
    losses: tuple[float, float] | None = None
    saved: int = 0
    saved_step: int = 0


class Logbook:
    """A reader that collects entries of everything but incidents; goes after the ``Folder`` of the same events.

    Args:
        state: the state that the folder changes in place.

    Attributes:
        entries: the entries so far, by time.
        dropped: number of entries that were not stored, by day since the epoch.
        requests: incidents that are about an operator's request, with the seq of its event.
        unknown: number of events that this ftcore does not know, by type.
        scripts: script of each run with its arguments, by its number.
        progress: the newest step and loss that are known.
        saved: step of the newest checkpoint.
        saves: number of checkpoints.
        first, last: time of the first and the last event, notes after the end aside; None: the log is empty.
        last_seq: the last event.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        self.entries: list[LogbookEntry] = []
        self.dropped: Counter[int] = Counter()
        self.requests: dict[str, int] = {}
        self.unknown: Counter[str] = Counter()
        self.scripts: dict[int, str] = {}
        self.progress: tuple[int | None, float | None] = (None, None)
        self.saved: int | None = None
        self.saves = 0
        self.first: int | None = None
        self.last: int | None = None
        self.last_seq = 0
        self._size = 0
        self._stretch = _Stretch()
        self._asked_to_save = False
        self._day = 0
        self._of_day = 0

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if self.first is None:
            self.first = self._stretch.begin = event.time
        data = event.data
        self.last_seq = event.seq
        if self.last is None or self._state.ending is None or type(data) is not OperatorNoted:
            self.last = event.time  # a note may be written days after the end
        if type(data) is Unknown:
            self.unknown[event.type] += 1
        elif isinstance(data, IncidentOpened | IncidentRediagnosed):
            self._diagnosed(event, data)
        else:
            tell = _TELLS.get(type(data))
            if tell is not None:
                tell(self, event, data)

    def close(self) -> None:
        """Add the routine after the last entry."""
        if self.last is not None:
            self._end_stretch(self.last, self.last_seq + 1)

    # -- adding entries

    def _add(self, event: Event, kind: str, text: str, *, who: str = "", lines: Sequence[str] = ()) -> None:
        before = self.entries[-1] if self.entries else None
        if before is not None and (before.kind, before.text, before.who) == (kind, text, who) and kind not in KEPT:
            before.times += 1
            return
        self._end_stretch(event.time, event.seq)
        if not self._has_room(event, kind):
            return
        entry = LogbookEntry(seq=event.seq, time=event.time, kind=kind, text=text, who=who, lines=list(lines))
        if event.incident is not None:
            entry.incident = event.incident
        self.entries.append(entry)

    def _has_room(self, event: Event, kind: str) -> bool:
        """Whether another entry of this day is stored."""
        day = event.time // DAY_NS
        if day != self._day:
            self._day, self._of_day = day, 0
        self._of_day += kind not in KEPT
        if kind in KEPT or self._of_day <= STORED_PER_DAY_MAX:
            return True
        self.dropped[day] += 1
        return False

    def _end_stretch(self, now: int, seq: int) -> None:
        stretch, self._stretch = self._stretch, _Stretch(now)
        lasted = (now - stretch.begin) / SECOND
        if lasted < QUIET_S or (stretch.steps is None and not stretch.saved):
            return
        parts = []
        if stretch.steps is not None:
            parts.append(f"step {stretch.steps[0]:,} to {stretch.steps[1]:,}")
        if stretch.losses is not None:
            parts.append(f"loss {stretch.losses[0]:.4g} to {stretch.losses[1]:.4g}")
        if stretch.saved:
            parts.append(f"{plural(stretch.saved, 'checkpoint')}, the newest of step {stretch.saved_step:,}")
        text = f"{duration_text(lasted)} without another entry: {', '.join(parts)}"
        self.entries.append(LogbookEntry(seq=seq - 1, time=now, kind="quiet", text=text))

    # -- what is told of each type of event

    def _diagnosed(self, event: Event, data: IncidentOpened | IncidentRediagnosed) -> None:
        name = str(event.incident)
        if type(data) is IncidentOpened:
            self._end_stretch(event.time, event.seq)
        if data.kind == "request":
            self.requests[name] = data.fault.root
        else:
            self.requests.pop(name, None)

    def _submitted(self, event: Event, data: JobSubmitted) -> None:
        self._size = 0
        spec = data.spec
        script = short(" ".join((*(("-m",) if spec.module else ()), *spec.argv)))
        self.scripts[data.run] = script
        nodes = "" if spec.nodes_min == spec.nodes_max else f"{spec.nodes_min} to "
        text = f"run {data.run} on {nodes}{plural(spec.nodes_max, 'node')}: {script}"
        versions = ", ".join(f"{name} {version}" for name, version in data.versions.items())
        chain = " > ".join(entry.policy for entry in self._state.policy.chain)
        lines = [f"command: {short(' '.join(data.command))}"]
        lines += [f"versions: {versions}"] if versions else []
        self._add(event, "submitted", text, who=data.user, lines=[*lines, f"policies: {chain}"] if chain else lines)

    def _formed(self, event: Event, data: WorldFormed) -> None:
        before, self._size = self._size, data.size
        if not before:
            self._add(event, "start", sentence(data))
        elif before != data.size:
            self._add(event, "size", f"{plural(before, 'rank')} before; {sentence(data)}")

    def _progressed(self, event: Event, data: JobProgressed) -> None:
        stretch = self._stretch
        stretch.steps = (data.step if stretch.steps is None else stretch.steps[0], data.step)
        if data.loss is not None:
            stretch.losses = (data.loss if stretch.losses is None else stretch.losses[0], data.loss)
        self.progress = (data.step, data.loss if data.loss is not None else self.progress[1])

    def _committed(self, event: Event, data: CheckpointCommitted) -> None:
        self._stretch.saved += 1
        self._stretch.saved_step = self.saved = data.step
        self.saves += 1
        if self.saves == 1 or self._asked_to_save:
            why = "the first checkpoint" if self.saves == 1 else "the requested checkpoint"
            where = reason_suffix(short(data.where))
            self._add(event, "checkpoint", f"{why}: {sentence(data)}{where}")
        self._asked_to_save = False

    def _commanded(self, event: Event, data: OperatorCommanded) -> None:
        self._asked_to_save |= data.command == "checkpoint"
        node = f" of {data.node}" if data.node else ""
        self._add(event, "operator", f"{data.command}{node}{reason_suffix(short(data.why))}", who=data.who)

    def _elected(self, event: Event, data: MasterElected) -> None:
        if self._state.run and self._state.ending is None:
            self._add(event, "master", f"a new master leads in term {event.term}, on {data.host}")

    def _finished(self, event: Event, data: JobFinished) -> None:
        self._add(event, "end", f"{data.outcome}, exit code {data.exit_code}{reason_suffix(short(data.reason))}")

    def _stood(self, event: Event, data: StandstillJudged) -> None:
        if data.verdict != "hang":  # a hang is an incident
            text = f"no step is completed, workers keep running: {short(data.message)}{stacks_suffix(data)}"
            self._add(event, "problem", text)

    def _observed(self, event: Event, data: FaultObserved) -> None:
        if data.kind == LASTING_NAN:
            at = "" if data.step is None else f" since step {data.step}"
            self._add(event, "problem", f"the loss is not finite{at}{reason_suffix(short(data.message))}")

    def _quarantined(self, event: Event, data: NodeQuarantined) -> None:
        if event.incident is None:
            self._add(event, "problem", short(sentence(data)))

    def _alerted(self, event: Event, data: AlertSent) -> None:
        if not data.ok:
            self._add(event, "problem", short(sentence(data)))


def _problem(text: Callable[[Any], str]) -> Callable[[Logbook, Event, Any], None]:
    return lambda book, event, data: book._add(event, "problem", short(text(data)))


_TELLS: dict[type[Any], Callable[[Logbook, Event, Any], None]] = {
    JobSubmitted: Logbook._submitted,
    WorldFormed: Logbook._formed,
    JobProgressed: Logbook._progressed,
    CheckpointCommitted: Logbook._committed,
    OperatorCommanded: Logbook._commanded,
    OperatorNoted: lambda book, event, data: book._add(event, "note", data.text, who=data.who),
    MasterElected: Logbook._elected,
    JobFinished: Logbook._finished,
    StandstillJudged: Logbook._stood,
    FaultObserved: Logbook._observed,
    NodeQuarantined: Logbook._quarantined,
    AlertSent: Logbook._alerted,
    JobRolledBack: lambda book, event, data: book._add(event, "rollback", short(sentence(data))),
    RateLowered: lambda book, event, data: book._add(event, "rollback", short(sentence(data))),
    DataSkipped: lambda book, event, data: book._add(event, "rollback", short(sentence(data))),
    CheckpointFailed: _problem(sentence),
    PolicyFaulted: _problem(sentence),
    WorkersWentOn: _problem(sentence),
    SpaceRanLow: _problem(sentence),
    SpaceRecovered: _problem(sentence),
    ArchiveFailed: _problem(lambda data: f"no events are archived: {data.error}"),
    JobParked: _problem(lambda data: f"the job is stuck, workers keep running: {data.error}"),
    JobUnparked: _problem(lambda data: f"the job is no longer stuck: {data.who} resumed it"),
    LogContradicted: _problem(lambda data: f"the log is contradicted by {data.node}: {data.reason}"),
    LogSalvaged: _problem(lambda data: f"the log was salvaged up to event {data.last}: {data.reason}"),
}


def duration_text(seconds: float) -> str:
    """A long duration in its two largest units, as ``3 d 4 h``, ``2 h 5 min`` or ``41 s``."""
    whole = round(seconds)
    for unit, size, below, small in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size:,} {unit}" + (f" {rest} {below}" if rest else "")
    return f"{seconds:.3g} s"


def size_text(state: JobState) -> str:
    """The newest world of a state; empty if there is none."""
    world = state.rounds.world
    return "" if world is None else f"{plural(world.size, 'rank')} on {plural(len(world.members), 'node')}"

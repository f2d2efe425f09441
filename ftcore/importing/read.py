"""Reads files into an event log: the entry of the import."""

import contextlib
import re
from collections import Counter
from typing import Any

import attrs

from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.ids import SECOND
from ftcore.importing import kubectl, slurm
from ftcore.importing.clocks import correct
from ftcore.importing.compose import Composer, Sink
from ftcore.importing.files import FoundFile, find_files, head_of, read_document, read_lines
from ftcore.importing.lines import STEP, LineReader
from ftcore.importing.model import Act, Collected, FileReading
from ftcore.importing.story import Story, tell
from ftcore.importing.torchrun import ERROR_FILE, WorkerPath, host_names, read_error, worker_path
from ftcore.states.model import JobState
from ftcore.wording import format_duration, listed, plural, timestamp_fields

DETECT_MAX = 2000
"""Files whose beginning is looked at to detect the source."""


@attrs.define(kw_only=True)
class ImportedLog:
    """The result of an import.

    Args:
        collected: what was read.
        story: what happened.
        shifts: seconds that were added to the clocks of hosts.
        state: the state at the end of the log, after ``compose``.
        types: number of events by type, after ``compose``.
    """

    collected: Collected
    story: Story
    shifts: dict[str, float]
    state: JobState = attrs.field(factory=JobState)
    types: dict[str, int] = attrs.field(factory=dict)

    @property
    def events(self) -> int:
        """Number of events."""
        return sum(self.types.values())

    def summary(self) -> str:
        """What was found, in one sentence."""
        runs = self.story.runs
        attempts = sum(len(run.attempts) for run in runs)
        incidents = self.types.get("incident.opened", 0)
        ending = self.state.ending
        end = f"the job {ending.outcome}" if ending is not None else "no file shows how the job ended"
        found = (plural(len(runs), "run"), plural(attempts, "attempt"), plural(incidents, "incident"))
        return f"{', '.join(found)}; {end}"

    def to_json(self) -> dict[str, Any]:
        """The JSON of ``ftctl import``, without the log's path."""
        ending = self.state.ending
        return {
            "job": self.collected.job,
            "imported_from": self.collected.source,
            "files": [_file_json(file) for file in self.collected.files],
            "hosts": [
                {"host": host, "slots": slots, "clock_shift_s": self.shifts.get(host, 0.0)}
                for host, slots in self.story.hosts.items()
            ],
            "submissions": [
                {"run": run.number + 1, "attempt_count": len(run.attempts), "hosts_of_run": list(run.hosts)}
                for run in self.story.runs
            ],
            "gaps": [
                {
                    **timestamp_fields("begin", begin.when.ns),
                    **timestamp_fields("end", end.when.ns),
                    "place": begin.place,
                }
                for begin, end in self.story.gaps
            ],
            "remarks": list(self.collected.notes),
            "incident_count": self.types.get("incident.opened", 0),
            "outcome": None if ending is None else ending.outcome,
            "event_count": self.events,
        }


def _file_json(file: FileReading) -> dict[str, Any]:
    return {
        "name": file.name,
        "read_as": file.kind or None,
        "line_count": file.lines,
        "timed_count": file.timed,
        "understood_count": file.understood,
        "cut_count": file.long,
        **timestamp_fields("begin", None if file.first is None else file.first.ns),
        **timestamp_fields("end", None if file.last is None else file.last.ns),
        "problem": file.why or None,
    }


def read_story(arguments: list[str], *, source: str | None = None, step: str | None = None) -> ImportedLog:
    """Read files, and order what they show.

    Args:
        arguments: files and folders.
        source: ``torchrun``, ``slurm``, ``kubectl`` or ``text``; None: detected.
        step: regular expression of a completed step; its first group is the step's number.

    Raises:
        UsageError: there is nothing to read, or nothing in it shows what a job did.
    """
    pattern = _pattern(step)
    files = find_files(arguments)
    chosen = source or detect(files)
    collected = Collected(source=chosen, changed=max(file.changed for file in files))
    _read(files, collected, chosen, pattern)
    if not any(file.kind not in ("", "empty") for file in collected.files):
        named = "; ".join(f"{file.name} {file.why or 'is empty'}" for file in collected.files[:3])
        raise UsageError(f"{', '.join(arguments)}: no file can be read as a log: {named}")
    shifts = correct(collected)
    story = tell(collected)
    if story is None:
        raise UsageError(
            f"{', '.join(arguments)}: no line shows a step, a failure or the end of a job; expected logs of a "
            "training job, of torchrun or Slurm, sacct -P, or kubectl get events -o json (a pattern of steps: --steps)"
        )
    _note_lacks(collected, story)
    return ImportedLog(collected=collected, story=story, shifts=shifts)


def compose(found: ImportedLog, sink: Sink) -> None:
    """Make the events of the log.

    Args:
        found: what was read; the state and the number of events are added.
        sink: takes every group of events.
    """
    counts: Counter[str] = Counter()

    def counted(group: list[Event]) -> None:
        counts.update(event.type for event in group)
        sink(group)

    found.state = Composer(found.story, found.collected, found.shifts, counted).compose()
    found.types = dict(counts)


def _pattern(step: str | None) -> "re.Pattern[str]":
    if step is None:
        return STEP
    try:
        pattern = re.compile(step)
    except re.error as error:
        raise UsageError(f"--steps: not a regular expression: {error}; found {step!r}") from None
    if pattern.groups < 1:
        raise UsageError(f"--steps: found {step!r}; expected a group for the step's number, as 'it=(\\d+)'")
    return pattern


def detect(files: list[FoundFile]) -> str:
    """How to read files: as the source whose marks any of them has."""
    heads = []
    for file in files[:DETECT_MAX]:
        with contextlib.suppress(OSError, EOFError):
            heads.append((file, head_of(file)))
    if any(kubectl.is_events(head) for _, head in heads):
        return "kubectl"
    if any(slurm.is_sacct(head) or slurm.is_slurm_log(file.name, head) for file, head in heads):
        return "slurm"
    if any(worker_path(file.name) is not None for file in files):
        return "torchrun"
    return "text"


def _read(files: list[FoundFile], collected: Collected, source: str, step: "re.Pattern[str]") -> None:
    places = {file.name: place for file in files if (place := worker_path(file.name)) is not None}
    names = host_names(sorted({place.group for place in places.values()}))
    records: list[tuple[FileReading, bytes]] = []
    for file in files:
        reading = FileReading(name=file.name)
        collected.files.append(reading)
        place = places.get(file.name)
        host = names[place.group] if place is not None else _host_of(file.name, source, names)
        try:
            head = head_of(file)
            if not head:
                reading.kind = "empty"
            elif place is not None and place.name == ERROR_FILE:
                _error_file(file, reading, collected, place, host)
            elif kind := _record_kind(head, source):
                reading.kind = kind
                records.append((reading, read_document(file)))
            else:
                _log(file, reading, collected, step, place, host)
        except (OSError, EOFError, ValueError) as error:
            reading.why = str(getattr(error, "strerror", None) or error)
    for place in places.values():
        if host := names[place.group]:
            collected.hosts[host] = max(collected.hosts.get(host, 0), place.local_rank + 1)
    for reading, data in records:  # after the logs: they name the pods of the logs
        (kubectl.read_events if source == "kubectl" else slurm.read_sacct)(data, reading, collected)
    if source == "slurm":
        slurm.assign_runs(collected)
    if not _has_launcher(collected):
        collected.launcher = _LAUNCHERS[source]


_LAUNCHERS = {"torchrun": "torchrun", "slurm": "slurm", "kubectl": "kubernetes", "text": "launcher"}
"""What started the workers, if no line of torchrun shows it."""


def _record_kind(head: bytes, source: str) -> str:
    """The kind of records in a file; empty: it is a log."""
    if source == "kubectl" and kubectl.is_events(head):
        return "events"
    return "sacct" if source == "slurm" and slurm.is_sacct(head) else ""


def _error_file(file: FoundFile, reading: FileReading, collected: Collected, place: WorkerPath, host: str) -> None:
    one = read_error(read_document(file), file.name, place, host)
    reading.kind, reading.lines = "error file", 1
    if one is None:
        reading.why = "is not an error file of torchrun, or was cut off"
    else:
        reading.understood = 1
        collected.sightings.append(one)


def _log(
    file: FoundFile,
    reading: FileReading,
    collected: Collected,
    step: "re.Pattern[str]",
    place: WorkerPath | None,
    host: str,
) -> None:
    reader = LineReader(
        reading,
        collected,
        year=file.year,
        step=step,
        host=host,
        attempt=place.attempt if place is not None else None,
        local_rank=place.local_rank if place is not None else None,
    )
    try:
        for number, line, long in read_lines(file):
            reading.kind = "log"
            reading.long += long
            reader.add(number, line)
    finally:  # a damaged file shows what comes before the damage
        collected.sightings += reader.finish()


def _has_launcher(collected: Collected) -> bool:
    return any(one.pid or one.source == "torchrun" for one in collected.sightings)


def _host_of(name: str, source: str, names: dict[str, str]) -> str:
    """The host that wrote a file outside of torchrun's layout."""
    if source == "kubectl":
        return kubectl.pod_of(name)
    parts = name.split("/")
    if len(parts) > 1:
        return next((host for host in names.values() if host and host in parts[:-1]), "")
    return ""


def _note_lacks(collected: Collected, story: Story) -> None:
    last = story.runs[-1]
    if last.ended is None and last.attempts[-1].finished is None:
        collected.note("no file shows how the job ended; the log ends with the last line")
    if not any(one.step is not None for one in collected.sightings):
        collected.note("no line with a step was found: lost steps and goodput are not known (--steps names a pattern)")
    else:
        collected.note("step numbers were taken to count from the start of the training")
    for run in story.runs:
        lost = {one.host for attempt in run.attempts[:-1] for one in attempt.items if one.act is Act.LOST}
        if lost:
            collected.note(
                f"{listed(sorted(lost))} was lost; what took its place is not known: it joins again in this log"
            )
    unread = [file.name for file in collected.files if file.why and not file.kind]
    if unread:
        collected.note(f"not read: {listed(unread)}")
    if story.gaps:
        longest = max((end.when.ns or 0) - (begin.when.ns or 0) for begin, end in story.gaps) / SECOND
        gaps = plural(len(story.gaps), "gap")
        collected.note(f"{gaps} without any line, the longest {format_duration(longest)}; see ftctl events")

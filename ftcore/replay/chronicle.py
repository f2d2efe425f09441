"""A logbook put together: entries of events and of incidents in order of time, and the summary above them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from ftcore.faults.taxonomy import title_of
from ftcore.ids import SECOND
from ftcore.replay.accounts import GoodputReport
from ftcore.replay.bounds import Bound
from ftcore.replay.explain import Incident
from ftcore.replay.failures import first_failure, short
from ftcore.replay.logbook import DAY_NS, KEPT, Logbook, LogbookEntry, duration_text, size_text
from ftcore.replay.status_rows import UNKNOWN
from ftcore.states.model import JobState
from ftcore.wording import format_elapsed, format_gpu_time, plural, timestamp_fields

PER_DAY_MAX: Final = 60
"""Entries of a day that are written out; later ones are counted, except those of people and of the job itself."""

LINES_MAX: Final = 6
"""Actions listed of one incident."""

_ACTIONS: Final = (
    "node.quarantined",
    "job.rolled_back",
    "data.skipped",
    "rate.lowered",
    "incident.escalated",
    "departure.begun",
    "checkpoint.failed",
    "order.refused",
    "operator.noted",
)
"""Types of events of an incident's timeline that the logbook tells of."""

HOUR_S: Final = 3600.0


@attrs.frozen
class Loss:
    """What an incident cost.

    Args:
        seconds: without progress, repeated steps included as far as the ledger knows them.
        gpu_s: seconds times the workers that were there.
    """

    seconds: float
    gpu_s: float


@attrs.frozen(kw_only=True)
class ClassRow:
    """All incidents of one class.

    Args:
        cls: the class.
        title: its name in messages.
        kind: kind of its incidents.
        count: how many.
        lost_s, gpu_s: as of ``Loss``.
        steps_lost: completed steps that had to be computed again.
        by_policy: how many incidents each policy resolved; the empty name: none did.
    """

    cls: str
    title: str
    kind: str
    count: int
    lost_s: float
    gpu_s: float
    steps_lost: int
    by_policy: dict[str, int]


@attrs.frozen(kw_only=True)
class ChronicleSummary:
    """The summary of a logbook.

    Args:
        state: state of the job machine, after the last event read; ``not known`` after the end of an import.
        state: state of the job machine, after the last event read.
        runs: number of runs.
        script: script of the newest run, with its arguments.
        user: who submitted it.
        begin, end: of the part that is told, nanoseconds since the epoch; None: the log is empty.
        last_seq: the last event read.
        world_text: the newest world.
        step, loss: the newest that are known.
        checkpoint: step of the newest checkpoint.
        checkpoint_count: checkpoints completed in the whole log.
        classes: incidents by class, the most expensive first.
        lost_s, gpu_s: over all of them.
        goodput: productive part of the wall time, 0 to 1; None: no time has passed, or only a part is told.
        steps_lost: likewise.
        paused_s: time in requested pauses.
        notes: number of people's notes.
        unknown_types: number of events that this ftcore does not know, by type.
    """

    job: str
    state: str
    runs: int
    script: str
    user: str
    begin: int | None
    end: int | None
    last_seq: int
    world_text: str
    step: int | None
    loss: float | None
    checkpoint: int | None
    checkpoint_count: int
    classes: tuple[ClassRow, ...]
    lost_s: float
    gpu_s: float
    goodput: float | None
    steps_lost: int
    paused_s: float
    notes: int
    unknown_types: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        fields = attrs.asdict(self)
        fields["classes"] = [{("class" if k == "cls" else k): v for k, v in row.items()} for row in fields["classes"]]
        ends = timestamp_fields("begin", self.begin) | timestamp_fields("end", self.end)
        return {name: value for name, value in fields.items() if name not in ("begin", "end")} | ends


@attrs.frozen
class Chronicle:
    """A logbook.

    Args:
        summary: what goes above the entries.
        entries: by time.
    """

    summary: ChronicleSummary
    entries: tuple[LogbookEntry, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        entries = [
            {name: value for name, value in attrs.asdict(entry).items() if name != "time"}
            | timestamp_fields("time", entry.time)
            for entry in self.entries
        ]
        return {"overview": self.summary.to_json(), "entries": entries}


def chronicle(
    book: Logbook,
    state: JobState,
    incidents: Sequence[Incident],
    report: GoodputReport,
    *,
    job: str,
    since: Bound | None = None,
) -> Chronicle:
    """Put a logbook together; ``book.close`` was called.

    Args:
        book: its entries.
        state: the state after the last event read.
        incidents: all incidents up to there.
        report: what the time of the job was used for.
        job: the job's name.
        since: the first entry; None: the first of the log. Incidents count in the summary if they were opened then or
            later.
    """
    losses = losses_of(report)
    told = [incident for incident in incidents if _is_from(since, incident.first_seq, incident.opened)]
    entries = [*book.entries]
    by_seq = {entry.seq: entry for entry in entries if entry.kind == "operator"}
    for incident in incidents:
        asked = by_seq.get(book.requests.get(incident.id, 0))
        if asked is not None and not incident.failures:
            asked.incident, asked.lines = incident.id, [_outcome(incident)]
        else:
            entries.append(_entry(incident, losses.get(incident.id)))
    entries.sort(key=lambda entry: (entry.time, entry.seq))
    kept = [entry for entry in entries if _is_from(since, entry.seq, entry.time)]
    begin = book.first if since is None else _begin(since, kept, book)
    goodput = report.goodput if since is None else None
    return Chronicle(
        _summary(book, state, told, losses, job, kept, begin, goodput), tuple(_bounded(kept, book.dropped))
    )


def _begin(since: Bound, entries: Sequence[LogbookEntry], book: Logbook) -> int | None:
    """The begin of a part of the log: the bound, or the first entry after an event."""
    if book.first is None or book.last is None:
        return None
    if since.time is not None:
        return min(max(since.time, book.first), book.last)
    return entries[0].time if entries else book.last


def _is_from(since: Bound | None, seq: int, time: int) -> bool:
    if since is None:
        return True
    if since.seq is not None:
        return seq >= since.seq
    assert since.time is not None
    return time >= since.time


def _bounded(entries: Iterable[LogbookEntry], dropped: Mapping[int, int]) -> Iterator[LogbookEntry]:
    """The entries, with those of very full days counted."""
    days: dict[int, list[LogbookEntry]] = {}
    for entry in entries:
        days.setdefault(entry.time // DAY_NS, []).append(entry)
    for day, of_day in days.items():
        shown, counted, others = 0, Counter[str](), dropped.get(day, 0)
        last = of_day[-1]
        for entry in of_day:
            shown += entry.kind not in KEPT
            if entry.kind in KEPT or shown <= PER_DAY_MAX:
                yield entry
            else:
                counted[entry.kind] += 1
        if counted or others:
            kinds = [_counted(kind, count) for kind, count in counted.most_common()]
            kinds += [f"{others:,} not stored"] if others else []
            text = f"the day has more: {', '.join(kinds)}; see ftctl events and ftctl incidents"
            times = counted.total() + others
            yield LogbookEntry(seq=last.seq, time=last.time, kind="more", text=text, times=times)


def _counted(kind: str, count: int) -> str:
    return plural(count, _NOUNS.get(kind, kind), _PLURALS.get(kind, ""))


_NOUNS: Final = {"quiet": "quiet stretch", "size": "change of size", "start": "start", "master": "change of the master"}
_PLURALS: Final = {"quiet": "quiet stretches", "size": "changes of size", "master": "changes of the master"}


# -- incidents


def _entry(incident: Incident, loss: Loss | None) -> LogbookEntry:
    title = title_of(incident.cls, incident.detail)
    lines = [f"first: {first_failure(incident)}"] if incident.failures else []
    lines += [short(step.what) for step in incident.timeline if step.type in _ACTIONS][:LINES_MAX]
    lines.append(_outcome(incident))
    if cost := _cost(incident, loss):
        lines.append(f"cost: {cost}")
    return LogbookEntry(
        seq=incident.first_seq,
        time=incident.opened,
        kind="incident",
        text=f"{title}: {short(incident.summary)}",
        incident=incident.id,
        lines=lines,
    )


def _outcome(incident: Incident) -> str:
    """What was done, and with which result."""
    taken = list(dict.fromkeys(asked.name for asked in incident.policies if asked.verdict == "take"))
    reasons = {asked.name: asked.reason for asked in incident.policies if asked.verdict == "take"}
    failed = [name for name in taken if name != incident.resolved_by]
    before = f", after {', '.join(failed)}" if failed else ""
    if incident.resolved_by:
        why = short(reasons.get(incident.resolved_by, ""))
        ended = f"; the job {incident.job_ended}" if incident.outcome == "ended" and incident.job_ended else ""
        paused = f"; paused for {duration_text(incident.paused_s)}" if incident.paused_s is not None else ""
        done = f"resolved by {incident.resolved_by}{before}: {incident.outcome}{ended}{paused}"
        return f"{done} ({why})" if why else done
    if incident.outcome == "exhausted":
        verdict = "the job failed" if incident.job_ended == "failed" else "dropped"
        return f"no policy resolved it{before}: {verdict}"
    return f"not resolved yet, state {incident.state}{before}"


def _cost(incident: Incident, loss: Loss | None) -> str:
    parts = []
    if loss is not None and loss.seconds > 0:
        parts.append(f"{format_elapsed(loss.seconds)} without progress")
    if incident.steps_lost:
        parts.append(f"{plural(incident.steps_lost, 'step')} computed again")
    if loss is not None and loss.gpu_s >= 1:
        parts.append(format_gpu_time(loss.gpu_s))
    return ", ".join(parts)


# -- the summary


def _state(state: JobState) -> str:
    if not state.run:
        return "unsubmitted"
    return UNKNOWN if state.end_is_unknown else str(state.phase)


def _summary(
    book: Logbook,
    state: JobState,
    incidents: Sequence[Incident],
    losses: Mapping[str, Loss],
    job: str,
    entries: Sequence[LogbookEntry],
    begin: int | None,
    goodput: float | None,
) -> ChronicleSummary:
    rows = _classes(incidents, losses)
    users = [entry.who for entry in book.entries if entry.kind == "submitted"]
    step, loss = book.progress
    return ChronicleSummary(
        job=job,
        state=_state(state),
        runs=state.run,
        script=book.scripts.get(state.run, ""),
        user=users[-1] if users else "",
        begin=begin,
        end=book.last,
        last_seq=book.last_seq,
        world_text=size_text(state),
        step=state.training.step if state.training.step is not None else step,
        loss=loss,
        checkpoint=book.saved,
        checkpoint_count=book.saves,
        classes=rows,
        lost_s=sum(row.lost_s for row in rows),
        gpu_s=sum(row.gpu_s for row in rows),
        goodput=goodput,
        steps_lost=sum(row.steps_lost for row in rows),
        paused_s=sum(incident.paused_s or 0.0 for incident in incidents),
        notes=sum(entry.kind == "note" for entry in entries),
        unknown_types=dict(book.unknown),
    )


def _classes(incidents: Sequence[Incident], losses: Mapping[str, Loss]) -> tuple[ClassRow, ...]:
    groups: dict[tuple[str, str], list[Incident]] = {}
    for incident in incidents:
        groups.setdefault((incident.kind, incident.cls), []).append(incident)
    rows = []
    for (kind, cls), several in groups.items():
        known = [losses[incident.id] for incident in several if incident.id in losses]
        details = {incident.detail for incident in several}
        rows.append(
            ClassRow(
                cls=cls,
                title=title_of(cls, details.pop()) if len(details) == 1 else cls,
                kind=kind,
                count=len(several),
                lost_s=sum(loss.seconds for loss in known),
                gpu_s=sum(loss.gpu_s for loss in known),
                steps_lost=sum(incident.steps_lost or 0 for incident in several),
                by_policy=dict(Counter(incident.resolved_by or "" for incident in several).most_common()),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.lost_s, -row.count, row.cls)))


def losses_of(report: GoodputReport) -> dict[str, Loss]:
    """What incidents cost, by the job's ledger."""
    return {cost.id: Loss(cost.total_s, cost.gpu_s) for cost in report.incidents}


def wall_s(summary: ChronicleSummary) -> float:
    """Seconds that the summary is about."""
    return 0.0 if summary.begin is None or summary.end is None else (summary.end - summary.begin) / SECOND

"""``ftctl logbook``: the chronicle of a run in Markdown."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ftcore.cli import ctl_markdown
from ftcore.cli.ctl_events import settled_bound
from ftcore.cli.ctl_output import clock, date, print_json, say, written
from ftcore.cli.ctl_reading import opened_reading
from ftcore.errors import UsageError
from ftcore.logs.outfile import STDOUT, FileKind, OutFile
from ftcore.redaction import OVERLAP_CHARS, redacted, redacted_values
from ftcore.replay.chronicle import Chronicle, ChronicleSummary, ClassRow, chronicle, wall_s
from ftcore.replay.goodput import GoodputLedger
from ftcore.replay.logbook import Logbook, LogbookEntry, duration_text
from ftcore.wording import format_elapsed, format_gpu_time, plural

BEGINS = "# Logbook of "
"""How a file of this command begins; ``-o`` overwrites no other file."""


def plain(text: str) -> str:
    """A text without secrets, shown as it is: a logbook is made to be shared."""
    return ctl_markdown.plain(redacted(text[: ctl_markdown.CHARS_MAX + OVERLAP_CHARS]))


_TITLES = {
    "submitted": "Submitted",
    "start": "Training starts",
    "incident": "Incident",
    "operator": "Request",
    "note": "Note",
    "checkpoint": "Checkpoint",
    "size": "Size",
    "rollback": "Rollback",
    "master": "Master",
    "problem": "Problem",
    "quiet": "Quiet",
    "more": "More",
    "end": "End",
}


async def logbook(args: argparse.Namespace) -> int:
    """Write the logbook."""
    if args.output is None:
        made, code = await _read(args)
        if args.format == "json":
            print_json(redacted_values(made.to_json()))
        else:
            sys.stdout.writelines(f"{line}\n" for line in markdown(made))
        return code
    if args.format == "json":
        raise UsageError("-o writes Markdown; write JSON with: ftctl logbook --format json > FILE")
    path = None if args.output == STDOUT else Path(args.output)
    with OutFile(path, FileKind(name="a logbook", begins=BEGINS.encode())) as out:
        made, code = await _read(args)
        out.write("".join(f"{line}\n" for line in markdown(made)).encode())
    where = written(path, "the logbook" if out.replaced else "")
    say(f"wrote {plural(len(made.entries), 'entry', 'entries')} to {where}")
    return code


async def _read(args: argparse.Namespace) -> tuple[Chronicle, int]:
    """The chronicle, and the exit code."""
    ledger = GoodputLedger()
    book = Logbook(ledger.state)
    async with opened_reading(args) as reading:
        log = reading.log
        since, until = [await settled_bound(bound, log) for bound in (args.since, args.until)]
        past = None if until is None else lambda event: until.compare(event) > 0
        await reading.feed(ledger, book, past=past)
    book.close()
    incidents = ledger.explainer.incidents()
    made = chronicle(book, ledger.state, incidents, ledger.report(), job=str(log.job), since=since)
    return made, reading.exit_code


def markdown(made: Chronicle) -> Iterator[str]:
    """The lines of the file."""
    summary = made.summary
    yield f"{BEGINS}{plain(summary.job)}"
    yield ""
    yield from _head(summary)
    if summary.classes:
        yield ""
        yield from _classes(summary.classes)
    if not made.entries and summary.begin is not None:
        yield from ("", f"No entry since {date(summary.begin)} {clock(summary.begin)[:8]} UTC.")
    day = ""
    for entry in made.entries:
        if date(entry.time) != day:
            day = date(entry.time)
            yield from ("", f"## {day}", "")
        yield from _entry(entry)


def _head(summary: ChronicleSummary) -> Iterator[str]:
    if summary.begin is None or summary.end is None:
        yield "The log is empty."
        return
    ends = f"{date(summary.begin)} {clock(summary.begin)[:8]} to {date(summary.end)} {clock(summary.end)[:8]} UTC"
    yield f"- **Time**: {ends} ({duration_text(wall_s(summary))}), up to event {summary.last_seq}"
    runs = f", run {summary.runs}" if summary.runs > 1 else ""
    by = f", submitted by {plain(summary.user)}" if summary.user else ""
    yield f"- **State**: {summary.state}{runs}{by}"
    if summary.script:
        yield f"- **Script**: {plain(summary.script)}"
    reached = [f"step {summary.step:,}"] if summary.step is not None else []
    reached += [f"loss {summary.loss:.4g}"] if summary.loss is not None else []
    reached += [summary.world_text] if summary.world_text else []
    if summary.checkpoint is not None:
        count = plural(summary.checkpoint_count, "checkpoint")
        reached.append(f"{count}, the newest of step {summary.checkpoint:,}")
    if reached:
        yield f"- **Training**: {', '.join(reached)}"
    if summary.goodput is not None:
        yield f"- **Goodput**: {summary.goodput:.1%} of the time, see ftctl goodput"
    yield f"- **Incidents**: {_lost(summary)}"
    if summary.paused_s:
        yield f"- **Paused**: {duration_text(summary.paused_s)}"
    if summary.notes:
        yield f"- **Notes**: {summary.notes}"
    if summary.unknown_types:
        types = ", ".join(f"{plain(name)} ({count})" for name, count in summary.unknown_types.items())
        yield f"- **Not understood**: {plural(sum(summary.unknown_types.values()), 'event')} of a newer ftcore: {types}"


def _lost(summary: ChronicleSummary) -> str:
    count = sum(row.count for row in summary.classes)
    if not count:
        return "none"
    wall = wall_s(summary)
    share = f" ({summary.lost_s / wall:.1%} of the time)" if wall > 0 else ""
    lost = f"{duration_text(summary.lost_s)} without progress{share}" if summary.lost_s else "no time lost"
    again = f", {plural(summary.steps_lost, 'step')} computed again" if summary.steps_lost else ""
    gpus = f", {format_gpu_time(summary.gpu_s)}" if summary.gpu_s >= 1 else ""
    return f"{count}: {lost}{again}{gpus}"


def _classes(rows: tuple[ClassRow, ...]) -> Iterator[str]:
    yield "| class | kind | incidents | time lost | steps again | GPU time | resolved by |"
    yield "|---|---|--:|--:|--:|--:|---|"
    for row in rows:
        by = ", ".join(f"{name or 'none'} ({count})" for name, count in row.by_policy.items())
        cells = [row.title, row.kind, str(row.count)]
        cells += [format_elapsed(row.lost_s) if row.lost_s else "-", str(row.steps_lost or "-")]
        cells += [format_gpu_time(row.gpu_s) if row.gpu_s >= 1 else "-", by]
        yield f"| {' | '.join(map(plain, cells))} |"


def _entry(entry: LogbookEntry) -> Iterator[str]:
    title = _TITLES[entry.kind]
    name = f" {entry.incident}" if entry.incident is not None and entry.kind == "incident" else ""
    by = f" by {plain(entry.who)}" if entry.who else ""
    times = f" ({entry.times} times)" if entry.times > 1 and entry.kind != "more" else ""
    head = f"- **{clock(entry.time)[:8]} {title}{plain(name)}**{by}{times}"
    if entry.kind == "note":
        yield head
        yield ""
        yield from (f"  {line}" for line in ctl_markdown.quoted(redacted(entry.text)))
        yield ""
        return
    yield f"{head}: {plain(entry.text)} (event {entry.seq})"
    yield from (f"  - {plain(line)}" for line in entry.lines)

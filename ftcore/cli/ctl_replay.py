"""``ftctl replay`` and ``ftctl export``."""

import argparse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs

from ftcore.cli.ctl_known import change_line, known_state, seq_of, shown_state
from ftcore.cli.ctl_output import indented, print_json, say, written
from ftcore.cli.ctl_reading import LogReading, opened_reading
from ftcore.errors import UnknownEvent, UsageError
from ftcore.events.codec import payload_to_json
from ftcore.events.envelope import Event
from ftcore.ids import Seq
from ftcore.logs.formats import FTLOG, ExportFormat, export_format
from ftcore.logs.outfile import STDOUT, FileKind, OutFile
from ftcore.policies.targets import hidden
from ftcore.replay.differences import FieldChange, StateDiffer
from ftcore.replay.verification import Verifier, VerifyReport
from ftcore.states.model import JobState, digest
from ftcore.wording import plural, printable

MISMATCH = 1


async def replay(args: argparse.Namespace) -> int:
    """Rebuild the state at a point of the log; verify decisions, show differences, or step through the events."""
    if args.diff is not None and args.at is not None:
        raise UsageError("--at and --diff exclude each other: --diff A B names its two points itself")
    if args.interactive and args.format == "json":
        raise UsageError(
            "--interactive and --format json exclude each other: the prompt prints text; "
            "use --at SEQ or --diff A B with --format json, or the command e in the prompt"
        )
    if args.interactive:
        from ftcore.cli.ctl_step import step_through

        return await step_through(args)
    async with opened_reading(args) as reading:
        if args.diff is not None:
            await _differences(reading, args)
            return reading.exit_code
        at = await seq_of(args.at, reading)
        if args.verify:
            return _verified(await _verify(reading, at), args.format) or reading.exit_code
        state = await known_state(reading, at)
        if args.format == "json":
            print_json({**_state_json(state), "unknown": reading.to_json()})
        else:
            print(f"after event {state.seq}: digest {digest(state)}")
            print(indented(shown_state(state)))
    return reading.exit_code


async def _differences(reading: LogReading, args: argparse.Namespace) -> None:
    """What changed between two points, in the order of the log."""
    first, last = sorted([Seq((await seq_of(bound, reading)) or 0) for bound in args.diff])
    differ = StateDiffer(await known_state(reading, first))
    if reading.error is None:
        await reading.feed(differ, after=first, until=last)
        if reading.halfway:  # the event may be half folded
            differ = StateDiffer(await known_state(reading, first))
            await reading.feed(differ, after=first, until=reading.ends)
    changes, ends = differ.changes(), differ.state.seq
    if args.format == "json":
        job = str(reading.log.job)
        described = {"job": job, "from_seq": first, "to_seq": ends, "attributed": differ.attributed}
        print_json({**described, "changes": [_change_json(each) for each in changes], "unknown": reading.to_json()})
        return
    for change in changes:
        print(change_line(change))
    say(f"{plural(len(changes), 'field')} changed between event {first} and event {ends}")
    if not differ.attributed:
        say("the state is too large to say which of so many events changed a field; name a shorter range")


async def _verify(reading: LogReading, at: Seq | None) -> VerifyReport:
    """Decide again as far as the log can be read."""
    verifier = Verifier()
    await reading.feed(verifier, until=at)
    try:
        report = verifier.report(cut=at is not None or reading.error is not None)
    except UnknownEvent as error:  # in the last group
        reading.stop(0, error)
        report = verifier.report(cut=True)
    if reading.error is None:
        return report
    if isinstance(reading.error, UnknownEvent):  # it was found when its group ended
        reading.ends = Seq(report.state.seq)
    return attrs.evolve(report, complete=False)


def _change_json(change: FieldChange) -> dict[str, Any]:
    fields = attrs.asdict(change)
    values = {"old": fields.pop("old"), "new": fields.pop("new")}
    return {"event_count": fields.pop("count"), **fields, "values": values}


def _state_json(state: JobState) -> dict[str, Any]:
    return {
        "job": state.job,
        "seq": state.seq,
        "digest": digest(state),
        "folded": shown_state(state),
    }


def _verified(report: VerifyReport, form: str) -> int:
    if form == "json":
        mismatches = [
            {
                "seq": mismatch.seq,
                "expected": _event_json(mismatch.expected),
                "found": _event_json(mismatch.found),
                "differences": mismatch.differences,
            }
            for mismatch in report.mismatches
        ]
        verdict = {
            "ok": report.ok,
            "complete": report.complete,
            "event_count": report.events,
            "group_count": report.groups,
            "skipped_count": report.skipped,
            "mismatches": mismatches,
        }
        print_json({**_state_json(report.state), "verify": verdict})
    else:
        for mismatch in report.mismatches:
            print(f"event {mismatch.seq}: a different decision")
            for line in mismatch.differences:
                print(f"  {printable(line)}")
        skipped = f", {report.skipped} only folded" if report.skipped else ""
        verdict_text = (
            "every decision is the same" if report.ok else plural(len(report.mismatches), "mismatch", "mismatches")
        )
        more = "" if report.complete else "; later events were not compared"
        facts = plural(report.groups, "fact")
        print(f"{plural(report.events, 'event')}, {facts} decided again{skipped}: {verdict_text}{more}")
        print(f"digest {report.digest}")
    return 0 if report.ok else MISMATCH


def _event_json(event: Event | None) -> dict[str, Any] | None:
    if event is None:
        return None
    return {"type": event.type, "incident": event.incident, "data": hidden(payload_to_json(event.data))}


async def export_log(args: argparse.Namespace) -> int:
    """Write the log to a file, or to standard output, as an archive or in a format of an installed package."""
    from ftcore.cli.ctl_overview import LONG_EVENTS, ExportOverview
    from ftcore.logs.archive import ArchiveWriter

    path = None if args.output == STDOUT else Path(args.output)
    if args.format != FTLOG:
        return await _export_as(export_format(args.format), path, args)
    async with opened_reading(args) as reading:
        log = reading.log
        collected = ExportOverview() if await log.last_seq() > LONG_EVENTS else None
        with ArchiveWriter(path, log.job) as writer:
            async for event in reading.events():
                writer.add(event)
                if collected is not None:
                    collected.feed(event)
            if collected is not None and reading.error is None:
                collected.attach(writer)
    where = written(path, "the archive" if writer.replaced else "")
    say(f"wrote {plural(writer.events, 'event')} of {log.job} to {where}")
    return reading.exit_code


async def _export_as(form: ExportFormat, path: Path | None, args: argparse.Namespace) -> int:
    read = 0

    async def counted(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        nonlocal read
        async for event in events:
            read += 1
            yield event

    async with opened_reading(args) as reading:
        log = reading.log
        with OutFile(path, FileKind(name=form.name, begins=form.begins, mode=0o600)) as out:
            await form.write(log.job, counted(reading.events()), out)
    where = written(path, "the file" if out.replaced else "")
    say(f"wrote {plural(read, 'event')} of {log.job} to {where}")
    return reading.exit_code

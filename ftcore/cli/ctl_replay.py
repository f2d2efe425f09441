"""``ftctl replay`` and ``ftctl export``."""

import argparse
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from ftcore.cli.ctl_output import print_json, say, written
from ftcore.cli.ctl_store import current_state, opened
from ftcore.errors import NotFound
from ftcore.events.codec import payload_to_json
from ftcore.events.envelope import Event
from ftcore.logs.formats import FTLOG, ExportFormat, export_format
from ftcore.logs.outfile import STDOUT, FileKind, OutFile
from ftcore.policies.targets import hidden
from ftcore.replay.verify import VerifyReport, verify_async
from ftcore.states.model import JobState, digest
from ftcore.wording import plural, printable

MISMATCH = 1


async def replay(args: argparse.Namespace) -> int:
    """Rebuild the state at a point of the log; with ``--verify`` decide again and compare."""
    async with opened(args) as log:
        last = await log.last_seq()
        if args.at is not None and args.at > last:
            raise NotFound(f"the log of {log.job} ends at event {last}")
        if args.verify:
            report = await verify_async(log.read(), until=args.at)
            return _verified(report, args.format)
        state = await current_state(log, args.at)
    if args.format == "json":
        print_json(_state_json(state))
    else:
        print(f"after event {state.seq}: digest {digest(state)}")
        print(msgspec.json.format(msgspec.json.encode(_shown(state)), indent=2).decode())
    return 0


def _state_json(state: JobState) -> dict[str, Any]:
    return {
        "job": state.job,
        "seq": state.seq,
        "digest": digest(state),
        "folded": _shown(state),
    }


def _shown(state: JobState) -> dict[str, Any]:
    """The state as plain JSON; URLs in the chain's options are reduced to their scheme."""
    plain: dict[str, Any] = msgspec.to_builtins(state, str_keys=True)
    return {**plain, "policy": {**plain["policy"], "chain": hidden(plain["policy"]["chain"])}}


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
    from ftcore.logs.archive import ArchiveWriter, copy

    path = None if args.output == STDOUT else Path(args.output)
    if args.format != FTLOG:
        return await _export_as(export_format(args.format), path, args)
    async with opened(args) as log:
        with ArchiveWriter(path, log.job) as writer:
            await copy(log, writer)
    where = written(path, "the archive" if writer.replaced else "")
    say(f"wrote {plural(writer.events, 'event')} of {log.job} to {where}")
    return 0


async def _export_as(form: ExportFormat, path: Path | None, args: argparse.Namespace) -> int:
    read = 0

    async def counted(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        nonlocal read
        async for event in events:
            read += 1
            yield event

    async with opened(args) as log:
        with OutFile(path, FileKind(name=form.name, begins=form.begins, mode=0o600)) as out:
            await form.write(log.job, counted(log.read()), out)
    where = written(path, "the file" if out.replaced else "")
    say(f"wrote {plural(read, 'event')} of {log.job} to {where}")
    return 0

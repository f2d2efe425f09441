"""``ftctl import``: makes an event log of the log files of a job that never ran under ftcore."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcore.cli.ctl_output import console, print_json, table

if TYPE_CHECKING:
    from ftcore.events.envelope import Event

FILES_SHOWN = 20
"""Files that are printed: those that were not understood first."""
NEXT = ("incidents", "explain", "goodput", "events")


async def run(args: argparse.Namespace) -> int:
    """Read the files, write the log, and print what was read, what was understood and what was not."""
    from ftcore.errors import UsageError
    from ftcore.importing.read import compose, read_story
    from ftcore.logs.archive import ArchiveWriter
    from ftcore.logs.rules import check_job_name

    out = Path(args.out)
    if args.out == "-" or not out.parent.is_dir():
        why = "standard output has the report" if args.out == "-" else f"there is no folder {out.parent}"
        raise UsageError(f"-o: found {args.out}; {why}; expected the name of a file")
    found = read_story(args.path, source=args.source, step=args.steps)
    job = check_job_name(args.job) if args.job else check_job_name(_job_name(found.collected.job))
    found.collected.job = job
    note = f"imported from {found.collected.source} logs; the job did not run under ftcore"
    with ArchiveWriter(out, job, note=note) as writer:

        def keep(group: "list[Event]") -> None:
            for event in group:
                writer.add(event)

        compose(found, keep)
    if args.format == "json":
        print_json(found.to_json() | {"log": str(out)})
    else:
        _print(found, str(out), replaced=writer.replaced)
    return 0


def _job_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60] or "imported"


def _print(found: Any, out: str, *, replaced: bool) -> None:
    from ftcore.wording import plural, printable

    screen = console()
    collected = found.collected
    lines = sum(file.lines for file in collected.files)
    screen.print(
        f"read as {collected.source}: {plural(len(collected.files), 'file')}, {plural(lines, 'line')}", style="strong"
    )
    _files(screen, collected.files)
    screen.print(f"\nfound: {printable(found.summary())}", style="strong")
    hosts = [
        f"{host} ({plural(slots, 'rank')}{_shift(found.shifts.get(host, 0.0))})"
        for host, slots in list(found.story.hosts.items())[:FILES_SHOWN]
    ]
    screen.print(f"nodes: {printable(', '.join(hosts))}{_more(len(found.story.hosts), FILES_SHOWN)}")
    for note in collected.notes:
        screen.print(f"note: {printable(note)}", style="warn")
    again = "; the archive of that name was overwritten" if replaced else ""
    screen.print(f"\nwrote {plural(found.events, 'event')} to {out}{again}")
    screen.print("\nnext:", style="strong")
    for name in NEXT:
        screen.print(f"  ftctl --store file:{out} {name}")
    screen.print(f"  ftctl --store file:{out} report -o report.html")
    screen.print(f"  ftctl --store file:{out} whatif --policy policy.yaml")


def _files(screen: Any, files: list[Any]) -> None:
    from ftcore.wording import printable

    rows = table(
        *("FILE", "READ AS", "LINES", "WITH TIME", "UNDERSTOOD", "CUT", "PROBLEM"),
        right=("LINES", "WITH TIME", "UNDERSTOOD", "CUT"),
        flexible=("FILE", "PROBLEM"),
        spare=("CUT", "READ AS"),
    )
    ordered = sorted(files, key=lambda file: (file.understood > 0, bool(file.kind), file.name))
    for file in ordered[:FILES_SHOWN]:
        counts = [str(number) for number in (file.lines, file.timed, file.understood, file.long)]
        problem = file.why or ("" if file.understood else "no line was recognized")
        rows.add_row(printable(file.name), file.kind or "-", *counts, printable(problem))
    screen.print(rows)
    if more := _more(len(files), FILES_SHOWN):
        screen.print(f"{more.strip()}; all with --format json", style="quiet")


def _more(count: int, shown: int) -> str:
    return f" and {count - shown} more" if count > shown else ""


def _shift(seconds: float) -> str:
    return f", clock corrected by {seconds:+.1f} s" if seconds else ""

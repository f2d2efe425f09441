"""``ftctl report``: the whole job as one HTML file."""

import argparse
import gc
from pathlib import Path

from ftcore.cli.ctl_lines import style_of, summary
from ftcore.cli.ctl_output import say, written
from ftcore.cli.ctl_store import opened
from ftcore.errors import FtcoreError, LogCorrupt, UnknownEvent
from ftcore.logs.outfile import STDOUT, FileKind, OutFile
from ftcore.replay.reading import read_async
from ftcore.replay.report import ReportReader
from ftcore.report import page
from ftcore.wording import plural

PAGE = FileKind(name="a report", begins=b"<!doctype html>\n<!-- ftcore report -->")


async def run(args: argparse.Namespace) -> int:
    """Write the report; of a log that cannot be read to its end, the part before that point."""
    gc.freeze()  # what is imported stays; collections need not look at it
    gc.set_threshold(200_000, 20, 100)  # events make much garbage, but no cycles
    reader = ReportReader(summary, style_of)
    failed: FtcoreError | None = None
    path = None if args.output == STDOUT else Path(args.output)
    with OutFile(path, PAGE) as file:
        async with opened(args) as log:
            try:
                await read_async(log.read(), reader)
            except (LogCorrupt, UnknownEvent) as error:
                failed = error
        report = reader.report(args.job, args.price, str(failed) if failed is not None else "")
        made = page(report, reader.events())
        file.write(made)
    size = f"{len(made) / 1e6:.1f} MB"
    say(f"wrote {plural(report['last_seq'], 'event')}, {size}, to {written(path, 'the report' if file.replaced else '')}")
    if failed is not None:
        say(f"the report ends early: {failed}")
        return failed.exit_code
    return 0

"""``ftctl report``: the whole job as one HTML file."""

import argparse
import contextlib
import gc
from pathlib import Path

import attrs

from ftcore.cli.ctl_explain import PRESETS_EVENTS_MAX
from ftcore.cli.ctl_lines import style_of, summary
from ftcore.cli.ctl_output import say, written
from ftcore.cli.ctl_overview import KeptOverview
from ftcore.cli.ctl_reading import LogReading, opened_reading
from ftcore.errors import FtcoreError
from ftcore.logs.in_thread import in_thread
from ftcore.logs.outfile import STDOUT, FileKind, OutFile
from ftcore.redaction import redacted_values
from ftcore.replay.report import ReportReader
from ftcore.report import page
from ftcore.sim.whatif.presets import PresetPrices
from ftcore.wording import plural

PAGE = FileKind(name="a report", begins=b"<!doctype html>\n<!-- ftcore report -->")


async def run(args: argparse.Namespace) -> int:
    """Write the report; of a log that cannot be read to its end, the part before that point."""
    gc.freeze()  # what is imported stays; collections need not look at it
    gc.set_threshold(200_000, 20, 100)  # events make much garbage, but no cycles
    path = None if args.output == STDOUT else Path(args.output)
    with OutFile(path, PAGE) as file:
        async with opened_reading(args) as reading:
            reader, presets = await _collected(reading, args)
        failed = reading.error
        report = reader.report(args.job, args.price, str(failed) if failed is not None else "")
        if report["last_seq"] <= PRESETS_EVENTS_MAX and failed is None:
            for incident, costs in presets.by_incident().items():
                if incident in report["pages"]:
                    report["pages"][incident]["presets"] = [attrs.asdict(each) for each in costs]
        made = page(redacted_values(report), redacted_values(reader.events()))
        file.write(made)
    events = plural(report["last_seq"], "event")
    where = written(path, "the report" if file.replaced else "")
    say(f"wrote {events}, {len(made) / 1e6:.1f} MB, to {where}")
    return reading.exit_code


async def _collected(reading: LogReading, args: argparse.Namespace) -> tuple[ReportReader, PresetPrices]:
    """Read the whole log; what an overview has of it is not collected again."""
    presets = PresetPrices()
    is_short = await reading.log.last_seq() <= PRESETS_EVENTS_MAX
    kept = await KeptOverview.of(reading, args)
    reader = None if is_short else await _by_overview(reading, kept)
    if reader is None:
        reading.begin_again()
        reader = ReportReader(summary, style_of)
        await reading.feed(reader, *([presets] if is_short else []))
    if reading.error is None:
        await kept.keep(reader.overview)
    return reader, presets


async def _by_overview(reading: LogReading, kept: KeptOverview) -> ReportReader | None:
    """Read the whole log with an overview that is kept, or collected by another process meanwhile.

    Returns:
        None: there is no such overview, or it does not fit.
    """
    with contextlib.ExitStack() as stack:
        process = kept.start_process()
        if process is not None:
            stack.enter_context(process)
        elif kept.newest is None:
            return None
        reader = ReportReader(summary, style_of, kept.newest, collects=process is None)
        try:
            await reading.feed(reader)
        except FtcoreError:
            raise
        except Exception:  # its records do not fit together
            return None
        if reading.error is not None:  # it has events that cannot be read now
            return None
        if process is not None:
            overview = await in_thread(process.result, await reading.log.last_seq())
            if overview is None:
                return None
            reader.overview = overview
        return reader

"""``ftctl failures``: which process of which node failed first, and with what."""

import argparse

from ftcore.cli.ctl_events import settled_bound
from ftcore.cli.ctl_output import print_json, say
from ftcore.cli.ctl_overview import read_overview
from ftcore.cli.ctl_reading import opened_reading
from ftcore.errors import NotFound, UsageError
from ftcore.redaction import redacted, redacted_values
from ftcore.replay.failures import failure_json, failure_line, faults_of
from ftcore.wording import printable


async def failures(args: argparse.Namespace) -> int:
    """Print one line for the newest failure, for one incident, or for all."""
    given = [name for name, value in (("--since", args.since), ("--all", args.all or None)) if value is not None]
    if args.incident is not None and given:
        raise UsageError(f"{args.incident} names one incident, and {given[0]} asks for several: leave one of them out")
    async with opened_reading(args) as reading:
        since = await settled_bound(args.since, reading.log)
        overview = await read_overview(reading, args)
    found = overview.ledger.explainer.incidents()
    if args.incident is not None:
        chosen = [incident for incident in found if incident.id == args.incident]
        if not chosen:
            there = f"there are {found[0].id} to {found[-1].id}" if found else "the log has none"
            raise NotFound(f"no incident {args.incident!r}; {there}")
    else:
        chosen = faults_of(found)
        if since is not None:
            chosen = [
                each
                for each in chosen
                if (each.first_seq >= since.seq if since.seq is not None else each.opened >= (since.time or 0))
            ]
        elif not args.all:
            chosen = chosen[-1:]
    several = args.all or since is not None
    if args.format == "json":
        made = [redacted_values(failure_json(incident, str(reading.log.job))) for incident in chosen]
        print_json(made if several else made[0] if made else None)
    else:
        for incident in chosen:
            print(printable(redacted(failure_line(incident))))
        if not chosen:
            say("no failure")
    return reading.exit_code

"""``ftctl incidents`` and ``ftctl explain``."""

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftcore.cli.ctl_events import settled_bound
from ftcore.cli.ctl_output import console, print_json, say, table
from ftcore.cli.ctl_overview import read_overview
from ftcore.cli.ctl_reading import opened_reading
from ftcore.faults.taxonomy import title_of
from ftcore.policies.abilities import LACKS
from ftcore.replay.bounds import Bound
from ftcore.replay.explain import Incident
from ftcore.wording import format_elapsed, plural, printable, utc

if TYPE_CHECKING:
    pass

_STATE_STYLES = {"resolved": "good", "exhausted": "bad"}

NEEDED = re.compile(f"{LACKS}`([^`]*)`")
"""The ability in the reason of a policy that passes because it is missing."""

TOTAL_NOTE = "TOTAL: from the fault, for a hang from the last step, until the first new step"

TRACEBACK_LINES = 20
"""Last lines of a traceback that ``explain`` prints."""

STEP_TIMES = 8
"""Number of step times that ``explain`` prints of the failed worker."""


async def _read(args: argparse.Namespace) -> tuple[list[Incident], int]:
    """The incidents, and the exit code."""
    async with opened_reading(args) as reading:
        since = await settled_bound(args.since, reading.log)
        overview = await read_overview(reading, args)
    found = [
        incident for incident in overview.ledger.explainer.incidents() if since is None or _was_open(incident, since)
    ]
    return found, reading.exit_code


def _was_open(incident: Incident, since: Bound) -> bool:
    """Whether the incident was open at a position of the log, or was opened after it."""
    if incident.closed is None:
        return True
    if since.seq is not None:
        return incident.last_seq >= since.seq
    assert since.time is not None
    return incident.closed >= since.time


async def incidents(args: argparse.Namespace) -> int:
    """List the incidents."""
    from rich.text import Text

    found, code = await _read(args)
    if args.format == "json":
        print_json([incident.to_json() for incident in found])
        return code
    if not found:
        say("no incidents" if args.since is None else "no incidents since then")
        return code
    rows = table(
        "ID",
        "OPENED (UTC)",
        "KIND",
        "OUTCOME",
        "CLASS",
        "TOTAL",
        "LOST",
        "WHAT",
        right=("TOTAL", "LOST"),
        flexible=("WHAT",),
        spare=("KIND", "CLASS", "LOST"),
    )
    for incident in found:
        rows.add_row(
            incident.id,
            date_time(utc(incident.opened))[:19],
            incident.kind,
            Text(_resolved_by(incident), style=style(incident)),
            title_of(incident.cls, incident.detail),
            format_elapsed(incident.phases.total),
            "-" if incident.steps_lost is None else str(incident.steps_lost),
            printable(incident.summary),
        )
    console().print(rows)
    faults = any(incident.kind == "fault" for incident in found)
    note = f"; {TOTAL_NOTE}" if faults else ""
    console().print(f"{counts([incident.kind for incident in found])}{note}", style="quiet")
    return code


def counts(kinds: Sequence[str]) -> str:
    """The number of incidents of each kind, as ``1 fault, 3 requests``; faults first."""
    many = {"opportunity": "opportunities"}
    order = [kind for kind in ("fault", "warning", "request", "opportunity") if kind in kinds]
    return ", ".join(plural(kinds.count(kind), kind, many.get(kind, "")) for kind in order)


def state_name(incident: Incident) -> str:
    """The incident's state; ``dropped`` if no policy took it, and ``exhausted`` for a fault, which ended the job."""
    return "dropped" if incident.state == "exhausted" and incident.kind != "fault" else incident.state


def _resolved_by(incident: Incident) -> str:
    by = incident.resolved_by or state_name(incident)
    return f"{by} (job failed)" if incident.job_ended == "failed" and incident.resolved_by else by


def style(incident: Incident) -> str:
    """The style of the incident's state."""
    return "bad" if incident.job_ended == "failed" else _STATE_STYLES.get(state_name(incident), "warn")


def date_time(iso: str) -> str:
    """A time of RFC 3339 for people, in milliseconds."""
    return iso[:23].replace("T", " ")

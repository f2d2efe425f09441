"""``ftctl jobs`` and ``ftctl status``."""

import argparse
import time
from typing import TYPE_CHECKING

from ftcore.cli.ctl_output import clock, console, date, print_json, table
from ftcore.cli.ctl_reading import opened_reading
from ftcore.cli.ctl_state import current_state, state_and_step_time
from ftcore.cli.ctl_store import jobs_shown, joined
from ftcore.engine.nan import REMEDIES
from ftcore.errors import FtcoreError
from ftcore.ids import SECOND
from ftcore.launch.hints import hinted
from ftcore.logs import default_store_url, open_store
from ftcore.replay.status import JobStatus, status_of
from ftcore.replay.status_rows import (
    STATE_TONES,
    checkpoint_text,
    first_rows,
    incidents_text,
    master_text,
    nan_text,
    rate_text,
    state_of,
    step_text,
)
from ftcore.states.phases import has_ended
from ftcore.wording import (
    groups_text,
    plural,
    printable,
)

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

_BEFORE_STEPS = ("assembling", "checking", "forming", "starting", "running")
"""States of a job whose workers have yet to complete a first step."""

NOTHING_DECLARED = "none beyond a restart, and going on with fewer nodes: no platform, script or agent has declared one"
"""What a job without any ability can do."""

NOT_REPORTED = "workers report theirs with the first completed step"
"""Why a job that has not trained yet may lack abilities."""

NODES_SHOWN = 40
"""Nodes in the table of ``status``; JSON has all of them."""


async def jobs(args: argparse.Namespace) -> int:
    """List the jobs of the store; the exit code is that of the first one that cannot be read."""
    store = open_store(args.store)
    found: list[JobStatus] = []
    unreadable: list[tuple[str, str]] = []
    code = 0
    try:
        for name in await jobs_shown(store, args):
            try:
                log = joined(await store.open(name), args)
                found.append(status_of(await current_state(log), name))
                await log.close()
            except FtcoreError as error:
                unreadable.append((name, str(error)))
                code = code or error.exit_code
    finally:
        await store.close()
    if args.format == "json":
        broken = [{"job": name, "state": None, "error": why} for name, why in unreadable]
        print_json([*(job.to_short_json() for job in found), *broken])
        return code
    rows = table(
        "JOB",
        "STATE",
        "RUN",
        "ROUND",
        "RANKS",
        "STEP",
        "INCIDENTS",
        "EVENTS",
        "LAST EVENT (UTC)",
        right=_RIGHT,
        spare=("RUN", "EVENTS", "ROUND", "RANKS"),
    )
    for job in found:
        rows.add_row(*_job_row(job))
    for broken_name, why in unreadable:
        rows.add_row(broken_name, "unreadable", "", "", "", "", "", "", printable(why), style="bad")
    console().print(rows if found or unreadable else f"no jobs in {args.store or default_store_url()}")
    return code


_RIGHT = ("RUN", "ROUND", "RANKS", "STEP", "INCIDENTS", "EVENTS")


def _job_row(job: JobStatus) -> "list[str | Text]":
    from rich.text import Text

    return [
        job.job,
        Text(*state_of(job)),
        str(job.run),
        str(job.world.round) if job.world else "-",
        str(job.world.size) if job.world else "-",
        _step(job),
        str(job.incident_count),
        str(job.last_seq),
        f"{date(job.time)} {clock(job.time)}" if job.time is not None else "-",
    ]


def _step(job: JobStatus) -> str:
    if job.step is None:
        return "-"
    return str(job.step) if job.step_absolute else f"+{job.step}"


async def status(args: argparse.Namespace) -> int:
    """Show the current status of a job."""
    if args.nodes:
        from ftcore.cli import ctl_nodes

        return await ctl_nodes.nodes(args)
    async with opened_reading(args) as reading:
        log = reading.log
        state, step_time = await state_and_step_time(reading)
        job = status_of(state, log.job)
        leader = await log.leader()
        space = await log.space()
        floor = await log.floor()
    if args.format == "json":
        print_json(job.to_json())
        return reading.exit_code
    from rich.text import Text

    out = console()
    facts = _facts(job, args)
    if job.step is not None:
        over = has_ended(state) or job.imported
        facts.add_row("step", step_text(job.step, job.step_absolute, None if over else _age_s(step_time)))
    if nan := nan_text(job):
        facts.add_row("loss", Text(f"{nan}; {REMEDIES}", style="bad"))
    if rate := rate_text(job):
        facts.add_row("learning rate", Text(rate, style="warn"))
    if checkpoint := checkpoint_text(job):
        facts.add_row("checkpoint", checkpoint)
    if job.run and not job.imported:
        facts.add_row("abilities", _abilities(job))
    if (replicas := _replicas(job)) is not None:
        facts.add_row("replicas", replicas)
    facts.add_row("incidents", incidents_text(job))
    if master := master_text(job, leader.alive if leader is not None else None):
        facts.add_row("master", master)
    last = f", the last on {date(job.time)} at {clock(job.time)} UTC" if job.time is not None else ""
    made = ", made of files by ftctl import" if job.imported else ""
    facts.add_row("log", f"{plural(job.last_seq, 'event')}{last}{made}")
    if floor.seq:
        facts.add_row("archive", f"events up to {floor.seq} in {floor.archive or 'an unknown directory'}")
    if space is not None and space.full:
        facts.add_row("store", Text("full: training goes on, recoveries wait for free space", style="bad"))
    out.print(facts)
    if job.held or job.paused:
        print(f"\ncontinue with: {hinted('ftctl resume', args)}")  # printed on one line, so that it can be copied
    _print_nodes(out, job)
    return reading.exit_code


def _facts(job: JobStatus, args: argparse.Namespace) -> "Table":
    """The table of ``status``, with its first rows."""
    from rich.text import Text

    facts = table("", "")
    facts.show_header = False
    facts.columns[1].no_wrap = False
    for row in first_rows(job):
        facts.add_row(row.name, Text(printable(hinted(row.text, args)), style=row.tone))
    return facts


def _age_s(time_ns: int | None) -> float | None:
    """Seconds since the master learned of a step; None if not known."""
    return None if time_ns is None else (time.time_ns() - time_ns) / SECOND


def _print_nodes(out: "Console", job: JobStatus) -> None:
    if not job.nodes:
        return
    from rich.text import Text

    nodes = table(
        "NODE",
        "ORDINAL",
        "STATE",
        "RANKS",
        "ROUND",
        "HOST",
        "HEALTH",
        right=("ORDINAL", "RANKS", "ROUND"),
        spare=("ORDINAL", "ROUND", "HEALTH"),
    )
    for node in job.nodes[:NODES_SHOWN]:
        state = Text(node.state, style=STATE_TONES.get(node.state, ""))
        nodes.add_row(
            node.node, str(node.ordinal), state, str(node.slots), str(node.round), node.host, node.health or "-"
        )
    out.print()
    out.print(nodes)
    if len(job.nodes) > NODES_SHOWN:
        out.print(f"and {plural(len(job.nodes) - NODES_SHOWN, 'more node')}; --format json shows all")


def _replicas(job: JobStatus) -> str | None:
    """Which ranks hold the same state: as they registered it, else as it is declared."""
    if job.found_replicas is not None:
        return f"{groups_text(job.found_replicas)}, as registered by the script"
    if job.replicas is None:
        return None
    declared = job.replicas if isinstance(job.replicas, str) else groups_text(job.replicas)
    return f"{declared}, as declared by the policy file"


def _abilities(job: JobStatus) -> str:
    declared = ", ".join(dict.fromkeys(name for names in job.abilities.values() for name in names))
    unsupported = ", ".join(job.unsupported)
    ignored = f"declared, but not supported by this ftcore: {unsupported}" if unsupported else ""
    awaited = NOT_REPORTED if job.step is None and job.state in _BEFORE_STEPS else ""
    known = "; ".join(filter(None, (declared, ignored))) or NOTHING_DECLARED
    return f"{known}; {awaited}" if awaited else known

"""``ftctl jobs`` and ``ftctl status``."""

import argparse
from typing import TYPE_CHECKING

from ftcore.cli.ctl_output import clock, console, date, print_json, table
from ftcore.cli.ctl_store import current_state, jobs_shown, joined, opened
from ftcore.engine.nan import REMEDIES
from ftcore.errors import FtcoreError
from ftcore.launch.hints import hinted
from ftcore.logs import default_store_url, open_store
from ftcore.replay.status import JobStatus, status_of
from ftcore.wording import because, clean, leaves_once_ready, listed, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_STATE_STYLES = {
    "running": "good",
    "succeeded": "good",
    "recovering": "warn",
    "checking": "warn",
    "paused": "warn",
    "quarantined": "bad",
    "draining": "warn",
    "stopped": "warn",
    "stuck": "bad",
    "failed": "bad",
    "faulted": "bad",
    "lost": "bad",
}

NOTHING_DECLARED = "restart, and go on with fewer nodes; no platform, script or agent has declared more"
"""What a job can do that has no ability."""

NODES_SHOWN = 40
"""Nodes in the table of ``status``; JSON has them all."""


async def jobs(args: argparse.Namespace) -> int:
    """List the jobs of the store."""
    store = open_store(args.store)
    found: list[JobStatus] = []
    unreadable: list[tuple[str, str]] = []
    try:
        for name in await jobs_shown(store, args):
            try:
                log = joined(await store.open(name), args)
                found.append(status_of(await current_state(log), name))
                await log.close()
            except FtcoreError as error:
                unreadable.append((name, str(error)))
    finally:
        await store.close()
    if args.format == "json":
        broken = [{"job": name, "state": None, "error": why} for name, why in unreadable]
        print_json([*(job.to_short_json() for job in found), *broken])
        return 0
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
        rows.add_row(broken_name, "unreadable", "", "", "", "", "", "", clean(why), style="bad")
    console().print(rows if found or unreadable else f"no jobs in {args.store or default_store_url()}")
    return 0


_RIGHT = ("RUN", "ROUND", "RANKS", "STEP", "INCIDENTS", "EVENTS")


def _job_row(job: JobStatus) -> "list[str | Text]":
    from rich.text import Text

    return [
        job.job,
        Text(job.state, style=_STATE_STYLES.get(job.state, "")),
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
    """Show what is true of a job now."""
    if args.nodes:
        from ftcore.cli import ctl_nodes

        return await ctl_nodes.nodes(args)
    async with opened(args) as log:
        job = status_of(await current_state(log), log.job)
        leader = await log.leader()
        space = await log.space()
        floor = await log.floor()
    if args.format == "json":
        print_json(job.to_json())
        return 0
    from rich.text import Text

    out = console()
    facts = table("", "")
    facts.show_header = False
    facts.columns[1].no_wrap = False
    facts.add_row("job", f"{job.job}, run {job.run}")
    facts.add_row("state", Text(job.state, style=_STATE_STYLES.get(job.state, "")))
    if job.reason:
        facts.add_row("reason", clean(hinted(job.reason, args)))
    if job.standstill is not None:
        since = f"since {date(job.standstill.since)} {clock(job.standstill.since)} UTC"
        facts.add_row("stands still", Text(clean(f"{since}: {job.standstill.message}; no action"), style="warn"))
        if job.standstill.stacks:
            facts.add_row("stacks", clean(job.standstill.stacks))
    for name, text in _by_hand(job):
        facts.add_row(name, Text(clean(text), style="warn"))
    if job.world is not None:
        members = f"{plural(job.world.size, 'rank')} on {plural(job.world.node_count, 'node')}"
        facts.add_row("world", f"round {job.world.round}: {members}")
    if job.step is not None:
        facts.add_row("step", str(job.step) if job.step_absolute else f"{job.step} of this round")
    if job.nan_since is not None:
        facts.add_row("loss", Text(f"NaN or infinite since step {job.nan_since}; {REMEDIES}", style="bad"))
    if job.checkpoint is not None:
        facts.add_row("checkpoint", f"of step {job.checkpoint}")
    if job.run:
        facts.add_row("can", _abilities(job) or NOTHING_DECLARED)
    facts.add_row("incidents", f"{job.incident_count}, open: {job.incident or 'none'}")
    if job.master is not None:
        life = "" if leader is None else ", alive" if leader.alive else ", gone"
        facts.add_row(
            "master", f"{job.master.host} pid {job.master.pid} at {job.master.address}, term {job.term}{life}"
        )
    last = f", the last on {date(job.time)} at {clock(job.time)} UTC" if job.time is not None else ""
    facts.add_row("log", f"{plural(job.last_seq, 'event')}{last}")
    if floor.seq:
        facts.add_row("archive", f"events up to {floor.seq} in {floor.archive or 'a place that is not known'}")
    if space is not None and space.full:
        facts.add_row("store", Text("full: training goes on, recoveries wait until there is room", style="bad"))
    out.print(facts)
    if job.held or job.paused:
        print(f"\ngo on with: {hinted('ftctl resume', args)}")  # not folded: it is to be copied
    _print_nodes(out, job)
    return 0


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
        state = Text(node.state, style=_STATE_STYLES.get(node.state, ""))
        nodes.add_row(
            node.node, str(node.ordinal), state, str(node.slots), str(node.round), node.host, node.health or "-"
        )
    out.print()
    out.print(nodes)
    if len(job.nodes) > NODES_SHOWN:
        out.print(f"and {plural(len(job.nodes) - NODES_SHOWN, 'more node')}; --format json has them all")


def _by_hand(job: JobStatus) -> list[tuple[str, str]]:
    """What people have asked for and what is kept out, a row each."""
    rows = []
    if job.held:
        rows.append(("held", "no recovery begins before the job is resumed"))
    if job.paused and job.state != "paused":
        rows.append(("paused", "training waits again once the incident is over, unless the job is resumed"))
    elif job.paused:
        rows.append(("paused", "training waits at a step boundary"))
    if job.request is not None:
        wish = job.request
        whom = f" {wish.node}" if wish.node else ""
        rows.append(("asked for", f"{wish.command}{whom} by {wish.who}{because(wish.why)}"))
    if job.leaving:
        rows.append(("waits", leaves_once_ready(job.leaving)))
    kept_out = [f"{node} ({reason})" for node, reason in job.quarantined.items()]
    if kept_out:
        rows.append(("kept out", listed(kept_out, NODES_SHOWN)))
    return rows


def _abilities(job: JobStatus) -> str:
    can = ", ".join(dict.fromkeys(name for names in job.abilities.values() for name in names))
    idle = ", ".join(job.unsupported)
    return "; ".join(filter(None, (can, f"declared, but not supported by this ftcore: {idle}" if idle else "")))

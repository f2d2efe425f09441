"""``ftctl status --nodes``: what the nodes' heartbeats tell, from the master's memory. Nothing of it is in the log."""

import argparse

import msgspec

from ftcore.cli.ctl_output import clean, console, print_json, table
from ftcore.cli.ctl_store import opened
from ftcore.cli.places import credentials
from ftcore.errors import Unreachable
from ftcore.runtime.wire import client, frames

MIB = 1 << 20


async def nodes(args: argparse.Namespace) -> int:
    """Show the connected nodes.

    Raises:
        Unreachable: nobody leads the job, so nobody hears heartbeats.
    """
    async with opened(args) as log:
        leader = await log.leader()
        if leader is None or not leader.alive:
            raise Unreachable(f"no master leads {log.job}, so nobody hears heartbeats: is the job still running?")
        security = credentials(args.store, log.job)
        found = await client.nodes_seen(leader.candidate.address, log.job, security=security)
    if args.format == "json":
        print_json([_json(seen) for seen in found])
        return 0
    rows = table(
        "NODE",
        "HOST",
        "ADDRESS",
        "POD",
        "HEARD",
        "ROUND",
        "STEP",
        "LOSS",
        "NETWORK",
        "KNOWN LINES",
        "DEVICES",
        right=("HEARD", "ROUND", "STEP", "LOSS"),
        spare=("DEVICES", "POD", "LOSS", "ADDRESS"),
    )
    for seen in found:
        rows.add_row(*map(clean, _row(seen)))
    console().print(rows if found else "no node is connected")
    return 0


def _row(seen: frames.NodeSeen) -> list[str]:
    beat, about = seen.beat or frames.Beat(round=0), seen.about
    step = "-" if beat.step is None else f"{'' if beat.absolute else '+'}{beat.step}"
    received, sent, errors = (sum(counts[i] for counts in about.net.values()) for i in range(3))
    return [
        seen.node,
        about.host or "-",
        about.address or "-",
        about.pod or "-",
        f"{seen.heard_s:.1f}s ago",
        str(beat.round) if beat.round else "-",
        step,
        "-" if beat.loss is None else f"{beat.loss:g}",
        f"{received // MIB} MiB in, {sent // MIB} out, {errors} errors" if about.net else "-",
        ", ".join(f"{cls} {count}" for cls, count in sorted(about.hits.items())) or "-",
        ", ".join(f"{about.devices.count(name)} x {name}" for name in sorted(set(about.devices))) or "-",
    ]


def _json(seen: frames.NodeSeen) -> dict[str, object]:
    beat, about = seen.beat or frames.Beat(round=0), seen.about
    return {
        "node": seen.node,
        "heard_s": seen.heard_s,
        "round": beat.round or None,
        "step": beat.step,
        "absolute": beat.absolute,
        "loss": beat.loss,
        "host": about.host or None,
        "address": about.address or None,
        "pod": about.pod or None,
        "devices": list(about.devices),
        "net": {
            name: dict(zip(("received", "sent", "errors"), counts, strict=True)) for name, counts in about.net.items()
        },
        "hits": msgspec.to_builtins(about.hits),
    }

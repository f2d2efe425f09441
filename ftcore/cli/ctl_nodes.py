"""``ftctl status --nodes``: data of the nodes' last heartbeats, from the master's memory. It is not in the log."""

import argparse

import msgspec

from ftcore.cli.ctl_output import console, print_json, table
from ftcore.cli.ctl_store import opened
from ftcore.errors import Unreachable
from ftcore.launch.security import credentials
from ftcore.runtime.wire import client, frames
from ftcore.runtime.wire.frames import SEEING
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.wording import printable

MIB = 1 << 20


async def nodes(args: argparse.Namespace) -> int:
    """Show the connected nodes.

    Raises:
        Unreachable: no master leads the job.
    """
    async with opened(args) as log:
        leader = await log.leader()
        if leader is None or not leader.alive:
            raise Unreachable(f"cannot show heartbeats: no master leads {log.job}; is the job still running?")
        security = credentials(args.store, log.job)
        transport = GrpcTransport(security)
        found = await client.nodes_seen(transport, leader.candidate.address, log.job, security=security)
    if args.format == "json":
        print_json([_json(seen) for seen in found])
        return 0
    rows = table(
        "NODE",
        "HOST",
        "ADDRESS",
        "POD",
        "LAST HEARTBEAT",
        "PHASE",
        "ROUND",
        "STEP",
        "LOSS",
        "NETWORK",
        "MATCHED LOG LINES",
        "DEVICES",
        right=("LAST HEARTBEAT", "ROUND", "STEP", "LOSS"),
        spare=("DEVICES", "POD", "LOSS", "ADDRESS", "PHASE"),
    )
    for seen in found:
        rows.add_row(*map(printable, _row(seen)))
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
        about.phase or "-",
        str(beat.round) if beat.round else "-",
        step,
        "-" if beat.loss is None else f"{beat.loss:g}",
        f"{received // MIB} MiB in, {sent // MIB} out, {errors} errors" if about.net else "-",
        ", ".join(f"{cls} {count}" for cls, count in sorted(about.hits.items())) or "-",
        _devices(about),
    ]


def _devices(about: frames.NodeInfo) -> str:
    """Models, the range of each gauge, and faults of the devices."""
    models = ", ".join(f"{about.devices.count(name)} x {name}" for name in sorted(set(about.devices)))
    gauges = about.gauges.values()
    ranges = (
        _range([gauge.celsius for gauge in gauges], "C"),
        _range([gauge.sm_mhz for gauge in gauges], "MHz"),
        _range([gauge.used_mib for gauge in gauges], "MiB"),
    )
    trouble = [gauge.trouble for _, gauge in sorted(about.gauges.items()) if gauge.trouble]
    blind = "" if about.blind in ("", SEEING) else f"not watched: {about.blind}"
    return "; ".join(text for text in (models, *ranges, *trouble, blind) if text) or "-"


def _range(values: list[int | None], unit: str) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    return f"{known[0]} {unit}" if known[0] == known[-1] else f"{known[0]}-{known[-1]} {unit}"


def _json(seen: frames.NodeSeen) -> dict[str, object]:
    beat, about = seen.beat or frames.Beat(round=0), seen.about
    return {
        "node": seen.node,
        "heard_s": seen.heard_s,
        "round": beat.round or None,
        "step": beat.step,
        "absolute": beat.absolute,
        "loss": beat.loss,
        "slow": seen.slow or None,
        "host": about.host or None,
        "address": about.address or None,
        "pod": about.pod or None,
        "phase": about.phase or None,
        "devices": list(about.devices),
        "gauges": {index: msgspec.structs.asdict(gauge) for index, gauge in about.gauges.items()},
        "not_watched": None if about.blind in ("", SEEING) else about.blind,
        "net": {
            name: dict(zip(("received", "sent", "errors"), counts, strict=True)) for name, counts in about.net.items()
        },
        "hits": msgspec.to_builtins(about.hits),
    }

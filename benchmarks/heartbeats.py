"""Cost of idle agents to the master: CPU, memory, writes to etcd.

Light agents (``swarm.py``) train in one world and send heartbeats by the job's time constants; nothing else happens.
The limit is gRPC itself, in the same run: the same number of streams, with frames of the same size at the same rate, to
a handler that ignores them. A quick run prints and does not change RESULTS.md.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from results import table, write
from swarm import child, field, raise_limit, usage

from ftcore.errors import StreamBroken
from ftcore.ports import Stream
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.security import NONE
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.timing import Timing

SIZES = (1000, 10_000)
HEARTBEAT_S = {1000: 0.5, 10_000: 5.0}
"""Seconds between heartbeats for many agents: a few cores cannot send more. The lease is four heartbeats."""


def timing(heartbeat_s: float) -> Timing:
    """Time constants with that heartbeat."""
    plain = Timing()
    lease_s = max(plain.node_lease_s, 4 * heartbeat_s)
    return Timing(heartbeat_s=heartbeat_s, node_lease_s=lease_s, join_window_s=300.0, start_timeout_s=600.0)


def ours(nodes: int, heartbeat_s: float, seconds: float, processes: int) -> tuple[float, float, float, int, float]:
    """Return CPU share, RSS, RSS per agent, broken streams, writes per second."""
    with (
        tempfile.TemporaryDirectory() as directory,
        field(Path(directory), nodes, processes=processes, barrier=False, timing=timing(heartbeat_s)) as bench,
    ):
        empty = usage(bench.master).rss
        bench.send("connect", None)
        bench.send("world", 1)
        bench.send("step", 1)
        time.sleep(3 + heartbeat_s)
        broken = sum(count for _, count in bench.send("state"))
        revision, before, began = bench.revision(), usage(bench.master), time.monotonic()
        time.sleep(seconds)
        after, took = usage(bench.master), time.monotonic() - began
        writes = (bench.revision() - revision) / took
        broken = sum(count for _, count in bench.send("state")) - broken
    return (after.cpu_s - before.cpu_s) / took, after.rss / 2**20, (after.rss - empty) / nodes / 1024, broken, writes


# --- the limit -------------------------------------------------------------------------------------------------------


def _bare_server(pipe: Connection) -> None:
    async def handle(stream: Stream) -> None:
        while await stream.read() is not None:
            pass

    async def main() -> None:
        pipe.send(await GrpcTransport(NONE).listener("127.0.0.1:0", advertise="", handle=handle).start())
        await asyncio.Event().wait()

    raise_limit()
    asyncio.run(main())


def _bare_clients(pipe: Connection, address: str, count: int, heartbeat_s: float) -> None:
    body = frames.encode(frames.Beat(round=1, step=1, absolute=True))

    async def beat(number: int) -> None:
        await asyncio.sleep(heartbeat_s * number / count)
        while True:
            with contextlib.suppress(StreamBroken):  # thousands connect at once: some are disconnected, and retry
                async with GrpcTransport(NONE).connect(address) as stream:
                    while True:
                        await stream.write(body)
                        await asyncio.sleep(heartbeat_s)

    async def main() -> None:
        pipe.send("ready")
        await asyncio.gather(*(beat(number) for number in range(count)))

    raise_limit()
    asyncio.run(main())


def bare(nodes: int, heartbeat_s: float, seconds: float) -> float:
    """Return the CPU share of a server that only reads."""
    with child(_bare_server) as serving:
        address = serving.recv()
        with child(_bare_clients, address, nodes, heartbeat_s) as clients:
            clients.recv()
            time.sleep(3 + heartbeat_s + nodes / 500)
            before, began = usage(serving.pid).cpu_s, time.monotonic()
            time.sleep(seconds)
            return (usage(serving.pid).cpu_s - before) / (time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of agents")
    parser.add_argument("--heartbeat", type=float, help="seconds between heartbeats (default: by the number of agents)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds to measure")
    parser.add_argument("--processes", type=int, default=2, help="processes that the agents share")
    parser.add_argument("--quick", action="store_true", help="100 agents for 5 s; does not change RESULTS.md")
    args = parser.parse_args()
    sizes, seconds = ([100], 5.0) if args.quick else (args.sizes, args.seconds)
    rows = []
    for nodes in sizes:
        heartbeat_s = args.heartbeat or HEARTBEAT_S.get(nodes, 0.5)
        share, rss, each, broken, writes = ours(nodes, heartbeat_s, seconds, args.processes)
        limit = bare(nodes, heartbeat_s, seconds)
        rate = nodes / heartbeat_s
        cells = (
            f"{nodes:,}",
            f"{heartbeat_s:g} s",
            f"{share:.1%}",
            f"{share / rate * 1e6:.0f} us",
            f"{limit:.1%}",
            f"{share / limit:.1f}x" if limit else "",
            f"{rss:.0f} MiB",
            f"{each:.0f} KiB",
            f"{writes:.2f}",
            broken,
        )
        rows.append(cells)
        print(cells, flush=True)
    head = (
        "agents",
        "heartbeat",
        "master: of one core",
        "CPU per beat",
        "limit: bare gRPC",
        "ratio",
        "RSS",
        "RSS per agent",
        "writes to etcd /s",
        "streams broken",
    )
    body = table(head, rows) + (
        "\n\nThe cost of a heartbeat includes its share of the master's keep-alives (one per agent and second) and of "
        "the check of leases. The writes are progress samples, one every 10 s."
    )
    if args.quick or tuple(sizes) != SIZES:
        print(body)
    else:
        write("Heartbeats", "python benchmarks/heartbeats.py", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())

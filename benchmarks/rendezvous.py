"""Rendezvous of many nodes: ftcore's master compared with torchrun's c10d rendezvous.

Agents are light (``swarm.py``): real connections, real orders, no workers. Measured times: (a) from the first
connection until every agent has its slice of a world; (b) until all have passed a barrier of one client each at the
round's store; (c) a new round over open connections, after a worker failed: a stop order and its answer, a start order
and its answer; (c2) the second half of that alone; (d) a new world without one node that sends no more heartbeats.
Agents share the machine's cores with the master and etcd, so their CPU time is reported as well: with few cores the
wall time is mostly that of the agents.

The peer is torch's ``DynamicRendezvousHandler`` over a TCPStore, as torchrun uses it, one handler per thread: first
world, barrier at its store, and the next round.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import attrs
from results import table, write
from swarm import Field, child, field, usage

SIZES = (16, 64, 256, 1024, 4096)
PEER_SIZES = (16, 64, 128)
AIMS = {16: 0.02, 256: 0.5, 1024: 2.0, 4096: 15.0}
ROUND_AIM_S = 1.5
PEER_S = 180.0


@attrs.frozen
class Phase:
    """Cost of one phase.

    Args:
        wall_s: seconds until all agents were done.
        half_s: seconds after the last stop, if there was a stop.
        met_s: seconds until all had passed the barrier, if there was one.
        master_s: the master's CPU seconds.
        etcd_s: etcd's CPU seconds.
        broken: broken streams.
    """

    wall_s: float
    half_s: float
    met_s: float
    master_s: float
    etcd_s: float
    broken: int


def phase(bench: Field, round_: int, *words: object, wait_s: float = 0.3) -> Phase:
    """Send the commands, wait for the world of that round, let it complete a step, and pause."""
    time.sleep(wait_s)
    broken = sum(count for _, count in bench.send("state"))
    master, etcd = usage(bench.master).cpu_s, usage(bench.etcd).cpu_s
    began = time.monotonic()
    bench.send(*words)
    worlds = bench.send("world", round_)
    had, met = max(world for world, _ in worlds), max(met for _, met in worlds)
    master, etcd = usage(bench.master).cpu_s - master, usage(bench.etcd).cpu_s - etcd
    states = bench.send("state")
    stopped = max(moment for moment, _ in states)
    bench.send("step", round_)
    return Phase(
        wall_s=had - began,
        half_s=had - max(stopped, began),
        met_s=met - began if met else 0.0,
        master_s=master,
        etcd_s=etcd,
        broken=sum(count for _, count in states) - broken,
    )


def measure(nodes: int, rounds: int, processes: int) -> dict[str, list[Phase]]:
    """Run all phases at one size."""
    with tempfile.TemporaryDirectory() as directory, field(Path(directory), nodes, processes=processes) as bench:
        found = {"first": [phase(bench, 1, "connect", None)]}
        found["round"] = [phase(bench, 2 + count, "fail", count % nodes) for count in range(rounds)]
        found["loss"] = [phase(bench, 2 + rounds, "cut", nodes - 1)]
    return found


# --- the peer --------------------------------------------------------------------------------------------------------


def _peer(pipe: Connection, port: int, nodes: int, mine: int) -> None:
    import threading

    from torch.distributed import TCPStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

    stores = [TCPStore("127.0.0.1", port, is_master=False) for _ in range(mine)]
    handlers = [
        DynamicRendezvousHandler.from_backend(
            "bench", store, C10dRendezvousBackend(store, "bench"), nodes, nodes, local_addr="127.0.0.1"
        )
        for store in stores
    ]
    pipe.send("ready")
    for round_ in range(2):
        pipe.recv()
        worlds: list[float] = []
        met: list[float] = []

        def join(handler: Any, round_: int = round_, worlds: list[float] = worlds, met: list[float] = met) -> None:
            info = handler.next_rendezvous()
            worlds.append(time.monotonic())
            if info.store.add(f"arrived{round_}", 1) == nodes:
                info.store.set(f"all{round_}", "1")
            info.store.wait([f"all{round_}"])
            met.append(time.monotonic())

        threads = [threading.Thread(target=join, args=(handler,), daemon=True) for handler in handlers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        pipe.send((max(worlds, default=0.0), max(met, default=0.0)))


def measure_peer(nodes: int) -> list[tuple[float, float]] | None:
    """Return seconds to the world and through the barrier, of the first two rounds; None: not within ``PEER_S``."""
    from torch.distributed import TCPStore

    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    found: list[tuple[float, float]] = []
    shares = [nodes // 2, nodes - nodes // 2]
    with child(_peer, server.port, nodes, shares[0]) as one, child(_peer, server.port, nodes, shares[1]) as other:
        assert one.recv() == other.recv() == "ready"
        for _ in range(2):
            began = time.monotonic()
            for pipe in (one, other):
                pipe.send("go")
            answers = []
            for pipe in (one, other):
                if not pipe.poll(max(0.0, began + PEER_S - time.monotonic())):
                    return found or None
                answers.append(pipe.recv())
            found.append((max(world for world, _ in answers) - began, max(met for _, met in answers) - began))
    return found


# --- the report ------------------------------------------------------------------------------------------------------


def rows_of(nodes: int, found: dict[str, list[Phase]]) -> list[str]:
    first, loss = found["first"][0], found["loss"][0]
    middle = sorted(found["round"], key=lambda one: one.wall_s)[len(found["round"]) // 2]
    aim = AIMS.get(nodes)
    return [
        f"{nodes:,}",
        f"{first.wall_s:.3f} s",
        f"{aim:g} s: {'met' if first.wall_s <= aim else 'MISSED'}" if aim is not None else "",
        f"{first.met_s:.3f} s",
        f"{first.master_s:.2f} / {first.etcd_s:.2f} s",
        f"{middle.wall_s:.3f} s",
        f"{middle.half_s:.3f} s",
        f"{middle.master_s:.2f} / {middle.etcd_s:.2f} s",
        f"{loss.wall_s:.2f} s",
        str(sum(one.broken for phases in found.values() for one in phases)),
    ]


HEAD = (
    "nodes",
    "(a) all have a world",
    "aim",
    "(b) all have met",
    "CPU: master / etcd",
    "(c) new round",
    "(c2) start only",
    "CPU: master / etcd",
    "(d) one lost",
    "streams broken",
)


def growth(sizes: list[int], results: dict[int, dict[str, list[Phase]]]) -> str:
    """Describe how the master's CPU time per node grows."""
    lines = []
    for small, large in itertools.pairwise(sizes):
        parts = []
        for name, words in (("first", "first world"), ("round", "new round")):
            costs = [statistics.median(one.master_s for one in results[size][name]) / size for size in (small, large)]
            if costs[0] > 0:
                parts.append(f"{words} {costs[1] / costs[0]:.2f}x")
        growth = ", ".join(parts) or "too small to measure"
        lines.append(f"- {small:,} to {large:,} nodes, master's CPU per node: {growth}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="numbers of agents")
    parser.add_argument("--rounds", type=int, default=3, help="new rounds at each size")
    parser.add_argument("--processes", type=int, default=2, help="processes that the agents share")
    parser.add_argument("--no-peer", action="store_true", help="skip torchrun's rendezvous")
    parser.add_argument("--quick", action="store_true", help="16 and 64 agents; does not change RESULTS.md")
    args = parser.parse_args()
    sizes = [16, 64] if args.quick else args.sizes
    results: dict[int, dict[str, list[Phase]]] = {}
    rows = []
    for nodes in sizes:
        results[nodes] = measure(nodes, args.rounds, args.processes)
        rows.append(rows_of(nodes, results[nodes]))
        print(dict(zip(HEAD, rows[-1], strict=True)), flush=True)
    parts = [table(HEAD, rows), growth(sizes, results)]
    if not args.no_peer:
        peers = []
        for nodes in [16] if args.quick else PEER_SIZES:
            found = measure_peer(nodes)
            cells = [f"{world:.2f} s / {met:.2f} s" for world, met in found or ()]
            peers.append([f"{nodes}", *cells, *["not done"] * (2 - len(cells))])
            print(peers[-1], flush=True)
        head = ("nodes", "first world / all met", "next round / all met")
        parts += ["torchrun's c10d rendezvous:", table(head, peers)]
    large = results[sizes[-1]]["round"]
    half = statistics.median(one.half_s for one in large)
    parts.append(
        f"A new round of {sizes[-1]:,}, one order and one answer each: {half:.2f} s; aim {ROUND_AIM_S:g} s at 4,096: "
        f"{'met' if half <= ROUND_AIM_S else 'MISSED'}."
    )
    body = "\n\n".join(parts)
    if args.quick or args.no_peer or tuple(sizes) != SIZES:
        print(body)
    else:
        write("Rendezvous", "python benchmarks/rendezvous.py", body)
    return 0


if __name__ == "__main__":
    sys.exit(main())

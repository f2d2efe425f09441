"""Data queues: leases per second through real log stores, and what a step of the training loop pays.

Readers are tasks beside the master's sequencer: each reports that it has used what it was leased, asks for as much
again, and waits until the lease is durable. The limit, in the same run, is the same number of writers that append small
facts to the same store (``log.py``). The peer is a table in SQLite with a row for each data shard, where one
transaction marks what a reader has used as done and leases as much again, with the same sync.

The cost of a step is CPU time of the training process: a stream that reports to a keeper's socket, against the same
stream alone. A quick run prints and does not change RESULTS.md.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import os
import socket
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import attrs
from log import DISK, append, mastered
from results import spread, table, write

from ftcore.events.envelope import EventId, Fact
from ftcore.events.queue import QueueMark, QueueOpened, QueueReported, QueueSpec, ReaderReport
from ftcore.runtime.clock import at

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from etcd_cluster import Cluster, etcd_binary

READERS = 16
SHARDS = 50_000_000
BATCHES = (1, 64, 4096)
STEPS = 20_000


@attrs.frozen
class ShardEffort:
    """Amount of measurements: repeats, and seconds of each."""

    repeats: int
    seconds: float


FULL = ShardEffort(repeats=3, seconds=2.0)
QUICK = ShardEffort(repeats=1, seconds=0.5)


async def leased(url: str, job: str, batch: int, seconds: float) -> float:
    """Data shards per second that readers are leased, each so many at a time."""
    count = 0
    async with mastered(url, job, READERS) as master:
        state, said = master.sequencer.state, dict.fromkeys(master.nodes, 0)
        spec = QueueSpec(shards=SHARDS, epochs=0)
        end = time.perf_counter() + seconds

        async def say(node: str, data: object) -> None:
            said[node] += 1
            n = state.log.sources[node][1] + 1 if said[node] == 1 else said[node]
            said[node] = n
            life = state.membership.nodes[node].incarnation
            await master.sequencer.submit(Fact(id=EventId(node, life, n), data=data, at=at(master.clock.mono())))

        async def read(rank: int, node: str) -> None:
            nonlocal count
            life = state.membership.nodes[node].incarnation
            about: dict[str, Any] = {"node": node, "incarnation": life, "round": 1, "queue": "q"}
            await say(node, QueueOpened(**about, spec=spec, step=0, ranks=(rank,)))
            for step in itertools.count(1):
                if time.perf_counter() >= end:
                    return
                done = (step - 1) * batch
                marks = (QueueMark(step=step, done=done),) if done else ()
                told = ReaderReport(rank=rank, want=done + batch, marks=marks)
                await say(node, QueueReported(**about, readers=(told,)))
                count += state.queues["q"].live.readers[rank].leased - done

        await asyncio.gather(*(read(rank, node) for rank, node in enumerate(master.nodes)))
    return count / seconds


def of_table(path: Path, batch: int, seconds: float) -> float:
    """Data shards per second of a table with a row for each; it has as many rows as are needed."""
    rows = min(400_000, 400 * batch + 20_000)
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE shards (id INTEGER PRIMARY KEY, state INTEGER, reader INTEGER)")
    base.execute("CREATE INDEX by_state ON shards (state, id)")
    base.execute("BEGIN")
    base.executemany("INSERT INTO shards VALUES (?, 0, 0)", ((number,) for number in range(rows)))
    base.execute("COMMIT")
    count, begun, reader = 0, time.perf_counter(), 0
    while time.perf_counter() < begun + seconds and count + batch <= rows:
        reader = reader % READERS + 1
        base.execute("BEGIN IMMEDIATE")
        base.execute("UPDATE shards SET state = 2 WHERE state = 1 AND reader = ?", (reader,))
        taken = "SELECT id FROM shards WHERE state = 0 ORDER BY id LIMIT ?"
        base.execute(f"UPDATE shards SET state = 1, reader = ? WHERE id IN ({taken})", (reader, batch))
        base.execute("COMMIT")
        count += batch
    took = time.perf_counter() - begun
    base.close()
    return count / took


def _drain(channel: socket.socket) -> None:
    while channel.recv(65536):
        pass


def step_us(attached: bool) -> float:
    """CPU microseconds of a step: the next sample, and its end."""
    from ftcore.data import ShardQueue, ShardStream
    from ftcore.worker._queues import QueueChannel

    stream = ShardStream(ShardQueue("q", STEPS * 10, STEPS * 10, shuffle=False, epochs=0), range(STEPS * 10))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = multiprocessing.get_context("fork").Process(target=_drain, args=(theirs,), daemon=True)
    child.start()
    if attached:
        channel = QueueChannel("", lambda: (1, 0, 1))
        channel._socket, channel._pid = ours, os.getpid()
        stream.attach_queue(channel)
        stream._ask()
        stream._leases.append((0, 1, 0))
        stream._leased, stream._is_asking, stream._over = 1, False, True
    samples = iter(stream)
    next(samples)
    begun = time.process_time()
    for step in range(1, STEPS):
        next(samples)
        stream.step_ended(step)
    took = time.process_time() - begun
    child.kill()
    child.join()
    return took / STEPS * 1e6


async def measure(places: dict[str, str], directory: Path, effort: ShardEffort) -> str:
    """All tables."""
    rows = []
    for batch in BATCHES:
        peer = [of_table(directory / f"table-{batch}-{n}", batch, effort.seconds) for n in range(effort.repeats)]
        for name, url in places.items():
            ours, limit = [], []
            for repeat in range(effort.repeats):
                ours.append(await leased(url, f"q{batch}-{repeat}", batch, effort.seconds))
                limit.append((await append(url, f"a{batch}-{repeat}", READERS, effort.seconds))[0])
            middle = statistics.median(ours)
            share = f"{middle / batch / statistics.median(limit):.2f}"
            over = f"{middle / statistics.median(peer):.1f}" if name == "sqlite" else "-"
            rows.append((name, f"{batch:,}", spread(ours, "k/s", 1e-3), share, spread(peer, "k/s", 1e-3), over))
    head = ("store", "shards of a lease", "shards leased", "leases / appends of the log", "a row each", "ratio")
    alone = [step_us(attached=False) for _ in range(effort.repeats)]
    told = [step_us(attached=True) for _ in range(effort.repeats)]
    cost = statistics.median(told) - statistics.median(alone)
    body = time.strftime("%Y-%m-%d", time.gmtime()) + f". {READERS} readers of a queue of {SHARDS:,} data shards.\n\n"
    body += table(head, rows)
    body += f"\n\nA step of the stream takes {spread(told, 'us')} of CPU time with a report to the keeper, "
    return body + f"{spread(alone, 'us')} without: {cost:.1f} us for a report.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter, and once")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(dir=DISK, prefix="ftcore-bench-") as name:
        directory = Path(name)
        cluster = Cluster(directory / "etcd").start() if etcd_binary() is not None else None
        places = {"memory": "memory:bench", "sqlite": f"sqlite://{directory / 'logs'}"}
        if cluster is not None:
            places["etcd"] = cluster.url("bench")
        try:
            body = asyncio.run(measure(places, directory, QUICK if quick else FULL))
        finally:
            if cluster is not None:
                cluster.stop()
    if quick:
        print(body)
    else:
        write("Data shards", "python benchmarks/shards.py", body)


if __name__ == "__main__":
    main()

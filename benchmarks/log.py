"""Throughput and latency of the log: append, read and follow, compared with the limits of its stores and disk.

Writers are tasks beside the master's sequencer: each submits a fact, waits until it is durable and submits the next.
Facts take this path in production, after the agents' connection. The limits are measured alternately with it, on the
same disk, with bodies of the same size: bare commits of the store, and bare ``write`` + ``fdatasync``. etcd is one
member with its default fsync; without an etcd binary its rows are missing. A quick run prints and does not change
RESULTS.md.
"""

import argparse
import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import os
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import attrs
from bare import raw_disk, raw_etcd, raw_read_etcd, raw_read_sqlite, raw_sqlite
from fold import steady
from results import spread, table, write

from ftcore.etcd3 import Client, Config
from ftcore.events.codec import encode
from ftcore.events.envelope import Event, EventId, Fact
from ftcore.ids import JobName, Seq, Term
from ftcore.logs import open_store
from ftcore.ports import Candidate, EventLog
from ftcore.replay import fold_log_async
from ftcore.runtime.clock import SystemClock, at
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.sim.responder import stepped
from ftcore.states.model import JobState, digest
from ftcore.testing.driver import JobDriver

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from etcd_cluster import Cluster, etcd_binary

DISK = Path("/var/tmp")
"""Usually on a disk, as it is kept across boots; ``/tmp`` is often in memory, where a sync costs nothing."""

WRITERS = (1, 16, 128)
RATES = (100, 1000)
GROUP = 64
"""Rows in a large bare commit, and events in one append to fill a log that is read later."""

WARM_S = 0.2
WARM_EVENTS = 20
NONE = "-"

RawCommits: TypeAlias = Callable[[bytes, int, float], Awaitable[float]]
"""Takes body, rows in a commit and seconds; returns rows per second of sequential commits."""


@attrs.frozen
class Effort:
    """Amount of measurements.

    Args:
        repeats: repeats of all measurements.
        append_s: seconds of appending in each repeat.
        raw_s: seconds of each loop of bare commits in each repeat.
        events: length of the log that is read.
        follow_s: seconds at each rate.
    """

    repeats: int
    append_s: float
    raw_s: float
    events: int
    follow_s: float


FULL = Effort(repeats=3, append_s=0.6, raw_s=0.35, events=100_000, follow_s=3.0)
QUICK = Effort(repeats=1, append_s=0.5, raw_s=0.3, events=10_000, follow_s=1.0)


@attrs.frozen
class Place:
    """A store to measure.

    Args:
        name: name in the tables.
        url: URL of the store.
        raw: its bare commits, if any.
        raw_read: bare read of a job's bodies, if any.
    """

    name: str
    url: str
    raw: RawCommits | None = None
    raw_read: Callable[[str], Awaitable[None]] | None = None


# --- the production path ---------------------------------------------------------------------------------------------


class Master:
    """The sequencer of a running job, and its commits.

    Args:
        log: the log, with the events of ``state``.
        state: state of the running job.
        term: the master's term.
    """

    def __init__(self, log: EventLog, state: JobState, term: Term) -> None:
        self.clock = SystemClock(not_before=state.time)
        self.sequencer = Sequencer(log, state, term, self.clock, self._committed)
        self.nodes = [node.node for node in state.membership.alive()]
        self.commits: list[tuple[float, int]] = []
        self.body = b""
        self._said = {name: state.log.sources[name][1] for name in self.nodes}

    def submit(self, node: str) -> asyncio.Future[Seq]:
        """Submit a small fact that no decision follows."""
        state = self.sequencer.state
        found = state.membership.nodes[node]
        self._said[node] += 1
        data = stepped(found, self._said[node])
        return self.sequencer.submit(
            Fact(id=EventId(node, found.incarnation, self._said[node]), data=data, at=at(self.clock.mono()))
        )

    def _committed(self, batch: Sequence[Event]) -> None:
        self.commits.append((time.perf_counter(), len(batch)))
        self.body = self.body or encode(batch[-1])


@contextlib.asynccontextmanager
async def filled(url: str, job: str, events: Sequence[Event]) -> AsyncIterator[tuple[EventLog, Term]]:
    """Return a new log with the events, and the term of its next master."""
    store = open_store(url)
    try:
        log = await store.open(JobName(job), create=True)
        leadership = await log.campaign(Candidate(host="bench", pid=os.getpid(), address="unix:bench"))
        for first in range(0, len(events), GROUP):
            await log.append(events[first : first + GROUP], term=leadership.term, expected_seq=Seq(first))
        yield log, leadership.term
        await leadership.resign()
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def mastered(url: str, job: str, nodes: int) -> AsyncIterator[Master]:
    """Run a job on that many nodes with its sequencer."""
    driver = JobDriver(nodes=nodes)
    driver.start()
    async with filled(url, job, driver.events) as (log, term):
        master = Master(log, driver.state, term)
        running = asyncio.create_task(master.sequencer.run())
        try:
            yield master
        finally:
            running.cancel()
            await asyncio.wait({running})


# --- appending -------------------------------------------------------------------------------------------------------


@attrs.define
class Appends:
    """Results of a number of writers over all repeats; the lists have one entry per repeat."""

    rates: list[float] = attrs.field(factory=list)
    batches: list[float] = attrs.field(factory=list)
    raw: list[float] = attrs.field(factory=list)
    disk: list[float] = attrs.field(factory=list)
    latencies: list[float] = attrs.field(factory=list)


async def append(url: str, job: str, writers: int, seconds: float) -> tuple[float, float, list[float], bytes]:
    """Return events per second, events per commit, latencies in seconds, and the body of one event."""
    latencies: list[float] = []
    async with mastered(url, job, writers) as master:
        start = time.perf_counter() + WARM_S
        end = start + seconds

        async def write_on(node: str) -> None:
            now = time.perf_counter()
            while now < end:
                began = now
                await master.submit(node)
                now = time.perf_counter()
                if start <= now < end:
                    latencies.append(now - began)

        await asyncio.gather(*(write_on(node) for node in master.nodes))
        batches = [size for when, size in master.commits if start <= when < end]
        return len(latencies) / seconds, sum(batches) / len(batches), latencies, master.body


async def appends(place: Place, writers: int, files: Iterator[Path], effort: Effort) -> Appends:
    found = Appends()
    for repeat in range(effort.repeats):
        rate, batch, latencies, body = await append(place.url, f"w{writers}-{repeat}", writers, effort.append_s)
        found.rates.append(rate)
        found.batches.append(batch)
        found.latencies += latencies
        rows = max(1, round(batch))
        if place.raw is not None:
            found.raw.append(await place.raw(body, rows, effort.raw_s))
        found.disk.append(raw_disk(next(files), body, rows, effort.raw_s))
    return found


def append_row(place: Place, writers: int, found: Appends) -> list[str]:
    raw = [spread(found.raw, "k/s", 1e-3), of(found.rates, found.raw)] if found.raw else [NONE, NONE]
    return [
        place.name,
        str(writers),
        spread(found.rates, "k/s", 1e-3),
        tails(found.latencies, 1e3),
        f"{statistics.mean(found.batches):.1f}",
        *raw,
        spread(found.disk, "k/s", 1e-3),
        of(found.rates, found.disk),
    ]


# --- bare stores -----------------------------------------------------------------------------------------------------


async def ceilings(body: bytes, client: Client | None, files: Iterator[Path], effort: Effort) -> list[list[str]]:
    """Measure the bare stores with sequential commits of 1 or ``GROUP`` rows."""
    names = [f"{what}, {rows} a commit" for rows in (1, GROUP) for what in ("write + fdatasync", "sqlite3")]
    etcd = {
        "etcd Put": (1, True, 1),
        "etcd Put, 16 under way": (1, True, 16),
        "etcd Put, 128 under way": (1, True, 128),
        f"etcd Txn of {GROUP} Puts": (GROUP, False, 1),
        f"etcd Put of one value, {GROUP} rows": (GROUP, True, 1),
    }
    rates: dict[str, list[float]] = {name: [] for name in (*names, *(etcd if client is not None else ()))}
    for _ in range(effort.repeats):
        measured = iter(names)
        for rows in (1, GROUP):
            rates[next(measured)].append(raw_disk(next(files), body, rows, effort.raw_s))
            rates[next(measured)].append(raw_sqlite(next(files), body, rows, effort.raw_s))
        if client is not None:
            for name, (rows, one_value, flights) in etcd.items():
                rate = await raw_etcd(client, body, rows, effort.raw_s, one_value=one_value, flights=flights)
                rates[name].append(rate)
    disk = {1: rates[names[0]], GROUP: rates[names[2]]}
    sizes = dict(zip(names, (1, 1, GROUP, GROUP), strict=True)) | {name: size for name, (size, *_) in etcd.items()}
    return [[name, spread(values, "k/s", 1e-3), of(values, disk[sizes[name]])] for name, values in rates.items()]


# --- reading back ----------------------------------------------------------------------------------------------------


async def read_back(place: Place, driver: JobDriver, repeats: int) -> list[str]:
    """Return events per second: read and decoded, the same and folded, and bare bytes."""
    events = len(driver.events)
    rates: tuple[list[float], list[float], list[float]] = ([], [], [])
    async with filled(place.url, "read", driver.events) as (log, _):
        for _ in range(repeats):
            began = time.perf_counter()
            count = 0
            async for _event in log.read():
                count += 1
            rates[0].append(events / (time.perf_counter() - began))
            began = time.perf_counter()
            state = await fold_log_async(log.read())
            rates[1].append(events / (time.perf_counter() - began))
            assert count == events and digest(state) == digest(driver.state)
            if place.raw_read is not None:
                began = time.perf_counter()
                await place.raw_read("read")
                rates[2].append(events / (time.perf_counter() - began))
    raw = [spread(rates[2], "k/s", 1e-3), of(rates[0], rates[2])] if rates[2] else [NONE, NONE]
    return [place.name, spread(rates[0], "k/s", 1e-3), spread(rates[1], "k/s", 1e-3), *raw]


# --- following -------------------------------------------------------------------------------------------------------


def follower(pipe: Connection, url: str, job: str, after: int, count: int) -> None:
    """In another process: report the first event, then the seconds from each fact's own clock to its arrival."""

    async def follow() -> list[float]:
        store = open_store(url)
        lags: list[float] = []
        try:
            log = await store.open(JobName(job))
            async for event in log.follow(Seq(after)):
                now = time.monotonic_ns()
                if event.seq == after + 1:
                    pipe.send("following")
                    continue
                assert event.at is not None
                lags.append((now - event.at.mono) / 1e9)
                if len(lags) == count:
                    break
        finally:
            await store.close()
        return lags

    pipe.send(asyncio.run(follow()))


def listener(pipe: Connection, path: str, count: int) -> None:
    """In another process: report the seconds that each datagram took."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(path)
        pipe.send("listening")
        lags: list[float] = []
        for _ in range(count):
            (sent,) = struct.unpack("q", receiver.recv(8))
            lags.append((time.monotonic_ns() - sent) / 1e9)
    pipe.send(lags)


@contextlib.contextmanager
def child(main: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Start a process that runs ``main(pipe, *arguments)``; return the pipe's other end."""
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=main, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
        process.join()
    finally:
        process.kill()
        process.join()


async def paced(rate: float, count: int, work: Callable[[], None]) -> None:
    began = time.monotonic()
    for number in range(count):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        work()


async def follow_lags(url: str, rate: int, seconds: float) -> tuple[list[float], list[float]]:
    """Return seconds from submission of facts to their acknowledgement, and to their arrival in another process."""
    durable: list[float] = []
    count = WARM_EVENTS + int(rate * seconds)
    job = f"follow-{rate}"
    async with mastered(url, job, 8) as master:
        nodes = itertools.cycle(master.nodes)

        def submit_next() -> None:
            began = time.monotonic()
            master.submit(next(nodes)).add_done_callback(lambda _: durable.append(time.monotonic() - began))

        with child(follower, url, job, master.sequencer.state.seq - 1, count) as pipe:
            await asyncio.to_thread(pipe.recv)
            await paced(rate, count, submit_next)
            followed = await asyncio.to_thread(pipe.recv)
    return durable[WARM_EVENTS:], followed[WARM_EVENTS:]


async def ping_lags(path: Path, rate: int, seconds: float) -> list[float]:
    """Return seconds from a write to a Unix datagram socket to its arrival in another process."""
    count = WARM_EVENTS + int(rate * seconds)
    with child(listener, str(path), count) as pipe, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        await asyncio.to_thread(pipe.recv)
        sender.connect(str(path))
        await paced(rate, count, lambda: sender.sendall(struct.pack("q", time.monotonic_ns())))
        lags: list[float] = await asyncio.to_thread(pipe.recv)
    path.unlink()
    return lags[WARM_EVENTS:]


async def follow_row(place: Place, rate: int, files: Iterator[Path], effort: Effort) -> list[str]:
    durable, followed = await follow_lags(place.url, rate, effort.follow_s)
    ping = await ping_lags(next(files), rate, effort.follow_s / 2)
    return [
        place.name,
        f"{rate:,}/s",
        tails(durable, 1e3),
        tails(followed, 1e3),
        f"{(statistics.median(followed) - statistics.median(durable)) * 1e3:+.2f}",
        tails(ping, 1e3),
        of(followed, ping),
    ]


# --- all of it -------------------------------------------------------------------------------------------------------


def tails(values: Sequence[float], scale: float) -> str:
    """``p50 / p99``."""
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2] * scale:.2f} / {ordered[len(ordered) * 99 // 100] * scale:.2f}"


def of(values: Sequence[float], limit: Sequence[float]) -> str:
    return f"{statistics.median(values) / statistics.median(limit):.2f}"


async def measure(places: Sequence[Place], client: Client | None, files: Iterator[Path], effort: Effort) -> str:
    appended = []
    body = b""
    for place in places:
        for writers in WRITERS:
            appended.append(append_row(place, writers, await appends(place, writers, files, effort)))
    async with mastered("memory:ceilings", "body", 8) as master:
        await master.submit(master.nodes[0])
        body = master.body
    bare = await ceilings(body, client, files, effort)
    driver = steady(effort.events)
    gc.collect()
    gc.freeze()  # keeps the garbage collector from scanning the log, which is in memory only for comparison
    read = [await read_back(place, driver, effort.repeats) for place in places]
    gc.unfreeze()
    remote = [place for place in places if place.raw is not None]
    followed = [await follow_row(place, rate, files, effort) for place in remote for rate in RATES]
    return "\n\n".join(
        (
            f"Events (or rows of the same bytes, {len(body)} B) per second; times in milliseconds, p50 / p99.",
            "Append: closed loop through the master's sequencer with group commit. *Store* and *disk*: bare commits "
            "one after the other, each of as many rows as there were events per commit (etcd: as one value).",
            table(("store", "writers", "events", "ms", "per commit", "store", "of it", "disk", "of it"), appended),
            "What the stores and the disk can do; the ratio is to write + fdatasync of as many rows.",
            table(("bare", "rows", "of disk"), bare),
            f"A log of {len(driver.events):,} events, {GROUP} to an append, read back. *Raw*: one SELECT, or paged "
            "ranges, of the same bytes; nothing decoded. The ratio is of read to raw.",
            table(("store", "read, decoded", "and folded", "raw", "ratio"), read),
            "From submission of a fact to its acknowledgement, and to its arrival at a follower in another process; "
            "etcd may notify the follower first. *Ping*: a Unix datagram, ratio of medians.",
            table(("store", "rate", "durable", "followed", "after durable", "ping", "of ping"), followed),
        )
    )


async def bench(directory: Path, cluster: Cluster | None, effort: Effort) -> str:
    files = (directory / f"raw-{number}" for number in itertools.count())
    logs = directory / "logs"

    async def sqlite_commits(body: bytes, rows: int, seconds: float) -> float:
        return raw_sqlite(next(files), body, rows, seconds)

    places = [
        Place("memory", "memory:bench"),
        Place("sqlite", f"sqlite://{logs}", sqlite_commits, lambda job: raw_read_sqlite(logs / f"{job}.db")),
    ]
    if cluster is None:
        return await measure(places, None, files, effort)
    client = Client(Config.from_url(cluster.url("bench")))

    async def etcd_commits(body: bytes, rows: int, seconds: float) -> float:
        return await raw_etcd(client, body, rows, seconds, one_value=True, flights=1)

    places.append(Place("etcd", cluster.url("bench"), etcd_commits, lambda job: raw_read_etcd(client, job)))
    try:
        return await measure(places, client, files, effort)
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="shorter, once, and a tenth of the events")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory(dir=DISK, prefix="ftcore-bench-") as name:
        directory = Path(name)
        cluster = Cluster(directory / "etcd").start() if etcd_binary() is not None else None
        try:
            body = asyncio.run(bench(directory, cluster, QUICK if quick else FULL))
        finally:
            if cluster is not None:
                cluster.stop()
    if quick:
        print(body)
    else:
        write("Log", "python benchmarks/log.py", body)


if __name__ == "__main__":
    main()

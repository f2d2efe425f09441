"""Limits for ``log.py``: bare commits and bare reads of the log's stores and disk."""

import asyncio
import contextlib
import itertools
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftcore.etcd3 import Client, Put, Range, Txn, prefix_end
from ftcore.events.codec import DIGEST_BYTES
from ftcore.logs.etcd_layout import LAYOUT, Keys

PAGE_KEYS = 64
FILE_BYTES = 16 << 20


def commits_per_s(commit: Callable[[int], Any], seconds: float) -> float:
    """Return commits per second; ``commit`` gets its number."""
    number = 0
    began = now = time.perf_counter()
    while now < began + seconds:
        commit(number)
        number += 1
        now = time.perf_counter()
    return number / (now - began)


def raw_disk(path: Path, body: bytes, rows: int, seconds: float) -> float:
    """Return rows per second written and synced.

    The file is overwritten from its start, as the stores do with their logs: if a file grows, the file system commits
    its length at every sync.
    """
    data = (body + bytes(DIGEST_BYTES)) * rows
    places = FILE_BYTES // len(data)
    path.write_bytes(bytes(FILE_BYTES))
    fd = os.open(path, os.O_WRONLY)
    os.fsync(fd)

    def commit(number: int) -> None:
        os.pwrite(fd, data, number % places * len(data))
        os.fdatasync(fd)

    try:
        return rows * commits_per_s(commit, seconds)
    finally:
        os.close(fd)
        path.unlink()


def raw_sqlite(path: Path, body: bytes, rows: int, seconds: float) -> float:
    """Return rows per second committed to a table like the log's, with ``synchronous=FULL``."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, digest BLOB NOT NULL)")

        def commit(number: int) -> None:
            db.execute("BEGIN IMMEDIATE")
            first = number * rows
            db.executemany(
                "INSERT INTO events VALUES (?, ?, ?)",
                [(seq, body, bytes(DIGEST_BYTES)) for seq in range(first, first + rows)],
            )
            db.execute("COMMIT")

        return rows * commits_per_s(commit, seconds)


async def raw_etcd(client: Client, body: bytes, rows: int, seconds: float, *, one_value: bool, flights: int) -> float:
    """Return rows per second written to etcd.

    Args:
        client: connection to etcd.
        body: contents of a row.
        rows: rows in one request.
        seconds: duration.
        one_value: all rows of a request under one key in one Put, else each under its own key in one Txn.
        flights: concurrent requests.
    """
    numbers = itertools.count()
    base = b"raw/%x/" % time.monotonic_ns()
    began = time.perf_counter()

    async def go_on() -> int:
        done = 0
        while time.perf_counter() < began + seconds:
            key = base + b"%016x" % next(numbers)
            if one_value:
                await client.put(Put(key, body * rows))
            else:
                await client.txn(Txn(success=tuple(Put(key + b"/%x" % row, body) for row in range(rows))))
            done += 1
        return done

    done = await asyncio.gather(*(go_on() for _ in range(flights)))
    return rows * sum(done) / (time.perf_counter() - began)


async def raw_read_sqlite(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT seq, body, digest FROM events ORDER BY seq").fetchall()


async def raw_read_etcd(client: Client, job: str) -> None:
    start = Keys(f"{client.config.prefix}/ftcore/{LAYOUT}/{job}/".encode()).log
    end = prefix_end(start)
    while True:
        page = await client.range(Range(start, end, limit=PAGE_KEYS))
        if not page.more:
            return
        start = page.kvs[-1].key + b"\0"

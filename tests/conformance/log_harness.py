"""Harness of the conformance suite: a store, events, and child processes that use the store."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs

from ftcore.events import Event, EventId, Kind
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import JobName, Nanoseconds, Seq, Term
from ftcore.logs import open_store
from ftcore.ports import Candidate, EventLog, LogStore

JOB = JobName("demo")
CHILD = Path(__file__).with_name("log_child.py")


def note(seq: int, term: int, text: str = "") -> Event:
    """An event with a text in it."""
    return Event(
        seq=Seq(seq),
        id=EventId("master", str(term), seq),
        time=Nanoseconds(seq),
        type="operator.commanded",
        kind=Kind.FACT,
        source="test",
        term=Term(term),
        data=OperatorCommanded(command="note", who="test", why=text),
    )


def notes(first: int, last: int, term: int, text: str = "") -> list[Event]:
    return [note(seq, term, text) for seq in range(first, last + 1)]


def me(name: str = "here") -> Candidate:
    return Candidate(host=name, pid=os.getpid(), address=f"{name}:1")


async def seqs(log: EventLog, after: int = 0, until: int | None = None) -> list[int]:
    return [event.seq async for event in log.read(Seq(after), None if until is None else Seq(until))]


async def followed(log: EventLog, after: int, until: int) -> list[int]:
    """The seqs that a follower sees, up to a given one."""
    seen: list[int] = []
    async with contextlib.aclosing(log.follow(Seq(after))) as events:
        async for event in events:
            seen.append(event.seq)
            if event.seq >= until:
                break
    return seen


class Child:
    """A child process with the log open; see ``log_child.py``."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def tell(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command).encode() + b"\n")
        await self.process.stdin.drain()

    async def hear(self) -> Any:
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "the child process died"
        return json.loads(line)

    async def ask(self, **command: Any) -> Any:
        await self.tell(**command)
        return await self.hear()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        # The transport of a pipe whose end was not read yet would be closed after the loop.
        self.process._transport.close()  # type: ignore[attr-defined]


@attrs.define
class Harness:
    """A place for one backend's logs, empty at first.

    Args:
        url: where.
        shared: other processes may use it too.
    """

    url: str
    shared: bool
    _stores: list[LogStore] = attrs.field(factory=list, init=False)
    _children: list[Child] = attrs.field(factory=list, init=False)

    def store(self) -> LogStore:
        store = open_store(self.url)
        self._stores.append(store)
        return store

    async def open(self, job: JobName = JOB) -> EventLog:
        """A separate handle through a separate store, as in another process."""
        return await self.store().open(job, create=True)

    async def spawn(self) -> Child:
        assert self.shared
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CHILD),
            self.url,
            JOB,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 22,
        )
        child = Child(process)
        self._children.append(child)
        return child

    async def close(self) -> None:
        for child in self._children:
            await child.end()
        for store in self._stores:
            await store.close()


@contextlib.asynccontextmanager
async def harness(url: str, shared: bool) -> AsyncIterator[Harness]:
    place = Harness(url, shared)
    try:
        yield place
    finally:
        await place.close()

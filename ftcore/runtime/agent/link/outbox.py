"""The outbox: facts that no master has acknowledged yet, in memory and on disk.

A fact is numbered once and keeps its number when it is sent again. The journal (``journal.py``) lets the next agent of
the node deliver the facts that this one could not. If the disk fails or stalls (an unreachable file server), only those
facts are lost.

The journal belongs to one log: its directory is named by the log's identity, which is part of the master's welcome.
Before that, facts are kept in memory only. A job of the same name in another store has another log and never gets them.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from ftcore.errors import LogCorrupt
from ftcore.events.codec import decode_fact, encode_fact
from ftcore.events.envelope import At, EventId, Fact
from ftcore.events.operator import OperatorCommanded
from ftcore.ports import Journal

OUTBOX_FACTS_MAX = 10_000
"""Limit of facts in memory; reached only by a crash loop of workers without a master."""

CLOSE_S = 2.0
"""Timeout of closing the journal, in seconds."""

READ_S = 2.0
"""Timeout of reading the predecessor's facts, in seconds."""


class Outbox:
    """Facts of one incarnation of an agent, oldest first, and those left by its predecessor.

    Args:
        node: the node.
        incarnation: the agent's incarnation.
        wake: called when a fact is added.
    """

    def __init__(self, node: str, incarnation: str, wake: Callable[[], None]) -> None:
        self._node = node
        self._incarnation = incarnation
        self._wake = wake
        self._n = 0
        self.acked = 0
        self._facts: list[tuple[Fact, bytes]] = []
        self._acknowledged = asyncio.Event()
        self._journal: Journal | None = None

    def open(self, make: Callable[[], Journal]) -> None:
        """Write all facts to a journal from now on, beginning with those in memory; later calls have no effect.

        Args:
            make: opens the journal of this node and log; existing lines are the predecessor's.
        """
        if self._journal is None:
            self._journal = make()
            for _, body in self._facts:
                self._journal.append(body)

    async def inherited(self) -> list[bytes]:
        """The predecessor's facts as JSON; empty after the first acknowledgement of this incarnation.

        Waits at most ``READ_S`` for the disk: later facts of the predecessor would follow those of a newer incarnation.
        """
        if self.acked or self._journal is None:
            return []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                return _predecessor_facts(await self._journal.left())
        return []

    def add(self, data: Any, at: At) -> int:
        """Number a fact and queue it; returns its number."""
        self._n += 1
        fact = Fact(id=EventId(self._node, self._incarnation, self._n), data=data, at=at)
        body = encode_fact(fact)
        self._facts.append((fact, body))
        del self._facts[:-OUTBOX_FACTS_MAX]
        if self._journal is not None:
            self._journal.append(body)
        self._wake()
        return self._n

    def unacknowledged(self, after: int) -> list[tuple[int, bytes]]:
        """Facts with a number above ``after``, as ``(number, JSON)``."""
        return [(fact.id.n, body) for fact, body in self._facts if fact.id.n > after]

    def acknowledge(self, n: int) -> None:
        """Remove the facts up to that number: they are durable."""
        self.acked = max(self.acked, n)
        self._facts = [(fact, body) for fact, body in self._facts if fact.id.n > n]
        self._acknowledged.set()
        if not self._facts and self._journal is not None:
            self._journal.empty()

    async def emptied(self) -> None:
        """Wait until all facts are acknowledged."""
        while self._facts:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def close(self) -> None:
        """Write pending facts and close the journal, within ``CLOSE_S``; unacknowledged facts stay in it."""
        if self._journal is not None:
            await self._journal.close(CLOSE_S)


def _predecessor_facts(lines: list[bytes]) -> list[bytes]:
    """The facts of the last earlier incarnation among the lines of a journal."""
    facts: list[tuple[str, bytes]] = []
    for line in lines:
        try:
            fact = decode_fact(line)
        except LogCorrupt:
            continue  # incomplete: the agent died while writing it, or the disk was full
        if not isinstance(fact.data, OperatorCommanded):  # a request to end that incarnation, not this one
            facts.append((fact.id.incarnation, line))
    # Only the last incarnation: it sent its own predecessor's facts before its first one, so they may be in the log,
    # and the fold detects duplicates only of the newest incarnation.
    return [line for incarnation, line in facts if incarnation == facts[-1][0]]

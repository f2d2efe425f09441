"""The outbox: facts that no master has acknowledged yet, in memory and on disk.

A fact is numbered once and keeps its number however often it is sent. The journal (``journal.py``) lets the next agent
of the node deliver what this one could not. A disk that refuses, or an agent that dies or begins while its disk stalls
(a home on a server that is away), costs what the next agent would have delivered, and nothing else.

The journal belongs to one log: its folder is named after the log's identity, which a master tells in its welcome. Until
then facts are kept in memory alone. A job of the same name in another store has another log, and never sees them.
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
"""Bound of the memory of an agent without a master; reached only by a crash loop without a master to stop it."""

CLOSE_S = 2.0
"""An agent that ends waits at most so long for its disk."""

READ_S = 2.0
"""An agent that begins waits at most so long for what its predecessor left."""


class Outbox:
    """Facts of one agent incarnation, oldest first, with those that its predecessor left.

    Args:
        node: the node.
        incarnation: this agent's life.
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
        """Keep the facts in a journal from now on, those that are there first; only the first call counts.

        Args:
            make: opens the journal of this node and log; its lines, if any, are the predecessor's.
        """
        if self._journal is None:
            self._journal = make()
            for _, body in self._facts:
                self._journal.append(body)

    async def inherited(self) -> list[bytes]:
        """What the predecessor left, as JSON, until a fact of this life is acknowledged: then it was told, or never is.

        Waits for the disk, at most ``READ_S``: what it says later is too late, the fold takes this life for the newest.
        """
        if self.acked or self._journal is None:
            return []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                return _left_by(await self._journal.left())
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
        """Facts up to that number are durable."""
        self.acked = max(self.acked, n)
        self._facts = [(fact, body) for fact, body in self._facts if fact.id.n > n]
        self._acknowledged.set()
        if not self._facts and self._journal is not None:
            self._journal.empty()

    async def emptied(self) -> None:
        """Wait until everything is acknowledged."""
        while self._facts:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    async def close(self) -> None:
        """Close the journal behind what is to be in it, within ``CLOSE_S``; what is not acknowledged stays in it."""
        if self._journal is not None:
            await self._journal.close(CLOSE_S)


def _left_by(lines: list[bytes]) -> list[bytes]:
    """What the last life before this one has to say, of all that lies there."""
    facts: list[tuple[str, bytes]] = []
    for line in lines:
        try:
            fact = decode_fact(line)
        except LogCorrupt:
            continue  # half-written: its agent died while writing it, or had no space, so nothing was promised
        if not isinstance(fact.data, OperatorCommanded):  # somebody's wish to end that life, not this one
            facts.append((fact.id.incarnation, line))
    # Only the last life's: it sent its own predecessor's before its first, so those may be in the log, and the fold
    # knows a duplicate only among the newest life's.
    return [line for incarnation, line in facts if incarnation == facts[-1][0]]

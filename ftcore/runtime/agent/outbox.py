"""The outbox: facts that no master has acknowledged yet, in memory and on disk.

A fact is numbered once and keeps its number however often it is sent. The file lets the next agent of the node deliver
what this one could not. A disk that refuses to be written costs that, and nothing else.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftcore.errors import LogCorrupt
from ftcore.events.codec import decode_fact, encode_fact
from ftcore.events.envelope import At, EventId, Fact
from ftcore.events.operator import OperatorCommanded

OUTBOX_FACTS_MAX = 10_000
"""Bound of the memory of an agent without a master; reached only by a crash loop without a master to stop it."""


class Outbox:
    """Facts of one agent incarnation, oldest first, with those that its predecessor left.

    Args:
        path: the file; its content, if any, is the predecessor's.
        node: the node.
        incarnation: this agent's life.
        wake: called when a fact is added.
    """

    def __init__(self, path: Path, node: str, incarnation: str, wake: Callable[[], None]) -> None:
        self._path = path
        self._node = node
        self._incarnation = incarnation
        self._wake = wake
        self._n = 0
        self.acked = 0
        self._facts: list[tuple[Fact, bytes]] = []
        self._file: Any = None
        self._acknowledged = asyncio.Event()
        self.inherited = self._read_predecessor()
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = open(path, "ab", buffering=0, opener=_private)  # noqa: SIM115  (open for the agent's life)

    def _read_predecessor(self) -> list[bytes]:
        try:
            lines = self._path.read_bytes().splitlines()
        except OSError:
            return []
        facts: list[tuple[str, bytes]] = []
        for line in lines:
            try:
                fact = decode_fact(line)
            except LogCorrupt:
                continue  # half-written: its agent died while writing it, or had no space, so nothing was promised
            if not isinstance(fact.data, OperatorCommanded):  # somebody's wish to end that life, not this one
                facts.append((fact.id.incarnation, line))
        # Only the last life's: it sent its own predecessor's before its first, so those may be in the log, and the
        # fold knows a duplicate only among the newest life's.
        return [line for incarnation, line in facts if incarnation == facts[-1][0]]

    def add(self, data: Any, at: At) -> int:
        """Number a fact and queue it; returns its number."""
        self._n += 1
        fact = Fact(id=EventId(self._node, self._incarnation, self._n), data=data, at=at)
        body = encode_fact(fact)
        self._facts.append((fact, body))
        del self._facts[:-OUTBOX_FACTS_MAX]
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.write(b"\n" + body)  # in front: a line that was cut short spoils no other
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
        if not self._facts:
            self.inherited = []
            if self._file is not None:
                with contextlib.suppress(OSError):
                    self._file.truncate(0)

    async def emptied(self) -> None:
        """Wait until everything is acknowledged."""
        while self._facts:
            self._acknowledged.clear()
            await self._acknowledged.wait()

    def close(self) -> None:
        """Close the file; what is not acknowledged stays in it."""
        if self._file is not None:
            self._file.close()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)

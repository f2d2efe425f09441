"""Transport over the simulated network; see ``ports.Transport``.

It carries the encoded frames of production. Some are delivered twice, depending on the seed: facts at once, orders
within ``REDELIVERY_S``. A stream to an address without a listener breaks on first use.
"""

import asyncio
import contextlib
import random
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from ftcore.errors import StreamBroken
from ftcore.ports import Handle, Stream
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.hosts import Process
from ftcore.sim.protocol.network import End, Network, Wire

REDELIVERY_S = 5.0
"""Longest delay of the second delivery of an order."""

CLOSING_S = 0.5
"""Seconds for which a stopping listener waits for its streams."""

FACTS, ORDERS = b'{"f":"facts"', b'{"f":"orders"'

Tap = Callable[["Process", bytes], None]
"""Called with each frame that an agent sends or receives."""


class Switchboard:
    """All listeners of a simulation, and the network between them.

    Args:
        net: the network.
        chance: random generator of repeats.
        twice: share of frames that are delivered twice.
        sent, heard: called with each frame that a client sends, and receives.
    """

    def __init__(self, net: Network, chance: random.Random, twice: float, sent: Tap, heard: Tap) -> None:
        self.net, self.chance, self.twice = net, chance, twice
        self.sent, self.heard = sent, heard
        self.listeners: dict[str, SimListener] = {}


class SimTransport:
    """The transport of one process.

    Args:
        board: the listeners.
        process: the process.
    """

    def __init__(self, board: Switchboard, process: Process) -> None:
        self._board, self._process = board, process

    @contextlib.asynccontextmanager
    async def connect(self, target: str) -> AsyncIterator[Stream]:
        """See ``ports.Transport``."""
        board = self._board
        side = _Side(self._process)
        listener = board.listeners.get(target)
        if listener is None or not listener.reachable:
            side.broken()
            yield side
            return
        side.tapped = board
        listener.accept(side)
        try:
            yield side
        finally:
            side.close()

    def listener(self, target: str, *, advertise: str, handle: Handle) -> "SimListener":
        """See ``ports.Transport``."""
        return SimListener(self._board, self._process, target, handle)


class SimListener:
    """The listener of one process; see ``ports.Listener``.

    Args:
        board: the listeners.
        process: the process.
        address: its address.
        handle: serves each stream.
    """

    def __init__(self, board: Switchboard, process: Process, address: str, handle: Handle) -> None:
        self._board, self._process, self._address, self._handle = board, process, address, handle
        self._serving: dict[asyncio.Task[None], None] = {}
        self.reachable = False

    async def start(self) -> str:
        """See ``ports.Listener``."""
        self._board.listeners[self._address] = self
        self.reachable = True
        return self._address

    async def restore(self) -> None:
        """See ``ports.Listener``."""
        self.reachable = True

    async def stop(self) -> None:
        """See ``ports.Listener``."""
        self._board.listeners.pop(self._address, None)
        if self._serving:
            await asyncio.wait(list(self._serving), timeout=CLOSING_S)
        for task in self._serving:
            task.cancel()

    def accept(self, caller: "_Side") -> None:
        """Accept a client's stream, and serve it."""
        side = _Side(self._process)
        wire = self._board.net.connect(caller.end, side.end)
        caller.wire = side.wire = wire
        side.doubles = lambda: self._board.chance.random() < self._board.twice
        self._process.wake_for(lambda: self._serve(side))

    def _serve(self, side: "_Side") -> None:
        task = self._process.loop.create_task(self._served(side))
        self._serving[task] = None
        task.add_done_callback(lambda ended: self._serving.pop(ended, None))
        side.on_broken = task.cancel

    async def _served(self, side: "_Side") -> None:
        with contextlib.suppress(StreamBroken):
            await self._handle(side)
        side.finish()


class _Side:
    """One end of a stream; see ``ports.Stream``.

    Args:
        process: the process.
    """

    peer = "simulated"

    def __init__(self, process: Process) -> None:
        self._process = process
        self.end = End(process, self.hear, self.broken, self.finished)
        self.wire: Wire | None = None
        self.tapped: Switchboard | None = None
        self.doubles: Callable[[], bool] = lambda: False
        self.on_broken: Callable[[], object] = lambda: None
        self._inbox: deque[bytes] = deque()
        self._over: StreamBroken | None = None
        self._finished = self._closed = False
        self._waiter: asyncio.Future[None] | None = None

    # -- for its process

    async def read(self) -> bytes | None:
        """See ``ports.Stream``."""
        while not self._inbox:
            if self._finished:
                return None
            if self._over is not None:
                raise self._over
            self._waiter = self._process.loop.create_future()
            await self._waiter
        return self._inbox.popleft()

    async def write(self, frame: bytes) -> None:
        """See ``ports.Stream``."""
        await asyncio.sleep(0)
        if self._over is not None or self._finished:
            raise self._over or StreamBroken("the stream has ended")
        assert self.wire is not None
        if self.tapped is not None:
            self.tapped.sent(self._process, frame)
        self.wire.send(self.end, frame)

    def close(self) -> None:
        """Break the stream."""
        self._closed = True
        if self.wire is not None and self._process.alive:
            self.wire.close()

    def finish(self) -> None:
        """Close the stream after all written frames are delivered."""
        if self.wire is not None and self._process.alive:
            self.wire.finish(self.end)

    # -- for the network

    def hear(self, frame: bytes) -> None:
        """Receive a frame."""
        if self._closed:
            return  # in flight when the process closed the stream
        board = self.tapped
        if board is not None:
            board.heard(self._process, frame)
            if frame.startswith(ORDERS) and board.chance.random() < board.twice:
                assert self.wire is not None  # a frozen or dead sender repeats nothing
                sender = self.wire.server.process
                sender.after(ns(board.chance.uniform(0, REDELIVERY_S)), lambda: self._take(frame))
        elif frame.startswith(FACTS) and self.doubles():
            self._take(frame)
        self._take(frame)

    def broken(self) -> None:
        """Mark the stream as broken."""
        if self._over is None:
            self._over = StreamBroken("the stream broke", "UNAVAILABLE")
            self._wake()
            self.on_broken()

    def finished(self) -> None:
        """The peer has closed the stream."""
        self._finished = True
        self._wake()

    def _take(self, frame: Any) -> None:
        if self._over is None and not self._finished:
            self._inbox.append(frame)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

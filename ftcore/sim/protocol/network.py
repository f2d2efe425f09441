"""Simulated network: ordered, reliable streams between processes, as in TCP, on hosts with partitions.

Frames in a stream are neither lost nor reordered: they are late, wait during a partition, or the stream breaks. Frames
in flight at that time may or may not arrive. So frames of several streams may be late, repeated and reordered.
Partitions may be one-way.
"""

import functools
import random
from collections import deque
from collections.abc import Callable
from math import log
from typing import Any

import attrs

from ftcore.ids import SECOND
from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process

POLL_NS = ns(0.05)
"""Retry interval of a blocked stream."""

_BROKEN, _FINISHED = object(), object()


@attrs.define(eq=False)
class End:
    """Receiving end of a stream.

    Args:
        process: the receiving process.
        heard: called with each frame.
        broken: called when the stream has broken.
        finished: called when the peer has closed the stream.
    """

    process: Process
    heard: Callable[[bytes], None]
    broken: Callable[[], None]
    finished: Callable[[], None]


class Wire:
    """A stream between two processes; ``client`` and ``server`` are its ends."""

    def __init__(self, net: "Network", client: End, server: End) -> None:
        self.client, self.server = client, server
        self.open = True
        self._ways: dict[int, _Way] = {id(client): _Way(net, client, server), id(server): _Way(net, server, client)}

    def send(self, sender: End, frame: bytes) -> None:
        """Send a frame to the other end."""
        if self.open:
            self._ways[id(sender)].put(frame)

    def finish(self, sender: End) -> None:
        """Close the stream after all sent frames are delivered."""
        if self.open:
            self.open = False
            self._ways[id(sender)].put(_FINISHED)

    def close(self) -> None:
        """Break the stream: each end is notified after the frames in flight, which may be lost."""
        if not self.open:
            return
        self.open = False
        for way in self._ways.values():
            way.end()


class _Way:
    """One direction of a stream."""

    def __init__(self, net: "Network", source: End, target: End) -> None:
        self._net, self._source, self._target = net, source, target
        self._queue: deque[tuple[int, Any]] = deque()
        self._last = 0
        self._pumping = False

    def put(self, frame: Any) -> None:
        clock = self._net.clock
        self._last = max(self._last, clock.now + self._net.delay())
        self._queue.append((self._last, frame))
        if not self._pumping:
            self._pumping = True
            clock.at(self._last, self._pump)

    def end(self) -> None:
        if self._net.chance.random() < 0.5:
            self._queue.clear()
        self.put(_BROKEN)

    def _pump(self) -> None:
        now = self._net.clock.now
        while self._queue and self._queue[0][0] <= now:
            if self._net.blocks(self._source.process.host.name, self._target.process.host.name):
                self._net.clock.after(POLL_NS, self._pump)
                return
            frame = self._queue.popleft()[1]
            target = self._target
            if frame is _BROKEN:
                target.process.wake_for(target.broken)
            elif frame is _FINISHED:
                target.process.wake_for(target.finished)
            else:
                self._net.frames += 1
                target.process.wake_for(functools.partial(target.heard, frame))
        if self._queue:
            self._net.clock.at(self._queue[0][0], self._pump)
        else:
            self._pumping = False


class Network:
    """All connections between hosts.

    Args:
        clock: virtual time.
        chance: random generator of delays.
        delay_s: mean delay in seconds; at most ten times as long.
    """

    def __init__(self, clock: Scheduler, chance: random.Random, delay_s: float) -> None:
        self.clock = clock
        self.chance = chance
        self.frames = 0
        self._rate, self._longest_s = 1 / delay_s, 10 * delay_s
        self._partitioned_until = 0
        self._blocked: dict[tuple[str, str], int] = {}
        self._since: dict[tuple[str, str], int] = {}
        self.streams: list[Wire] = []

    def delay(self) -> int:
        """A random delay of a frame, in nanoseconds."""
        delay_s = -log(1.0 - self.chance.random()) / self._rate  # as ``expovariate``, with a call less
        return round((delay_s if delay_s < self._longest_s else self._longest_s) * SECOND)

    def block(self, source: str, target: str, duration_ns: int) -> None:
        """Block frames from one host to another for some time."""
        if not self.blocks(source, target):
            self._since[source, target] = self.clock.now
        until = self.clock.now + duration_ns
        self._blocked[source, target] = max(until, self._blocked.get((source, target), 0))
        self._partitioned_until = max(until, self._partitioned_until)

    def heal(self) -> None:
        """End all partitions."""
        self._blocked.clear()
        self._partitioned_until = 0

    @property
    def whole(self) -> bool:
        """Whether frames between all hosts are delivered."""
        return self._partitioned_until <= self.clock.now

    def blocks(self, source: str, target: str) -> bool:
        """Whether frames from one host to another are blocked."""
        now = self.clock.now
        return self._partitioned_until > now and source != target and self._blocked.get((source, target), 0) > now

    def silent_s(self, source: str, target: str) -> float:
        """Seconds for which frames from one host to another have been blocked; 0 if they are not."""
        return (self.clock.now - self._since[source, target]) / 1e9 if self.blocks(source, target) else 0.0

    def connected(self, one: str, other: str) -> bool:
        """Whether two hosts reach each other in both directions."""
        return not self.blocks(one, other) and not self.blocks(other, one)

    def connect(self, client: End, server: End) -> Wire:
        """A new stream."""
        stream = Wire(self, client, server)
        self.streams = [other for other in self.streams if other.open]
        self.streams.append(stream)
        return stream

    def cut(self, process: Process) -> None:
        """Break the streams of an ended process."""
        for stream in self.streams:
            if stream.open and process in (stream.client.process, stream.server.process):
                stream.close()

"""The network: streams between processes, in order and whole as TCP's are, over hosts that may not reach each other.

Nothing is lost or turned round inside a stream: it is late, it stands still while its way is blocked, or it breaks.
What was under way when it broke may still arrive, or not, so over several streams things come late, twice and in
another order. A way may be blocked in one direction alone.
"""

import functools
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from ftcore.sim.protocol.clock import Scheduler, ns
from ftcore.sim.protocol.hosts import Process

POLL_NS = ns(0.05)
"""How often a blocked stream tries again."""

_BROKEN, _FINISHED = object(), object()


@attrs.define(eq=False)
class End:
    """One end of a stream: who hears, and how.

    Args:
        process: who hears.
        heard: told of a frame.
        broken: told that the stream broke.
        finished: told that the other end has said all that it had to say.
    """

    process: Process
    heard: Callable[[bytes], None]
    broken: Callable[[], None]
    finished: Callable[[], None]


class Wire:
    """A stream between two processes; ``client`` and ``server`` are its ends."""

    def __init__(self, net: "Network", client: End, server: End) -> None:
        self._net = net
        self.client, self.server = client, server
        self.open = True
        self._ways: dict[int, _Way] = {id(client): _Way(net, client, server), id(server): _Way(net, server, client)}

    def send(self, sender: End, frame: bytes) -> None:
        """Send a frame to the other end."""
        if self.open:
            self._ways[id(sender)].put(frame)

    def finish(self, sender: End) -> None:
        """Close it behind what was sent: nothing of that is lost."""
        if self.open:
            self.open = False
            self._ways[id(sender)].put(_FINISHED)

    def close(self) -> None:
        """Break it: each end learns of it behind what is under way to it, which may be lost as well."""
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
        self._last = max(self._last, self._net.clock.now + self._net.delay())
        self._queue.append((self._last, frame))
        if not self._pumping:
            self._pumping = True
            self._net.clock.after(self._last - self._net.clock.now, self._pump)

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
            self._net.clock.after(self._queue[0][0] - now, self._pump)
        else:
            self._pumping = False


class Network:
    """All ways between hosts.

    Args:
        clock: virtual time.
        chance: where delays come from.
        delay_s: the usual delay, in seconds; single frames take up to ten times as long.
    """

    def __init__(self, clock: Scheduler, chance: random.Random, delay_s: float) -> None:
        self.clock = clock
        self.chance = chance
        self.frames = 0
        self._delay_s = delay_s
        self._blocked: dict[tuple[str, str], int] = {}
        self._since: dict[tuple[str, str], int] = {}
        self.streams: list[Wire] = []

    def delay(self) -> int:
        """How long the next frame takes, in nanoseconds."""
        return ns(min(self.chance.expovariate(1 / self._delay_s), 10 * self._delay_s))

    def block(self, source: str, target: str, duration_ns: int) -> None:
        """Let nothing pass from one host to another for a while."""
        if not self.blocks(source, target):
            self._since[source, target] = self.clock.now
        until = self.clock.now + duration_ns
        self._blocked[source, target] = max(until, self._blocked.get((source, target), 0))

    def heal(self) -> None:
        """All ways are free."""
        self._blocked.clear()

    def blocks(self, source: str, target: str) -> bool:
        """Whether nothing passes from one host to another now."""
        return source != target and self._blocked.get((source, target), 0) > self.clock.now

    def silent_s(self, source: str, target: str) -> float:
        """For how many seconds nothing has passed from one host to another; 0 if something does."""
        return (self.clock.now - self._since[source, target]) / 1e9 if self.blocks(source, target) else 0.0

    def connected(self, one: str, other: str) -> bool:
        """Whether two hosts reach each other, both ways."""
        return not self.blocks(one, other) and not self.blocks(other, one)

    def connect(self, client: End, server: End) -> Wire:
        """A new stream."""
        stream = Wire(self, client, server)
        self.streams = [other for other in self.streams if other.open]
        self.streams.append(stream)
        return stream

    def cut(self, process: Process) -> None:
        """A process has ended: its streams break."""
        for stream in self.streams:
            if stream.open and process in (stream.client.process, stream.server.process):
                stream.close()

"""Sessions: the agents' streams at the master, and what their silence means."""

import asyncio
from collections.abc import Iterable

import attrs
import msgspec

from ftcore.runtime.wire import frames


@attrs.define(eq=False)
class Session:
    """One agent's stream.

    Args:
        node: its node.
        incarnation: its life.
        outgoing: encoded frames to be written, oldest first; None ends the stream.
        beat: the last heartbeat.
        acked: its facts up to this number are durable.
    """

    node: str
    incarnation: str
    outgoing: asyncio.Queue[bytes | None] = attrs.field(factory=asyncio.Queue)
    beat: frames.Beat | None = None
    acked: int = 0

    def send(self, frame: frames.FromMaster) -> None:
        """Queue a frame; never waits: what a dead agent does not read goes with its session."""
        self.outgoing.put_nowait(msgspec.json.encode(frame))

    def end(self) -> None:
        """End the stream after what is queued."""
        self.outgoing.put_nowait(None)


class Leases:
    """When each node was last heard of.

    House rule: only time during which this process was really running counts against a node. A master that was frozen
    or starved learns of it by the gap between its own looks and gives the gap to everybody.

    Args:
        lease_ns: nanoseconds of silence after which a node is lost.
        look_ns: nanoseconds between two looks, as planned.
    """

    def __init__(self, lease_ns: int, look_ns: int) -> None:
        self._lease = lease_ns
        self._look = look_ns
        self._heard: dict[tuple[str, str], int] = {}
        self._looked = 0

    def heard(self, node: str, incarnation: str, mono_ns: int) -> None:
        """A frame came."""
        self._heard[node, incarnation] = mono_ns

    def last_heard(self, node: str, incarnation: str) -> int:
        """When a frame came last, in monotonic nanoseconds; 0 if never."""
        return self._heard.get((node, incarnation), 0)

    def silent(self, expected: Iterable[tuple[str, str]], mono_ns: int) -> list[tuple[str, str]]:
        """The expected nodes whose lease is over; one that was never heard of starts its lease now."""
        if self._looked and mono_ns - self._looked > 2 * self._look:
            gap = mono_ns - self._looked - self._look
            for key in self._heard:
                self._heard[key] += gap
        self._looked = mono_ns
        wanted = set(expected)
        for key in [key for key in self._heard if key not in wanted]:
            del self._heard[key]
        for key in wanted:
            self._heard.setdefault(key, mono_ns)
        return [key for key in sorted(wanted) if mono_ns - self._heard[key] > self._lease]

"""Sessions: the agents' streams at the master.

A frame costs both sides far more than what is in it, and nobody but who leaves waits for an acknowledgement. So it
rides on the next order; where none comes, it is the master's next sign of life.
"""

import asyncio
from collections.abc import Callable, Sequence

import attrs

from ftcore.engine.master import Mark
from ftcore.engine.orders import Order
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
        about: what the node said of itself.
        told: when it was noticed, in monotonic nanoseconds, that something had been said to it.
        spoken_to: something was said to it since.
        mark: gives the end of the log, as far as it is durable.
    """

    node: str
    incarnation: str
    outgoing: asyncio.Queue[bytes | None] = attrs.field(factory=asyncio.Queue)
    beat: frames.Beat | None = None
    acked: int = 0
    about: frames.NodeInfo = attrs.field(factory=frames.NodeInfo)
    told: int = 0
    spoken_to: bool = False
    mark: Callable[[], Mark | None] = lambda: None

    def take(self, beat: frames.Beat) -> None:
        """A heartbeat came."""
        if beat.about is not None:
            self.about = self.about.updated(beat.about)
        self.beat = beat

    def send(self, frame: frames.FromMaster) -> None:
        """Queue a frame; never waits: what a dead agent does not read goes with its session."""
        self.spoken_to = True
        self.outgoing.put_nowait(frames.encode(frame))

    def order(self, orders: Sequence[Order]) -> None:
        """Queue orders, with the acknowledgement."""
        self.send(frames.Orders(tuple(orders), self.acked, self.mark()))

    def acknowledge(self) -> None:
        """Queue the acknowledgement by itself."""
        self.send(frames.Ack(self.acked, self.mark()))

    def end(self) -> None:
        """End the stream after what is queued."""
        self.outgoing.put_nowait(None)

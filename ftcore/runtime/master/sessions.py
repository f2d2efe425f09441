"""Sessions: the agents' streams at the master.

A frame costs both sides far more than its content, and only an agent that leaves waits for an acknowledgement. So
acknowledgements travel with the next order, or with the next keep-alive if no order follows.
"""

import asyncio
from collections.abc import Callable, Sequence

import attrs

from ftcore.engine.master import DurableMark
from ftcore.engine.orders import Order
from ftcore.runtime.wire import frames


@attrs.define(eq=False)
class Session:
    """One agent's stream.

    Args:
        node: the agent's node.
        incarnation: the agent's incarnation.
        outgoing: encoded frames to write, oldest first; None ends the stream.
        beat: the last heartbeat.
        acked: the agent's facts up to this number are durable.
        about: the node's description of itself.
        sent_at: when the keep-alive check last found that a frame had been sent, in monotonic nanoseconds.
        sent: a frame was sent since that check.
        mark: returns the end of the durable log.
        pace: the round, and seconds per step and of own work, of the last heartbeat that had them.
    """

    node: str
    incarnation: str
    outgoing: asyncio.Queue[bytes | None] = attrs.field(factory=asyncio.Queue)
    beat: frames.Beat | None = None
    acked: int = 0
    about: frames.NodeInfo = attrs.field(factory=frames.NodeInfo)
    sent_at: int = 0
    sent: bool = False
    mark: Callable[[], DurableMark | None] = lambda: None
    pace: tuple[int, float | None, float | None] = (0, None, None)

    def take(self, beat: frames.Beat) -> None:
        """Store a heartbeat."""
        if beat.about is not None:
            self.about = self.about.updated(beat.about)
        if beat.whole_s is not None or beat.round != self.pace[0]:
            self.pace = (beat.round, beat.whole_s, beat.own_s)
        self.beat = beat

    def send(self, frame: frames.FromMaster) -> None:
        """Queue a frame without waiting; frames that a dead agent never reads are dropped with its session."""
        self.sent = True
        self.outgoing.put_nowait(frames.encode(frame))

    def order(self, orders: Sequence[Order]) -> None:
        """Queue orders, with an acknowledgement."""
        self.send(frames.Orders(tuple(orders), self.acked, self.mark()))

    def acknowledge(self) -> None:
        """Queue an acknowledgement only."""
        self.send(frames.Ack(self.acked, self.mark()))

    def end(self) -> None:
        """End the stream after its queued frames."""
        self.outgoing.put_nowait(None)

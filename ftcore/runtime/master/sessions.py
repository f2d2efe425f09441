"""Sessions: the agents' streams at the master."""

import asyncio

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

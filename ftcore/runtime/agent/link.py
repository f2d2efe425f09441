"""The agent's stream to the master: finds it, keeps it, finds the next one. Knows frames, not workers.

Where to look is asked in this order: the address that a ``NotMaster`` just told; after a stream that broke, the same
master once more; the log store; if that does not answer, the master that took the agent on last. So a store that is
away or slow does not part nodes from a master that lives. Between attempts it waits a jittered ``reconnect_s``. When
nobody leads, ``on_leaderless`` is called, so that the agent may put up a candidate.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import grpc.aio
import msgspec
import structlog

from ftcore import __version__
from ftcore.errors import FtcoreError
from ftcore.ports import EventLog, Leader
from ftcore.runtime import tasks
from ftcore.runtime.agent.outbox import Outbox
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.channel import CONNECT, channel
from ftcore.timing import Timing

CONNECT_S = 2.0
"""Seconds for a master to answer a hello; a frozen one must not hold an agent for longer."""

logger = structlog.get_logger()


class Link:
    """One agent's bond with whoever leads.

    Args:
        log: the job's log; only its ``leader`` is read.
        hello: makes the first frame, given the number of facts that were acknowledged.
        outbox: the facts to deliver.
        beat: makes a heartbeat.
        timing: time constants.
        on_welcome: called when a master takes the agent on.
        on_broken: called when the stream of a welcomed agent breaks.
        on_refused: called when a master does not want this agent.
        on_orders: called with orders.
        on_standby: called when the master wants a standby here.
        on_leaderless: called, possibly often, while nobody leads; with who led last.
    """

    def __init__(
        self,
        *,
        log: EventLog,
        hello: Callable[[int], frames.Hello],
        outbox: Outbox,
        beat: Callable[[], frames.Beat],
        timing: Timing,
        on_welcome: Callable[[frames.Welcome], None],
        on_broken: Callable[[], None],
        on_refused: Callable[[frames.Refused], None],
        on_orders: Callable[[frames.Orders], None],
        on_standby: Callable[[], None],
        on_leaderless: Callable[[Leader | None], None],
    ) -> None:
        self._log = log
        self._hello = hello
        self._outbox = outbox
        self._beat = beat
        self._timing = timing
        self._on_welcome = on_welcome
        self._on_broken = on_broken
        self._on_refused = on_refused
        self._on_orders = on_orders
        self._on_standby = on_standby
        self._on_leaderless = on_leaderless
        self._hint = ""
        self._again = ""
        self._last = ""
        self._sent = 0
        self._pending = asyncio.Event()

    def wake(self) -> None:
        """There is something to send."""
        self._pending.set()

    async def run(self) -> None:
        """Keep the bond until cancelled."""
        while True:
            target = self._hint or self._again or await self._find()
            self._hint = self._again = ""
            if target:
                await self._attempt(target)
            if not self._hint:
                await asyncio.sleep(self._timing.reconnect_s * random.uniform(0.2, 1.0))

    async def _find(self) -> str:
        try:
            leader = await self._log.leader()
        except FtcoreError as error:
            logger.debug("the log store does not answer", error=str(error))
            return self._last
        if leader is None or not leader.alive:
            self._on_leaderless(leader)
            return ""
        return leader.candidate.address

    async def _attempt(self, target: str) -> None:
        """One stream, from hello to its end."""
        welcomed = silent = False
        async with channel(target) as opened:
            try:
                stream: Any = opened.stream_stream(CONNECT)()
                async with asyncio.timeout(CONNECT_S):
                    await stream.write(frames.encode(self._hello(self._outbox.acked)))
                    first = await stream.read()
                if first is grpc.aio.EOF:
                    return
                frame = frames.decode_from_master(first)
                if isinstance(frame, frames.NotMaster):
                    self._hint = frame.hint if frame.hint != target else ""
                elif isinstance(frame, frames.Refused):
                    self._on_refused(frame)
                elif isinstance(frame, frames.Welcome):
                    welcomed = True
                    self._last = target
                    self._on_welcome(frame)
                    await self._converse(stream, frame)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, msgspec.MsgspecError, TimeoutError) as error:
                logger.debug("no stream to the master", target=target, error=str(error)[:200])
                silent = isinstance(error, TimeoutError)
            finally:
                if welcomed:
                    self._again = "" if silent else target
                    self._on_broken()

    async def _converse(self, stream: Any, welcome: frames.Welcome) -> None:
        self._outbox.acknowledge(welcome.acked)
        self._sent = welcome.acked
        writer = asyncio.create_task(self._write(stream))
        try:
            # A master that says nothing for its lease is frozen, or behind a dead wire: somebody else may lead by now.
            while True:
                async with asyncio.timeout(self._timing.master_lease_s):
                    body = await stream.read()
                if body is grpc.aio.EOF:
                    return
                self._take(frames.decode_from_master(body))
                if writer.done():
                    return
        finally:
            await tasks.end([writer])
            stream.cancel()

    def _take(self, frame: frames.FromMaster) -> None:
        if isinstance(frame, frames.Ack):
            self._outbox.acknowledge(frame.n)
        elif isinstance(frame, frames.Orders):
            self._on_orders(frame)
        elif isinstance(frame, frames.HostStandby):
            self._on_standby()
        elif isinstance(frame, frames.Refused):
            self._on_refused(frame)

    async def _write(self, stream: Any) -> None:
        """Write what is there: the predecessor's facts once, then ours, packed; a heartbeat when nothing else."""
        inherited, self._outbox.inherited = self._outbox.inherited, []
        if inherited:
            await stream.write(frames.encode(frames.Facts(tuple(map(msgspec.Raw, inherited)))))
        await stream.write(frames.encode(self._beat()))
        while True:
            self._pending.clear()
            packed: list[msgspec.Raw] = []
            size = 0
            for n, body in self._outbox.unacknowledged(self._sent):
                if packed and size + len(body) > frames.PACK_BYTES_MAX:
                    self._pending.set()
                    break
                packed.append(msgspec.Raw(body))
                size += len(body)
                self._sent = n
            if packed:
                await stream.write(frames.encode(frames.Facts(tuple(packed))))
            try:
                async with asyncio.timeout(self._timing.heartbeat_s):
                    await self._pending.wait()
            except TimeoutError:
                await stream.write(frames.encode(self._beat()))


def make_hello(
    *, job: str, token: str, node: str, incarnation: str, submission: frames.Submission, again: bool
) -> Callable[[int], frames.Hello]:
    """A maker of first frames."""
    return lambda acked: frames.Hello(
        protocol=frames.PROTOCOL,
        version=__version__,
        job=job,
        token=token,
        node=node,
        incarnation=incarnation,
        submission=submission,
        acked=acked,
        again=again,
    )

"""The agent's stream to the master: discovers the master, keeps the stream, and reconnects. Handles frames only.

Addresses are tried in this order: the hint of a ``NotMaster``; after a broken stream, the same master once more; the
leader named by the log store; if the store does not answer, in turn the standbys named by the last master and that
master itself. So an unreachable or slow store does not separate nodes from a live master. Between attempts the agent
waits a jittered ``reconnect_s``. While there is no leader, ``on_leaderless`` is called, so that the agent can start a
candidate.

A master that has not proved that it knows the job's token, or whose certificate is invalid, cannot end an agent that
has joined: the workers keep running, and a warning is logged. An agent that has not joined yet ends with the reason.

House rule: no attempt begins without enough free file descriptors. Without them gRPC ends the process, and the workers
with it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog

from ftcore.engine.master import DurableMark
from ftcore.errors import FtcoreError, StreamBroken, Unreachable
from ftcore.ports import Host, Leader, LeaderElection, Stream, Transport
from ftcore.runtime import tasks
from ftcore.runtime.agent.link.lookup import LeaderLookup
from ftcore.runtime.agent.link.outbox import Outbox
from ftcore.runtime.wire import frames, handshake
from ftcore.runtime.wire.queue_news import QueueNews
from ftcore.runtime.wire.security import Security
from ftcore.timing import Timing
from ftcore.version import __version__

CONNECT_S = 2.0
"""Longest interval in seconds at which the agent checks in the store whether a master that has not answered a hello
still leads. The first checks come sooner, because a failed master is soon replaced."""

STORE_S = 0.5
"""How long an agent that lost its master waits for the store before it tries a standby, and then waits on."""

DESCRIPTORS = 16
"""Free file descriptors required before an attempt; more than an attempt or the start of a candidate needs."""

UNTRUSTED_MAX = 5
"""Consecutive attempts with an invalid certificate after which an agent that has not joined gives up; a few may fail
while a certificate is renewed."""

UNREACHABLE_S = 15.0
"""A warning is logged if a leading master cannot be reached for this long."""

logger = structlog.get_logger()


class Link:
    """The connection of one agent to the leader.

    Args:
        host: the agent's machine.
        transport: connects to masters.
        log: the job's log; only its ``leader`` is read.
        hello: makes the first frame from the number of acknowledged facts and the newest mark of the log.
        outbox: the facts to deliver.
        security: credentials shown to masters and required from them.
        beat: makes a heartbeat.
        timing: time constants.
        on_welcome: called when a master admits the agent.
        on_broken: called when the stream of an admitted agent breaks.
        on_refused: called when a master refuses the agent.
        on_orders: called with orders.
        on_standby: called when the master orders a standby on this node.
        on_lookup: called after each lookup of the leader in the store: whether the store names a live leader.
        on_leaderless: called, possibly often, while there is no leader; with the last leader.
        on_queue: called with data shards for the workers.
    """

    def __init__(
        self,
        *,
        host: Host,
        transport: Transport,
        log: LeaderElection,
        hello: Callable[[int, DurableMark | None], frames.Hello],
        outbox: Outbox,
        security: Security,
        beat: Callable[[], frames.Beat],
        timing: Timing,
        on_welcome: Callable[[frames.Welcome], None],
        on_broken: Callable[[], None],
        on_refused: Callable[[frames.JoinRefused], None],
        on_orders: Callable[[frames.Orders], None],
        on_standby: Callable[[], None],
        on_lookup: Callable[[bool], None],
        on_leaderless: Callable[[Leader | None], None],
        on_queue: Callable[[QueueNews], None] = lambda frame: None,
    ) -> None:
        self._host = host
        self._transport = transport
        self._lookup = LeaderLookup(log)
        self._hello = hello
        self._outbox = outbox
        self._security = security
        self._beat = beat
        self._timing = timing
        self._on_welcome = on_welcome
        self._on_broken = on_broken
        self._on_refused = on_refused
        self._on_orders = on_orders
        self._on_queue = on_queue
        self._on_standby = on_standby
        self._on_lookup = on_lookup
        self._on_leaderless = on_leaderless
        self._hint = ""
        self._retry_target = ""
        self._last_target = ""
        self._sent = 0
        self._mark: DurableMark | None = None
        self._candidates: tuple[str, ...] = ()
        self._tries = 0
        self._joined = False
        self._untrusted = 0
        self._unreachable_since: float | None = None
        self._warned: set[str] = set()
        self._pending = asyncio.Event()

    def wake(self) -> None:
        """Wake the writer: a fact is queued."""
        self._pending.set()

    async def run(self) -> None:
        """Connect and reconnect until cancelled."""
        try:
            await self._reconnect()
        finally:
            await self._lookup.drop()

    async def _reconnect(self) -> None:
        while True:
            if not self._host.can_open(DESCRIPTORS):
                self.warn_once(
                    "cannot connect to the master", f"this agent has fewer than {DESCRIPTORS} free file descriptors"
                )
                await asyncio.sleep(self._timing.reconnect_s)
                continue
            target = self._hint or self._retry_target or await self._find()
            self._hint = self._retry_target = ""
            if target:
                await self._attempt(target)
            if not self._hint:
                await asyncio.sleep(self._timing.reconnect_s * self._host.uniform(0.2, 1.0))

    async def _find(self) -> str:
        """The leader's address from the store; if the store does not answer, the next standby or the last master."""
        found = await self._ask_store()
        if found is None:
            known = list(dict.fromkeys((*self._candidates, *([self._last_target] if self._last_target else []))))
            self._tries += 1
            return known[self._tries % len(known)] if known else ""
        return found

    async def _ask_store(self) -> str | None:
        """The leader's address from the store, empty if there is no leader; None: the store does not answer.

        With known standbys the wait is short, because a standby answers sooner than an unreachable store.
        """
        try:
            leader = await self._lookup.ask(STORE_S if self._candidates else None)
        except (Unreachable, TimeoutError) as error:
            logger.debug("the log store does not answer", error=str(error))
            self._on_lookup(False)
            return None
        except FtcoreError as error:
            self.warn_once("cannot use the job's log; training continues, recoveries wait", str(error))
            self._on_lookup(False)
            return None
        self._on_lookup(leader is not None and leader.alive)
        if leader is None or not leader.alive:
            self._on_leaderless(leader)
            return ""
        return leader.candidate.address

    async def _attempt(self, target: str) -> None:
        """Open one stream and serve it to its end."""
        welcomed = silent = False
        async with self._transport.connect(target) as stream:
            try:
                hello = self._hello(self._outbox.acked, self._mark)
                answer = await self._answer(
                    handshake.open_stream(stream, self._security, hello.job, hello.node, hello), target
                )
                frame = answer.frame
                if frame is not None:
                    self._untrusted, self._unreachable_since = 0, None
                if isinstance(frame, frames.NotMaster):
                    self._hint = frame.hint if frame.hint != target else ""
                elif isinstance(frame, frames.JoinRefused):
                    self._refused(frame, answer.proven)
                elif isinstance(frame, frames.Parked):
                    self.warn_once("the job is stuck; workers keep running", frame.reason)
                elif isinstance(frame, frames.Welcome) and answer.proven:
                    welcomed = self._joined = True
                    self._last_target = target
                    await self._lookup.drop()
                    self._on_welcome(frame)
                    await self._converse(stream, frame)
            except (StreamBroken, msgspec.MsgspecError, TimeoutError) as error:
                logger.debug("no stream to the master", target=target, error=str(error)[:200])
                silent = isinstance(error, TimeoutError)
                if not welcomed:
                    self._note_unreachable(target, error)
            finally:
                if welcomed:
                    self._retry_target = "" if silent else target
                    self._on_broken()

    def _refused(self, frame: frames.JoinRefused, proven: bool) -> None:
        if proven or not self._joined:
            self._on_refused(frame)
        else:
            self.warn_once("an unauthenticated master refuses this agent; ignored", frame.reason)

    def _note_unreachable(self, target: str, error: Exception) -> None:
        """Warn, once per reason, when a leading master cannot be reached for long."""
        now = asyncio.get_running_loop().time()
        self._unreachable_since = now if self._unreachable_since is None else self._unreachable_since
        details = str(error) if isinstance(error, StreamBroken) else ""
        found = error.distrust if isinstance(error, StreamBroken) else ""
        self._untrusted = self._untrusted + 1 if found else 0
        if found and not self._joined and self._untrusted >= UNTRUSTED_MAX:
            self._on_refused(frames.JoinRefused(f"the master at {target} cannot be trusted: {found}", rejoin=False))
        elif now - self._unreachable_since > UNREACHABLE_S:
            tls = self._security.tls
            if not found and tls is None and not target.startswith("unix:"):
                found = "no answer; if the master uses TLS, set FTCORE_TLS_CA here, too"
            elif not found and tls is not None and tls.cert is None:
                found = "no answer; if the master requires a certificate, set FTCORE_TLS_CERT and FTCORE_TLS_KEY here"
            self.warn_once(f"cannot reach the leading master at {target}; retrying", found or details[:200])

    def warn_once(self, message: str, reason: str) -> None:
        """Log a warning about the connection to the master, once per reason."""
        if reason not in self._warned and len(self._warned) < 100:
            self._warned.add(reason)
            logger.warning(message, reason=reason)

    async def _answer(
        self, call: Coroutine[Any, Any, handshake.HandshakeReply], target: str
    ) -> handshake.HandshakeReply:
        """The master's answer to a hello.

        When thousands of agents connect at once, the master answers them in turn. A new connection would go to the end
        of the queue; so the agent waits as long as the store names this master as the leader.

        Raises:
            TimeoutError: the master does not answer and is not known to lead.
        """
        answer = asyncio.create_task(call)
        patience_s = self._timing.reconnect_s
        try:
            while not answer.done():
                await asyncio.wait([answer], timeout=patience_s * self._host.uniform(0.8, 1.0))
                patience_s = min(2 * patience_s, CONNECT_S)
                if answer.done():
                    break
                leads = await self._ask_store()
                silent = self._last_target if not self._candidates else ""
                if target != (silent if leads is None else leads) and not answer.done():
                    raise TimeoutError
                self._note_unreachable(target, TimeoutError())
            return answer.result()
        finally:
            await tasks.end([answer])

    async def _converse(self, stream: Stream, welcome: frames.Welcome) -> None:
        self._mark = welcome.mark
        self._outbox.acknowledge(welcome.acked)
        self._sent = welcome.acked
        writer = asyncio.create_task(self._write(stream))
        try:
            # A master that is silent for its lease is frozen or partitioned; another one may lead by now.
            while True:
                async with asyncio.timeout(self._timing.patience_s):
                    body = await stream.read()
                if body is None:
                    return
                self._take(frames.decode_from_master(body))
                if writer.done():
                    return
        finally:
            await tasks.end([writer])

    def _take(self, frame: frames.FromMaster) -> None:
        if isinstance(frame, frames.Ack | frames.Orders):
            self._mark = frame.mark or self._mark
        if isinstance(frame, frames.Ack):
            self._outbox.acknowledge(frame.n)
        elif isinstance(frame, frames.Orders):
            self._outbox.acknowledge(frame.acked)
            self._on_orders(frame)
        elif isinstance(frame, QueueNews):
            self._on_queue(frame)
        elif isinstance(frame, frames.HostStandby):
            self._on_standby()
        elif isinstance(frame, frames.Candidates):
            self._candidates = frame.addresses
        elif isinstance(frame, frames.NotMaster):
            self._hint = frame.hint
        elif isinstance(frame, frames.JoinRefused):
            self._on_refused(frame)

    async def _write(self, stream: Stream) -> None:
        """Write the predecessor's facts once, then queued facts in packed frames, or a heartbeat if there are none."""
        if inherited := await self._outbox.inherited():
            await stream.write(frames.encode(frames.Facts(tuple(map(msgspec.Raw, inherited)))))
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
            await stream.write(frames.encode(frames.Facts(tuple(packed)) if packed else self._beat()))
            await tasks.wait_or_set(self._pending, self._timing.heartbeat_s)


def make_hello(
    *, job: str, node: str, incarnation: str, submission: frames.Submission, again: bool
) -> Callable[[int, DurableMark | None], frames.Hello]:
    """A factory of first frames."""

    def hello(acked: int, mark: DurableMark | None) -> frames.Hello:
        return frames.Hello(
            protocol=frames.PROTOCOL,
            version=__version__,
            job=job,
            node=node,
            incarnation=incarnation,
            submission=submission,
            acked=acked,
            again=again,
            mark=mark,
        )

    return hello

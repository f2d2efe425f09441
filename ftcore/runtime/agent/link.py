"""The agent's stream to the master: finds it, keeps it, finds the next one. Knows frames, not workers.

Where to look is asked in this order: the address that a ``NotMaster`` just told; after a stream that broke, the same
master once more; the log store; if that does not answer, in turn the standbys that the last master told of, and the
master that took the agent on last. So a store that is away, slow, or cut off from this host alone does not part nodes
from a master that lives. Between attempts it waits a jittered ``reconnect_s``. When nobody leads, ``on_leaderless`` is
called, so that the agent may put up a candidate.

A master that has not shown that it knows the job's token, or whose certificate is not good, ends no agent that has
taken part: whoever trains goes on, and people are told. One that has not taken part yet gives up, with the reason.

House rule: no attempt begins without file descriptors for all of it. grpc ends the process where it finds none, and
the workers with it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog

from ftcore.engine.master import Mark
from ftcore.errors import FtcoreError, StreamBroken, Unreachable
from ftcore.ports import EventLog, Host, Leader, Stream, Transport
from ftcore.runtime import tasks
from ftcore.runtime.agent.outbox import Outbox
from ftcore.runtime.wire import frames, opening
from ftcore.runtime.wire.security import Security
from ftcore.timing import Timing
from ftcore.version import __version__

CONNECT_S = 2.0
"""While a master does not answer a hello the store is asked whether it leads still: soon at first, since one that fell
silent does not for long, then this often, in seconds."""

STORE_S = 0.5
"""How long an agent that lost its master waits for the store before it calls a standby."""

DESCRIPTORS = 16
"""More than an attempt takes, or a candidate that is put up."""

UNTRUSTED_MAX = 5
"""So many attempts in a row must meet an untrustworthy certificate before a newcomer gives up: one that is just being
renewed is no reason."""

WORDLESS_S = 15.0
"""A master that leads and cannot be reached for so long is worth a word."""

logger = structlog.get_logger()


class Link:
    """One agent's bond with whoever leads.

    Args:
        host: the machine that it is on.
        transport: how masters are reached.
        log: the job's log; only its ``leader`` is read.
        hello: makes the first frame, given the number of facts that were acknowledged, and how far the log is known.
        outbox: the facts to deliver.
        security: what is shown to masters, and asked of them.
        beat: makes a heartbeat.
        timing: time constants.
        on_welcome: called when a master takes the agent on.
        on_broken: called when the stream of a welcomed agent breaks.
        on_refused: called when a master does not want this agent.
        on_orders: called with orders.
        on_standby: called when the master wants a standby here.
        on_looked: called when the store was asked who leads: whether it names a leader that lives.
        on_leaderless: called, possibly often, while nobody leads; with who led last.
    """

    def __init__(
        self,
        *,
        host: Host,
        transport: Transport,
        log: EventLog,
        hello: Callable[[int, Mark | None], frames.Hello],
        outbox: Outbox,
        security: Security,
        beat: Callable[[], frames.Beat],
        timing: Timing,
        on_welcome: Callable[[frames.Welcome], None],
        on_broken: Callable[[], None],
        on_refused: Callable[[frames.Refused], None],
        on_orders: Callable[[frames.Orders], None],
        on_standby: Callable[[], None],
        on_looked: Callable[[bool], None],
        on_leaderless: Callable[[Leader | None], None],
    ) -> None:
        self._host = host
        self._transport = transport
        self._log = log
        self._hello = hello
        self._outbox = outbox
        self._security = security
        self._beat = beat
        self._timing = timing
        self._on_welcome = on_welcome
        self._on_broken = on_broken
        self._on_refused = on_refused
        self._on_orders = on_orders
        self._on_standby = on_standby
        self._on_looked = on_looked
        self._on_leaderless = on_leaderless
        self._hint = ""
        self._again = ""
        self._last = ""
        self._sent = 0
        self._mark: Mark | None = None
        self._candidates: tuple[str, ...] = ()
        self._tries = 0
        self._taken_part = False
        self._untrusted = 0
        self._parted: float | None = None
        self._said: set[str] = set()
        self._pending = asyncio.Event()

    def wake(self) -> None:
        """There is something to send."""
        self._pending.set()

    async def run(self) -> None:
        """Keep the bond until cancelled."""
        while True:
            if not self._host.can_open(DESCRIPTORS):
                self.say("no master is called", f"fewer than {DESCRIPTORS} file descriptors are left to this agent")
                await asyncio.sleep(self._timing.reconnect_s)
                continue
            target = self._hint or self._again or await self._find()
            self._hint = self._again = ""
            if target:
                await self._attempt(target)
            if not self._hint:
                await asyncio.sleep(self._timing.reconnect_s * self._host.uniform(0.2, 1.0))

    async def _find(self) -> str:
        """Who leads, as the store says; where it does not answer, the next of those that may lead or know who does."""
        found = await self._ask_store()
        if found is None:
            known = list(dict.fromkeys((*self._candidates, *([self._last] if self._last else []))))
            self._tries += 1
            return known[self._tries % len(known)] if known else ""
        return found

    async def _ask_store(self) -> str | None:
        """The address of who leads, empty if nobody does; None: the store does not answer.

        An agent that knows standbys waits a moment only: they answer sooner than a store that is cut off.
        """
        try:
            async with asyncio.timeout(STORE_S if self._candidates else None):
                leader = await self._log.leader()
        except (Unreachable, TimeoutError) as error:
            logger.debug("the log store does not answer", error=str(error))
            self._on_looked(False)
            return None
        except FtcoreError as error:
            self.say("the job's log cannot be used; training goes on, recoveries wait", str(error))
            self._on_looked(False)
            return None
        self._on_looked(leader is not None and leader.alive)
        if leader is None or not leader.alive:
            self._on_leaderless(leader)
            return ""
        return leader.candidate.address

    async def _attempt(self, target: str) -> None:
        """One stream, from hello to its end."""
        welcomed = silent = False
        async with self._transport.connect(target) as stream:
            try:
                hello = self._hello(self._outbox.acked, self._mark)
                answer = await self._answer(opening.call(stream, self._security, hello.job, hello.node, hello), target)
                frame = answer.frame
                if frame is not None:
                    self._untrusted, self._parted = 0, None
                if isinstance(frame, frames.NotMaster):
                    self._hint = frame.hint if frame.hint != target else ""
                elif isinstance(frame, frames.Refused):
                    self._refused(frame, answer.proven)
                elif isinstance(frame, frames.Parked):
                    self.say("the job is stuck; workers go on", frame.reason)
                elif isinstance(frame, frames.Welcome) and answer.proven:
                    welcomed = self._taken_part = True
                    self._last = target
                    self._on_welcome(frame)
                    await self._converse(stream, frame)
            except (StreamBroken, msgspec.MsgspecError, TimeoutError) as error:
                logger.debug("no stream to the master", target=target, error=str(error)[:200])
                silent = isinstance(error, TimeoutError)
                if not welcomed:
                    self._unreached(target, error)
            finally:
                if welcomed:
                    self._again = "" if silent else target
                    self._on_broken()

    def _refused(self, frame: frames.Refused, proven: bool) -> None:
        if proven or not self._taken_part:
            self._on_refused(frame)
        else:
            self.say("a master that has not proven itself refuses this agent; it goes on", frame.reason)

    def _unreached(self, target: str, error: Exception) -> None:
        """Say so, once for each reason, when a master that leads cannot be reached for long."""
        now = asyncio.get_running_loop().time()
        self._parted = now if self._parted is None else self._parted
        details = str(error) if isinstance(error, StreamBroken) else ""
        found = error.distrust if isinstance(error, StreamBroken) else ""
        self._untrusted = self._untrusted + 1 if found else 0
        if found and not self._taken_part and self._untrusted >= UNTRUSTED_MAX:
            self._on_refused(frames.Refused(f"the master at {target} cannot be trusted: {found}", rejoin=False))
        elif now - self._parted > WORDLESS_S:
            tls = self._security.tls
            if not found and tls is None and not target.startswith("unix:"):
                found = "no answer; if it speaks TLS, set FTCORE_TLS_CA here, too"
            elif not found and tls is not None and tls.cert is None:
                found = "no answer; if it asks for a certificate, set FTCORE_TLS_CERT and FTCORE_TLS_KEY here"
            self.say(f"the master at {target} leads and cannot be reached; trying on", found or details[:200])

    def say(self, what: str, reason: str) -> None:
        """Tell people what keeps this agent from a master; each reason once."""
        if reason not in self._said and len(self._said) < 100:
            self._said.add(reason)
            logger.warning(what, reason=reason)

    async def _answer(self, call: Coroutine[Any, Any, opening.Answer], target: str) -> opening.Answer:
        """What a master answers to a hello.

        Thousands that call at once wait for one another. Whoever hung up and called again would only go to the end of
        the queue, and make it longer; so as long as the store says that this is the master, it is waited for.

        Raises:
            TimeoutError: it does not answer, and is not known to lead.
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
                silent = self._last if not self._candidates else ""
                if target != (silent if leads is None else leads) and not answer.done():
                    raise TimeoutError
                self._unreached(target, TimeoutError())
            return answer.result()
        finally:
            await tasks.end([answer])

    async def _converse(self, stream: Stream, welcome: frames.Welcome) -> None:
        self._mark = welcome.mark
        self._outbox.acknowledge(welcome.acked)
        self._sent = welcome.acked
        writer = asyncio.create_task(self._write(stream))
        try:
            # A master that says nothing for its lease is frozen, or behind a dead wire: somebody else may lead by now.
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
        elif isinstance(frame, frames.HostStandby):
            self._on_standby()
        elif isinstance(frame, frames.Candidates):
            self._candidates = frame.addresses
        elif isinstance(frame, frames.NotMaster):
            self._hint = frame.hint
        elif isinstance(frame, frames.Refused):
            self._on_refused(frame)

    async def _write(self, stream: Stream) -> None:
        """Write what is there: the predecessor's facts once, then ours, packed; a heartbeat where nothing is."""
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.heartbeat_s):
                    await self._pending.wait()


def make_hello(
    *, job: str, node: str, incarnation: str, submission: frames.Submission, again: bool
) -> Callable[[int, Mark | None], frames.Hello]:
    """A maker of first frames."""

    def hello(acked: int, mark: Mark | None) -> frames.Hello:
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

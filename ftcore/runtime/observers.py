"""Observers of a job, from installed packages: metrics, traces, and whatever else only reads.

An observer is an entry point of the group ``ftcore.observers``, named by the scheme of its URL (``ftrun --observe``).
Each runs in a process of its own, which the leading master starts and ends (``launch/observing.py``), or that of
``ftctl observe``.

House rules: an observer reads and changes nothing. Its failure, slowness or death reaches no process of the job: it
reads the log by its own handle, as fast as it can, so no queue fills up and no event is dropped. Names come from the
packages' metadata; only the package of a given URL is loaded.
"""

import asyncio
import contextlib
import difflib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from importlib.metadata import entry_points

import attrs
import structlog

from ftcore.errors import FtcoreError, Truncated, Unreachable, UsageError
from ftcore.events.envelope import Event
from ftcore.extensions import loaded
from ftcore.ids import Seq
from ftcore.ports import EventLog, Transport
from ftcore.runtime import tasks
from ftcore.runtime.wire import client, frames
from ftcore.runtime.wire.security import Security
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.states.model import JobState
from ftcore.states.snapshot import recall

GROUP = "ftcore.observers"

RETRY_S = (1.0, 30.0)
"""First and longest pause before a log that cannot be read is tried again."""

LOOK_S = 3.0
"""Longest wait for an answer of the master."""

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class ObservedNode:
    """A node in the master's memory, by its last heartbeats. None of it is in the log.

    Args:
        node: its name.
        heard_s: seconds since its last frame.
        round: the round of its workers; 0: none run.
        step: the newest step that every reporting worker has completed; None: not known.
        absolute: ``step`` counts from the start of the training.
        loss: the last reported loss; None: none.
        step_s: seconds per step, averaged between two heartbeats; None: not known in this round.
        own_s: seconds of own work per step of its slowest rank, without waiting for others, likewise.
        phase: what its agent does: ``standby``, ``running``, ...; empty: not known.
        slow: its slow ranks, each with the phase of the step in which it is slow; empty: none was found.
    """

    node: str
    heard_s: float
    round: int
    step: int | None
    absolute: bool
    loss: float | None
    step_s: float | None
    own_s: float | None
    phase: str
    slow: str = ""


@attrs.frozen(kw_only=True)
class ObservedMaster:
    """The leading master's memory.

    Args:
        nodes: the connected nodes, by name.
        waiting: facts that are not in the log yet.
        wait_s: seconds for which the oldest of them has waited; 0: none waits.
    """

    nodes: tuple[ObservedNode, ...]
    waiting: int
    wait_s: float


class Observed:
    """A job, as an observer sees it.

    Args:
        log: the job's log, with its archive.
        security: the job's credentials, to be required from others.
        transport: connects to the master; None: gRPC.
        over: set when the observer shall end, once it has read the log to its end; None: it never shall.

    Attributes:
        job: its name.
        security: the job's credentials.
        lost: why the log cannot be read at present; empty: it can.
    """

    def __init__(
        self,
        log: EventLog,
        security: Security,
        transport: Transport | None = None,
        over: asyncio.Event | None = None,
    ) -> None:
        self.job: str = log.job
        self.security = security
        self.lost = ""
        self._log, self._over = log, over or asyncio.Event()
        self._transport = transport or GrpcTransport(security)

    @property
    def ending(self) -> bool:
        """Whether the observer shall end, once it has read the log to its end."""
        return self._over.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait for that long, or until the observer shall end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._over.wait()

    async def events(self, after: int = 0) -> AsyncIterator[Event]:
        """Yield every event of the log from the first one, and new ones as they are appended.

        Ends when the observer shall end. While the log cannot be read, it is tried again.

        Args:
            after: only events after this one, for an observer that began with ``recent``.

        Raises:
            FtcoreError: an event can never be read: the log is damaged, or was cut and has no archive.
        """
        seq, pause_s = Seq(after), RETRY_S[0]
        while True:
            try:
                async for event in self._until_over(seq):
                    self.lost, pause_s = "", RETRY_S[0]
                    seq = Seq(event.seq)
                    yield event
                return
            except (Unreachable, OSError) as error:
                if not self.lost:
                    logger.warning("the event log cannot be read, trying again", job=self.job, error=str(error))
                self.lost = str(error) or type(error).__name__
                await self.pause(pause_s)
                if self.ending:
                    return
                pause_s = min(2 * pause_s, RETRY_S[1])

    async def _until_over(self, after: Seq) -> AsyncIterator[Event]:
        async for event in self._log.read(after):  # reading needs no task for each event
            yield event
            after = Seq(event.seq)
        over = asyncio.create_task(self._over.wait())
        following = aiter(self._log.follow(after))
        following_next: asyncio.Task[Event] | None = None
        try:
            while not self._over.is_set():
                following_next = asyncio.ensure_future(anext(following))
                await asyncio.wait({over, following_next}, return_when=asyncio.FIRST_COMPLETED)
                if not following_next.done():
                    break
                event = following_next.result()
                following_next, after = None, Seq(event.seq)
                yield event
        finally:
            await tasks.end([over] if following_next is None else [over, following_next])
        async for event in self._log.read(after):
            yield event

    async def recent(self, back: int) -> tuple[JobState, list[Event]]:
        """A state near the end of the log, so that an observer of the present need not read all events.

        Args:
            back: how many events before that state are wanted.

        Returns:
            The newest stored state, empty if none is stored, and up to ``back`` events that it includes.

        Raises:
            Unreachable: the log cannot be read now.
        """
        state = (await recall(self._log)).state
        before = []
        if state.seq:
            with contextlib.suppress(Truncated):  # they were archived, and the archive is not here
                before = [event async for event in self._log.read(Seq(max(0, state.seq - back)), Seq(state.seq))]
        return state, before

    async def is_led(self) -> bool | None:
        """Whether a master holds its lease; None: there never was one.

        Raises:
            Unreachable: the log cannot be read now.
        """
        leader = await self._log.leader()
        return leader.alive if leader is not None else None

    async def last_seq(self) -> int:
        """The last event of the log.

        Raises:
            Unreachable: the log cannot be read now.
        """
        return await self._log.last_seq()

    async def look(self) -> ObservedMaster | None:
        """The leading master's memory; None: no master leads, or it does not answer."""
        try:
            async with asyncio.timeout(LOOK_S):
                leader = await self._log.leader()
                if leader is None or not leader.alive:
                    return None
                address = leader.candidate.address
                found = await client.look(self._transport, address, self.job, security=self.security)
        except (FtcoreError, OSError, TimeoutError):
            return None
        return ObservedMaster(
            nodes=tuple(_node(seen) for page in found for seen in page.nodes),
            waiting=found[-1].waiting,
            wait_s=found[-1].wait_s,
        )


def _node(seen: frames.NodeSeen) -> ObservedNode:
    beat = seen.beat or frames.Beat(round=0)
    return ObservedNode(
        node=seen.node,
        heard_s=seen.heard_s,
        round=beat.round,
        step=beat.step,
        absolute=beat.absolute,
        loss=beat.loss,
        step_s=seen.step_s,
        own_s=seen.own_s,
        phase=seen.about.phase,
        slow=seen.slow,
    )


@attrs.frozen(kw_only=True)
class ObserverAdapter:
    """A kind of observer, registered under a URL scheme (entry points of the group ``ftcore.observers``).

    ``ftrun`` loads it on every node to check the URL, so its module must import quickly: import what the observer needs
    in ``run``.

    Args:
        run: given the URL and the job, observes until ``events`` ends, and returns when its output is delivered. An
            exception ends its process, which is started again after a pause.
        check: raises ``UsageError`` if the URL is wrong.
        problem: given the URL, why it would not work on this host now, for a warning of ``ftrun``; empty: it would.
    """

    run: Callable[[str, Observed], Awaitable[None]]
    check: Callable[[str], object] = lambda url: None
    problem: Callable[[str], str] = lambda url: ""


def observer(url: str) -> ObserverAdapter:
    """The adapter of a URL, which it has checked.

    Raises:
        UsageError: no usable adapter of that scheme is installed, or the URL is wrong.
    """
    scheme, colon, _ = url.partition(":")
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if not colon or scheme not in entries:
        near = difflib.get_close_matches(scheme.lower(), entries, n=1)
        known = f"known are {', '.join(f'{name}:' for name in sorted(entries))}" if entries else "none is installed"
        raise UsageError(f"{url!r} is not the URL of an observer: {f'did you mean {near[0]}:?' if near else known}")
    entry = entries[scheme]
    found = loaded(entry, f"observer {scheme}:", ObserverAdapter)
    found.check(url)
    return found


def problems(urls: Sequence[str]) -> list[str]:
    """What would keep observers from working on this host, one line each.

    Raises:
        UsageError: as ``observer``.
    """
    adapters = [(url, observer(url)) for url in urls]
    return [f"--observe {url}: {problem}" for url, adapter in adapters if (problem := adapter.problem(url))]

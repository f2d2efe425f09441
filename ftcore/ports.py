"""Protocols that the core needs from the outside, spoken in events and commands.

House rules: no word of a particular store, launcher or scheduler appears in a signature here. ``EventLog`` has several
adapters and one conformance suite (``tests/conformance``); a ``Supervisor`` is what an embedding launcher replaces; a
``Platform`` is where nodes come from, with a conformance kit in ``ftcore.testing.platform``.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs

from ftcore.events.envelope import Event
from ftcore.ids import JobName, Nanoseconds, Round, Seq, Term
from ftcore.shm.notes import Found, Saved

GROUP_BYTES_MAX = 1 << 20
"""An unsplittable group must fit here: the smallest store (etcd) takes 1.5 MiB a request."""

SNAPSHOTS_KEPT = 2
"""If the newest snapshot turns out to be of no use, the one before it saves reading the whole log."""


@attrs.frozen(kw_only=True)
class Candidate:
    """Who wants to lead, as others will read it.

    Args:
        host: its host's name.
        pid: its process id.
        address: gRPC target at which it will serve as master.
    """

    host: str
    pid: int
    address: str


@attrs.frozen(kw_only=True)
class Leader:
    """Who leads now.

    Args:
        term: its term.
        candidate: what it said of itself.
        alive: its lease is held or was renewed lately.
    """

    term: Term
    candidate: Candidate
    alive: bool


class Leadership(Protocol):
    """A term of leadership that was won; kept alive by the adapter, independently of the caller's event loop work."""

    @property
    def term(self) -> Term:
        """The term won; larger than any before it."""

    async def lost(self) -> str:
        """Return, with the reason, once the leadership is lost or can no longer be shown to be held."""

    async def resign(self) -> None:
        """Give it up, so that another candidate may win at once. Harmless if it is lost already."""


@attrs.frozen(kw_only=True)
class Floor:
    """Where the live log begins.

    Args:
        seq: the last event that was taken out of it; 0 if none was.
        digest: hex digest of the log up to there, chained as in ``events.codec.chain``.
        archive: where the events up to there were kept, as told when they were taken out; empty if none were.
    """

    seq: Seq
    digest: str
    archive: str = ""


@attrs.frozen(kw_only=True)
class Snapshot:
    """What was made of a log's events up to a seq, kept so that they need not be read again.

    Args:
        seq: the last event in it.
        body: bytes that the store does not look into.
    """

    seq: Seq
    body: bytes


@attrs.frozen(kw_only=True)
class Space:
    """How full a log's store is.

    Args:
        used: bytes that count against its limit.
        limit: the limit in bytes; 0 if the store does not tell.
        full: it takes no more events until somebody makes room.
    """

    used: int
    limit: int
    full: bool


class EventLog(Protocol):
    """One job's append-only, totally ordered log. All methods may be called from one event loop.

    Raised by all methods: ``LogUnavailable`` when the store does not answer; ``StoreError`` when it is not usable.
    """

    @property
    def job(self) -> JobName:
        """The job whose log it is."""

    async def append(self, events: Sequence[Event], *, term: Term, expected_seq: Seq) -> None:
        """Append events, all or none; durable when it returns.

        The same call may be repeated after ``LogUnavailable``: it lands once.

        Args:
            events: whole groups, numbered from ``expected_seq + 1`` without a gap.
            term: the caller's term.
            expected_seq: the seq at which the caller thinks the log ends.

        Raises:
            Fenced: a newer term exists, or this term never was.
            Conflict: the log ends elsewhere.
            LogFull: no space; nothing was written.
            ValueError: the numbering has a gap, or the events exceed what one append may hold.
        """

    async def last_seq(self) -> Seq:
        """The seq of the last durable event; 0 if there is none."""

    def read(self, after: Seq = Seq(0), until: Seq | None = None) -> AsyncIterator[Event]:
        """The durable events with ``after < seq <= until`` (to the end as of now if None), in order.

        Raises:
            LogCorrupt: a gap, a digest that does not fit, or bytes that are no event.
            Truncated: the events behind ``after`` were taken out of the live log.
        """

    def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """The durable events after ``after``, then each new one soon after it is durable; never ends by itself.

        No gap and no repeat, whatever the store goes through meanwhile; while it is away the iterator waits.

        Raises:
            Truncated: the events behind the last one given (or ``after``) were taken out of the live log.
        """

    def stored(self, after: Seq, until: Seq) -> AsyncIterator[list[bytes]]:
        """The events with ``after < seq <= until`` as they are stored, in parts: what an archive keeps.

        Their digests were checked; that they can be decoded was not.

        Raises:
            LogCorrupt, Truncated: as for ``read``.
        """

    async def floor(self) -> Floor:
        """Where the live log begins."""

    async def digest_at(self, seq: Seq) -> str:
        """Hex digest of the log up to an event, chained as in ``events.codec.chain``.

        Args:
            seq: the event; 0: before the first.

        Returns:
            The digest; empty if the live log does not hold the event.
        """

    async def truncate(self, until: Seq, *, term: Term, archive: str) -> Floor:
        """Take the events up to ``until`` out of the live log; a store may leave some of them, and never takes more.

        Harmless if it was done before. Readers that have not come so far get ``Truncated``. The last event stays.

        Args:
            until: the last event that may go.
            term: the caller's term.
            archive: where these events are kept.

        Returns:
            Where the live log begins now.

        Raises:
            Fenced: a newer term exists, or this term never was.
        """

    async def save_snapshot(self, snapshot: Snapshot, *, term: Term) -> None:
        """Keep a snapshot beside the log; of all that are there the newest ``SNAPSHOTS_KEPT`` stay.

        Raises:
            Fenced: a newer term exists, or this term never was.
            LogFull: no space; those that were there still are.
        """

    async def snapshot(self, until: Seq | None = None) -> Snapshot | None:
        """The newest snapshot (with ``seq <= until``), whole as it was saved; None if there is none."""

    async def reclaim(self) -> None:
        """Give the store back the room of what was taken out or superseded a while ago. May do nothing."""

    async def space(self) -> Space | None:
        """How full the store is; None if it has no limit of its own."""

    async def campaign(self, candidate: Candidate) -> Leadership:
        """Wait until the leadership is won. Cancel to give up."""

    async def leader(self) -> Leader | None:
        """Who leads, or who led last (``alive`` false); None if nobody ever did."""

    async def close(self) -> None:
        """Release what it holds; a leadership that was not resigned lapses."""


class LogStore(Protocol):
    """A place that holds the logs of several jobs."""

    async def jobs(self) -> list[JobName]:
        """Names of the jobs that have a log here, sorted."""

    async def open(self, job: JobName, *, create: bool = False) -> EventLog:
        """The log of a job.

        Args:
            job: its name.
            create: make an empty one if there is none.

        Raises:
            NotFound: there is none, and ``create`` is false.
            StoreError: what is there is not a log of ours, or of a newer layout.
            UsageError: the place cannot be written (``create``), with the reason.
        """

    async def close(self) -> None:
        """Release what it holds."""


class Archive(Protocol):
    """Where the older events of one job's log are moved to, a piece at a time. All methods block.

    Raised by all methods: ``StoreError`` and ``UsageError`` when the place cannot be used, ``LogFull`` for want of
    space. A piece is there whole or not at all, and is never changed.
    """

    @property
    def where(self) -> str:
        """Its place, for people and for who reads it later."""

    def prepare(self, make: bool) -> None:
        """Find out whether the place can be written.

        Args:
            make: make it, if it is not there.
        """

    def reaches(self, seq: Seq) -> Seq | None:
        """The last event of the piece that holds ``seq``; None if none does."""

    def digest_at(self, last: Seq) -> str:
        """The hex digest of the log up to the last event of a piece, as the piece has it."""

    def add(self, after: Seq, previous: bytes, bodies: Sequence[bytes]) -> None:
        """Write a piece; durable when it returns.

        Args:
            after: the seq before its first event.
            previous: the log's digest up to there.
            bodies: its events, as they are stored.
        """


class Clock(Protocol):
    """Time, as the runtime tells it to the core."""

    def now(self) -> Nanoseconds:
        """Nanoseconds since the epoch."""

    def mono(self) -> Nanoseconds:
        """Nanoseconds of a clock that is never stepped."""


class Host(Protocol):
    """The machine that one of our processes runs on: what the process asks of it."""

    @property
    def name(self) -> str:
        """Its host name."""

    @property
    def pid(self) -> int:
        """Process id of who asks."""

    @property
    def boot(self) -> str:
        """This boot of it, within which monotonic clocks can be compared; empty: it does not tell."""

    def wall(self) -> Nanoseconds:
        """Nanoseconds since the epoch, by its own clock, which people may step."""

    def mono(self) -> Nanoseconds:
        """Nanoseconds of a clock that is never stepped; the same clock as the event loop's."""

    def uniform(self, low: float, high: float) -> float:
        """A random number between two others: so that many hosts do not do the same thing at the same time."""

    def unique(self) -> str:
        """32 hex digits that nobody else is given."""

    def can_open(self, count: int) -> bool:
        """Whether this process could open so many more file descriptors."""

    def devices(self) -> tuple[str, ...]:
        """Models of its accelerators."""

    def interfaces(self) -> dict[str, tuple[int, int, int]]:
        """By network interface: bytes received, bytes sent, errors and drops, since it started."""


class Journal(Protocol):
    """Lines on a disk that outlive the process that wrote them. Nothing here waits for the disk but the coroutines.

    A disk that refuses loses what it refused, and nothing else.
    """

    def append(self, line: bytes) -> None:
        """Have a line written behind the others."""

    def empty(self) -> None:
        """Have nothing there of what was appended so far, nor of what was there before."""

    async def left(self) -> list[bytes]:
        """The lines that were there before this process wrote any; one may be cut short."""

    async def close(self, timeout_s: float) -> None:
        """Wait until all is done, at most so long; what is not done by then is not done."""


class Performer(Protocol):
    """Carries out orders that leave a node's processes in place."""

    async def perform(self, command: Any, effect: str) -> int | None:
        """Carry out an order.

        Args:
            command: what to do, of a type that the agent was told this performer is for.
            effect: identity of the order.

        Returns:
            The last step that the workers had completed then, if known.

        Raises:
            Refused: it could not be done; the workers are as they were.
        """


@attrs.frozen(kw_only=True)
class Launch:
    """All that is needed to start one node's workers of a round.

    Args:
        round: the round.
        argv: the script or module and its arguments, or the program.
        module: run ``argv[0]`` as ``python -m`` would.
        no_python: run ``argv[0]`` as a program.
        cwd: directory in which the workers start.
        envs: the whole environment of each worker, by local rank.
        log_dirs: directory for the output and error file of each worker, by local rank.
    """

    round: Round
    argv: tuple[str, ...]
    module: bool
    no_python: bool
    cwd: str
    envs: tuple[Mapping[str, str], ...]
    log_dirs: tuple[str, ...]


@attrs.frozen(kw_only=True)
class WorkerExit:
    """A worker process ended.

    Args:
        round: the round it belonged to.
        local_rank: its rank on the node.
        pid: its process id.
        exitcode: exit code; negative: the signal.
        mono: monotonic nanoseconds at which it was noticed.
    """

    round: Round
    local_rank: int
    pid: int
    exitcode: int
    mono: int


@attrs.frozen(kw_only=True)
class Progress:
    """What a worker's progress page says.

    Args:
        steps: steps completed since the process started.
        step: number of the last completed step, counted from the start of the training if ``absolute``.
        absolute: see ``step``.
        mono: monotonic nanoseconds of its completion.
        loss: the loss last reported, or None.
        findings: what the detectors in the worker found lately, oldest first.
        saves: which checkpoints it completed lately, oldest first.
        paced: steps since the process started in which its own work was measured.
        own_s: seconds of own work in those, waiting for other ranks left out.
        whole_s: seconds that those took.
    """

    steps: int
    step: int
    absolute: bool
    mono: int
    loss: float | None
    findings: tuple[Found, ...] = ()
    saves: tuple[Saved, ...] = ()
    paced: int = 0
    own_s: float = 0.0
    whole_s: float = 0.0


@attrs.frozen
class Signs:
    """What a worker's page says beside its steps; 0: it does not say.

    Args:
        active: monotonic nanoseconds of its last step, backward pass or report.
        ended: monotonic nanoseconds at which its script came to its end.
        timeout: nanoseconds of the timeout of its process group.
    """

    active: int = 0
    ended: int = 0
    timeout: int = 0


@runtime_checkable
class Inspector(Protocol):
    """A supervisor that can look into its workers; one that cannot need not have any of it."""

    def signs(self) -> tuple[Signs, ...]:
        """What the workers' pages say beside their steps, by local rank."""

    def ask_stack(self, local_rank: int, every: bool = False) -> bool:
        """Ask a worker for the Python stack of its main thread; whether it can answer.

        Args:
            local_rank: the worker.
            every: ask for the stacks of all its threads; only while none but the main thread may run.
        """

    def stack(self, local_rank: int) -> str:
        """What it has answered by now, as faulthandler prints it."""


@runtime_checkable
class Warmer(Protocol):
    """A supervisor that prepares starts while nothing runs; one that does not need not have any of it."""

    async def warmed(self) -> bool:
        """Wait until workers can be started at once; whether they can be, as far as is known."""


class Supervisor(Protocol):
    """Starts, watches and stops the workers of one node.

    ftcore's own is ``runtime.agent.supervisor``; a launcher that has its own way to run processes brings another.
    Only one round's workers exist at a time.
    """

    async def start(self, launch: Launch) -> tuple[tuple[int, ...], str]:
        """Start all workers of the launch.

        Returns:
            The pids by local rank, and how they were started (``fork``, ``exec: reason``).

        Raises:
            UsageError: what is to be run cannot be (missing, not executable); none runs.
        """

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        """End every worker and all that it started: TERM, ``grace_s``, KILL. Returns exit codes by local rank.

        None stands for a worker that had ended before. Returns at once, with an empty tuple, if none was started.
        """

    def exits(self) -> AsyncIterator[WorkerExit]:
        """Each worker's end, as it happens, those caused by ``stop`` excepted."""

    def progress(self) -> tuple[Progress | None, ...]:
        """What the workers' pages say now, by local rank; None for one that reports nothing."""

    def tail(self, local_rank: int, limit: int) -> str:
        """The last lines of the worker's output, at most ``limit`` bytes; of stderr if there is any, else stdout."""

    def error_file(self, local_rank: int) -> str:
        """Path at which the worker may have left its error file, beside its logs; empty if it has none."""

    async def open_store(self, round_: Round, host: str) -> tuple[str, int]:
        """Serve a fresh TCPStore for the round; returns host and port.

        Raises:
            UsageError: it cannot be opened, with the reason.
        """

    async def close(self) -> None:
        """Stop the workers at once and release everything."""


@attrs.frozen(kw_only=True)
class Occupant:
    """Who holds a place of the job, or held it last.

    Args:
        node: the node's name.
        pid: process id of its agent, on its host; a newer agent of that name is another one. 0: whoever has the name.
        ordinal: its place, which a newcomer is to ask for (``ftrun --node-rank``); None: none is known.
    """

    node: str
    pid: int = 0
    ordinal: int | None = None


@attrs.frozen(kw_only=True)
class NodeEnded:
    """The platform knows that a node is gone: sooner, and more surely, than its lease tells.

    Args:
        node: its name.
        reason: how it ended, in a few words.
        pid: process id of its agent; 0: not known. Then it counts only while one process alone has had the name in this
            job: of a name that came back, the end that is told may be that of the one before.
    """

    node: str
    reason: str
    pid: int = 0


@attrs.frozen(kw_only=True)
class NodeWarned:
    """The platform will take a node away.

    Args:
        node: its name.
        reason: why, in a few words.
        within_s: seconds that it has left.
        pid: as in ``NodeEnded``.
    """

    node: str
    reason: str
    within_s: float
    pid: int = 0


@attrs.frozen(kw_only=True)
class CapacityChanged:
    """How many nodes could be launched now.

    Args:
        free: so many; None: the platform cannot tell.
    """

    free: int | None


Happening: TypeAlias = NodeEnded | NodeWarned | CapacityChanged


class Platform(Protocol):
    """What launches nodes: one process each that runs ``ftrun`` for this job, under a name of its own.

    The master asks for nothing that does not stand in its log, and asks again whenever it did not hear the answer, in
    the next term under the same effect. So every order must be safe to repeat: what was done is not done again.

    Raised by all methods: ``Unreachable`` when the platform does not answer (it is asked again).
    """

    async def capacity(self) -> int | None:
        """How many nodes could be launched now; None: the platform cannot tell, so try."""

    async def launch(self, effect: str, place: Occupant) -> None:
        """Have a node come for a place; returns once the platform has taken the order, before the node is there.

        The newcomer is a machine of its own: another one than that of the node given up if it was cordoned, and under
        another name as long as the old one may still be there. One effect brings at most one node, however often it is
        asked for; for a place that the platform has filled anew by itself there is nothing to do.

        Args:
            effect: identity of the launch, the same whenever it is asked for again.
            place: the node given up.

        Raises:
            Refused: it will not, with the reason, as ``no machine is free``.
        """

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """End a node that was given up; harmless if it is gone. Returns at once.

        Args:
            place: the node.
            grace_s: seconds that it has to leave by itself; 0: it is ended now, as it may be frozen.
        """

    async def cordon(self, place: Occupant, reason: str) -> None:
        """Keep the machine of a node from being chosen again, and its name from being used again.

        Args:
            place: the node.
            reason: why, for people.
        """

    def watch(self) -> AsyncIterator[Happening]:
        """What happens to nodes and capacity, beginning with what is so now; ends only by raising ``Unreachable``.

        What may have been missed is told again: repeats are harmless, gaps are not.
        """

    async def close(self) -> None:
        """Release what this object holds; the nodes stay."""


class Stream(Protocol):
    """A conversation between two processes in whole frames, in order. At each end one task reads and one task writes.

    Raised by ``read`` and ``write``: ``StreamBroken``.
    """

    @property
    def peer(self) -> str:
        """The host of who opened the stream, ``unix`` on one machine; of use to who serves."""

    async def read(self) -> bytes | None:
        """The next frame; None: the other end has closed the stream."""

    async def write(self, frame: bytes) -> None:
        """Send a frame; returns once the transport has taken it."""


Handle: TypeAlias = Callable[[Stream], Awaitable[None]]
"""Serves one stream. The stream is closed when it returns; it is cancelled when the stream breaks."""


class Listener(Protocol):
    """Where one process serves streams."""

    async def start(self) -> str:
        """Serve; returns the address for others.

        Raises:
            Unreachable: the address cannot be listened on.
            UsageError: there is no certificate to show.
        """

    @property
    def reachable(self) -> bool:
        """Whether callers find the address; the file of a socket may have been removed."""

    async def restore(self) -> None:
        """Make the address reachable again, if that is possible; open streams are not touched."""

    async def stop(self) -> None:
        """Close all streams; what was written to them is sent first, for a moment."""


class Transport(Protocol):
    """How agents, operators and standbys reach masters."""

    def connect(self, target: str) -> AbstractAsyncContextManager[Stream]:
        """A stream to who serves an address, closed at the end of the context.

        Args:
            target: the address, as ``Listener.start`` gave it.

        Raises:
            StreamBroken: when it is read or written first: nobody serves there.
        """

    def listener(self, target: str, *, advertise: str, handle: Handle) -> Listener:
        """A listener that is not started yet.

        Args:
            target: ``unix:/path``, or ``host:port`` with port 0 for a free one.
            advertise: host name or address that others use; empty: that of the target.
            handle: serves each stream.
        """

"""Protocols that the core needs from the outside, spoken in events and commands.

House rules: no word of a particular store, launcher or scheduler appears in a signature here. ``EventLog`` has several
adapters and one conformance suite (``tests/conformance``); a ``Supervisor`` is what an embedding launcher replaces.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Protocol

import attrs

from ftcore.events.envelope import Event
from ftcore.ids import JobName, Nanoseconds, Round, Seq, Term
from ftcore.shm.notes import Found, Saved

GROUP_BYTES_MAX = 1 << 20
"""An unsplittable group must fit here: the smallest store (etcd) takes 1.5 MiB a request."""


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
        """

    def follow(self, after: Seq = Seq(0)) -> AsyncIterator[Event]:
        """The durable events after ``after``, then each new one soon after it is durable; never ends by itself.

        No gap and no repeat, whatever the store goes through meanwhile; while it is away the iterator waits.
        """

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


class Clock(Protocol):
    """Time, as the runtime tells it to the core."""

    def now(self) -> Nanoseconds:
        """Nanoseconds since the epoch."""

    def mono(self) -> Nanoseconds:
        """Nanoseconds of a clock that is never stepped."""


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
    """

    steps: int
    step: int
    absolute: bool
    mono: int
    loss: float | None
    findings: tuple[Found, ...] = ()
    saves: tuple[Saved, ...] = ()


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
        """Path at which the worker may have left its error file."""

    async def open_store(self, round_: Round, host: str) -> tuple[str, int]:
        """Serve a fresh TCPStore for the round; returns host and port.

        Raises:
            UsageError: it cannot be opened, with the reason.
        """

    async def close(self) -> None:
        """Stop the workers at once and release everything."""

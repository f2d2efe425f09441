"""Protocols of the supervisor, which runs a node's workers, and the data it reports about them."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

import attrs

from ftcore.ids import Round
from ftcore.shm.boundary import BoundaryState
from ftcore.shm.calls import Call
from ftcore.shm.notes import CheckpointNote, FindingNote
from ftcore.shm.phases import PhaseBlock
from ftcore.shm.sections import SectionState


@attrs.frozen(kw_only=True)
class Launch:
    """Parameters for starting one node's workers of a round.

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
        pid: its process ID.
        exitcode: exit code; negative: the signal.
        mono: monotonic nanoseconds at which the exit was noticed.
    """

    round: Round
    local_rank: int
    pid: int
    exitcode: int
    mono: int


@attrs.frozen(kw_only=True)
class Progress:
    """Contents of a worker's progress page.

    Args:
        steps: steps completed since the process started.
        step: number of the last completed step, counted from the start of the training if ``absolute``.
        absolute: see ``step``.
        mono: monotonic nanoseconds of its completion.
        loss: the last reported loss, or None.
        findings: recent findings of the detectors in the worker, oldest first.
        saves: recently completed checkpoints, oldest first.
        paced: number of steps since the process started whose own work was measured.
        own_s: seconds of own work in those steps, without waiting for other ranks.
        whole_s: total seconds of those steps.
        abilities: what the worker can do on request.
        blocks: times of the phases in its latest blocks of steps, oldest first.
        role: which other ranks do the same work: those with the same name; empty: not known.
        role_declared: the script has declared it.
    """

    steps: int
    step: int
    absolute: bool
    mono: int
    loss: float | None
    findings: tuple[FindingNote, ...] = ()
    saves: tuple[CheckpointNote, ...] = ()
    paced: int = 0
    own_s: float = 0.0
    whole_s: float = 0.0
    abilities: tuple[str, ...] = ()
    blocks: tuple[PhaseBlock, ...] = ()
    role: str = ""
    role_declared: bool = False


@attrs.frozen
class Signs:
    """Liveness data of a worker's progress page; 0: unknown.

    Args:
        active: monotonic nanoseconds of its last step, backward pass or report.
        ended: monotonic nanoseconds at which its script ended.
        timeout: timeout of its process group in nanoseconds.
        sections: what it does between its steps.
    """

    active: int = 0
    ended: int = 0
    timeout: int = 0
    sections: SectionState = attrs.field(factory=SectionState)


@runtime_checkable
class Inspector(Protocol):
    """Optional part of a supervisor: inspection of running workers."""

    def signs(self) -> tuple[Signs, ...]:
        """Liveness data of the workers, by local rank."""

    def ask_stack(self, local_rank: int, every: bool = False, locked: bool = False) -> bool:
        """Request Python stacks from a worker; returns whether the worker can write them.

        Args:
            local_rank: the worker.
            every: True: the stacks of all threads, written as soon as the main thread runs Python. False: that of the
                main thread, written at once. The latter may kill a process that runs Python; use it only for a worker
                that did not answer the former and therefore is inside a native call.
            locked: its main thread waits for a lock.
        """

    def stack(self, local_rank: int) -> str:
        """The stacks written so far, as faulthandler prints them."""


@runtime_checkable
class DeepInspector(Protocol):
    """Optional part of an inspector: what a worker's own processes do, and its collectives."""

    def ask_child(self, local_rank: int, pid: int, locked: bool = False) -> bool:
        """Request the Python stacks of a process that the worker has forked, as ``Inspector.ask_stack`` does.

        Its answer replaces the worker's own.
        """

    def ask_calls(self, local_rank: int) -> bool:
        """Request the worker's newest collectives; returns whether the worker can tell them."""

    def calls(self, local_rank: int) -> tuple[tuple[Call, ...], str]:
        """The newest collectives told so far, by process group, the newest first; and the details, as text."""


@runtime_checkable
class Warmer(Protocol):
    """Optional part of a supervisor: preparation of warm starts."""

    async def warmed(self) -> bool:
        """Wait until preparation has ended; returns whether workers can be started warm, as far as known."""


NO_ROUND: Final = Round(0)
"""The round of workers that are started before they have one."""


class Supervisor(Protocol):
    """Starts, watches and stops the workers of one node.

    Default: ``runtime.agent.workers.supervisor``. A launcher with its own process management supplies its own. Workers
    of only one round exist at a time.
    """

    async def start(self, launch: Launch) -> tuple[tuple[int, ...], str]:
        """Start all workers of the launch; those that ``ParkControl.park`` left waiting enter its round.

        Returns:
            The PIDs by local rank, and the start method (``fork``, ``exec: reason``).

        Raises:
            UsageError: the program is missing or not executable; no worker was started.
        """

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        """End all workers and their child processes: TERM, ``grace_s`` seconds, KILL. Returns exit codes by local rank.

        None: the worker had ended before. Returns an empty tuple at once if no worker was started.
        """

    def exits(self) -> AsyncIterator[WorkerExit]:
        """Worker exits as they happen, except those caused by ``stop``."""

    def progress(self) -> tuple[Progress | None, ...]:
        """Current progress pages, by local rank; None for a worker that reports nothing."""

    def tail(self, local_rank: int, limit: int) -> str:
        """The last lines of the worker's output, at most ``limit`` bytes: stderr, or stdout if stderr is empty."""

    def error_file(self, local_rank: int) -> str:
        """Path of the worker's error file, which may not exist; empty if the worker has none."""

    async def open_store(self, round_: Round, host: str) -> tuple[str, int]:
        """Serve a fresh TCPStore for the round; returns host and port.

        Raises:
            UsageError: the store cannot be opened, with the reason.
        """

    async def close(self) -> None:
        """Stop the workers at once and release all resources."""


class WorkerBoundary(Protocol):
    """Stops and saves of one worker at step boundaries; see ``shm/boundary.py``."""

    def read(self) -> BoundaryState:
        """Where the worker is."""

    def stop_at(self, number: int) -> None:
        """Let it wait at a boundary and at every later one; 0: let it go on."""

    def save_at(self, number: int, in_memory: bool = False) -> None:
        """Let it save at a boundary, on request in memory only; 0: nowhere."""


@runtime_checkable
class BoundaryControl(Protocol):
    """Optional part of a supervisor: orders to running workers at step boundaries."""

    def boundaries(self) -> Sequence[WorkerBoundary | None]:
        """The workers' boundaries, by local rank; None for a worker that has ended."""


@runtime_checkable
class ParkControl(Protocol):
    """Optional part of a supervisor: its workers leave their round, and enter the next one in the same processes."""

    async def park(self, grace_s: float) -> tuple[int, ...]:
        """Let all living workers leave their round and wait with their state.

        One that has not left after ``grace_s`` seconds is killed, and its end is not reported. ``start`` lets those
        that wait enter its round; ``stop`` ends them.

        Returns:
            The local ranks that wait.
        """


@attrs.frozen
class Performed:
    """Result of an order that was executed.

    Args:
        step: the last step that the workers had completed by then; None: not known.
        boundary: the step boundary at which the workers stop; 0: none.
    """

    step: int | None = None
    boundary: int = 0


class Performer(Protocol):
    """Executes orders that do not restart a node's processes."""

    async def perform(self, command: Any, effect: str) -> Performed:
        """Execute an order.

        An order to resume may come while another one is in progress, which then ends at once.

        Args:
            command: the command, of a type registered for this performer.
            effect: ID of the effect.

        Raises:
            Refused: the order could not be executed; the workers are unchanged.
        """

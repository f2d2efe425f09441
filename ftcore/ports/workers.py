"""Who runs the workers of a node, and what they show of themselves."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, runtime_checkable

import attrs

from ftcore.ids import Round
from ftcore.shm.notes import Found, Saved


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

    def ask_stack(self, local_rank: int, every: bool = False, locked: bool = False) -> bool:
        """Ask a worker for Python stacks; whether it can answer.

        Args:
            local_rank: the worker.
            every: those of all its threads, to be written as soon as the main thread runs Python; else that of the main
                thread alone, at once. The latter may end a process that runs Python: ask it only of a worker that did
                not answer the former, for it is inside a call that is not Python's.
            locked: its main thread waits for a lock.
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

"""One worker process of this node, and what its supervisor has of it."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import attrs

from ftcore.faults.codes import signal_name
from ftcore.ids import Round
from ftcore.ports import Launch, WorkerExit
from ftcore.runtime.agent.workers.output import OutputPipe
from ftcore.runtime.agent.workers.pages import WorkerPage
from ftcore.runtime.agent.workers.parking import RoundChannel, WorkerFault
from ftcore.runtime.agent.workers.stackfile import StackFile
from ftcore.runtime.agent.workers.warm_link import ParkedWorker
from ftcore.runtime.warm import protocol
from ftcore.shm.boundary import PARKS, RESIZES, RETRIES
from ftcore.wording import format_duration

ERROR_FILE_ENV: Final = "TORCHELASTIC_ERROR_FILE"

REAPED_S: Final = 0.5
"""Longest wait in seconds for the exit code of a process that has closed its channel."""

HOOKS: Final = "ftcore.worker._hooks"
"""Module that a worker imports to count its steps; referenced by name, because the agent must not import ``worker``."""


class WorkerPlace(NamedTuple):
    """What a process can change only if its script says so: its global rank, and how many there are; -1: not known.

    Args:
        rank: its global rank.
        ranks: number of ranks.
        local_ranks: number of ranks of its node.
    """

    rank: int
    ranks: int
    local_ranks: int


@attrs.define
class LocalWorker:
    """One worker process.

    Args:
        local_rank: its rank on the node.
        pid: its process ID.
        parked: the process before its first launch.
        stdout: its output in the present round.
        stderr: its errors in the present round.
        page: its progress page in the present round.
        stacks: where it writes its stacks.
        channel: the channel by which it leaves and enters rounds.
        error_file: its error file.
        place: its place among the ranks in the present round.
        exitcode: its exit code; None: it runs.
        waits: it has left its round, and waits for the next one.
        dropped: it did not leave its round in time, and was killed.
        damaged: it has reported that its memory is damaged.
        suspicion: its failed collective, while the end of another worker may be the cause.
        former: its output in earlier rounds: its children may go on to write there.
    """

    local_rank: int
    pid: int
    parked: ParkedWorker
    stdout: OutputPipe
    stderr: OutputPipe
    page: WorkerPage
    stacks: StackFile
    channel: RoundChannel
    error_file: str
    place: WorkerPlace
    exitcode: int | None = None
    waits: bool = False
    dropped: bool = False
    damaged: bool = False
    suspicion: WorkerFault | None = None
    former: list[OutputPipe] = attrs.field(factory=list)

    def exit_of(self, round_: Round, mono: int) -> WorkerExit:
        """Its end, as one of a round.

        Args:
            round_: the round.
            mono: monotonic nanoseconds at which it was noticed.
        """
        assert self.exitcode is not None
        return WorkerExit(round=round_, local_rank=self.local_rank, pid=self.pid, exitcode=self.exitcode, mono=mono)

    @property
    def parks(self) -> bool:
        """Whether its script goes on with a new process in place of another one."""
        return bool(self.page.orders.read().able & PARKS)

    def fits(self, launch: Launch) -> bool:
        """Whether it can be the process of its local rank in a round."""
        place, resizes = place_of(launch, self.local_rank), self.page.orders.read().able & RESIZES
        if self.place.rank < 0:  # it has no round yet
            return self.local_rank < len(launch.envs) and place.local_ranks == self.place.local_ranks
        return place == self.place or bool(resizes and place.local_ranks == self.place.local_ranks)

    def renew(self, launch: Launch, stdout: OutputPipe, stderr: OutputPipe) -> None:
        """Give it what a new process of a round has; see ``enter``. Raises ``OSError``."""
        self.place = place_of(launch, self.local_rank)
        self.former = [pipe for pipe in (*self.former, self.stdout, self.stderr) if not pipe.ended]
        self.stdout, self.stderr = stdout, stderr
        self.page.close()
        self.page = WorkerPage()
        self.waits = self.damaged = False
        self.suspicion = None

    def enter(self, env: Mapping[str, str]) -> "asyncio.Future[dict[str, Any] | None]":
        """Let it enter the round; returns what completes with its answer, or None at its end."""
        entering = self.channel.start(env, [self.stdout.worker_end, self.stderr.worker_end, self.page.fd])
        self.page.release_fd()
        return entering

    def close_worker_ends(self) -> None:
        """Close what the worker has taken over."""
        self.stdout.close_worker_end()
        self.stderr.close_worker_end()
        self.channel.close_worker_end()
        self.parked.channel.close()

    def drain(self) -> None:
        """Read what it wrote and noticed before its end."""
        self.stdout.drain()
        self.stderr.drain()
        self.channel.drain()
        self.channel.close()

    def close_output(self) -> None:
        """Stop reading its output."""
        for pipe in (self.stdout, self.stderr, *self.former):
            pipe.close()

    def close(self) -> None:
        """Close everything; the process has ended."""
        self.close_output()
        self.page.close()
        self.stacks.close()
        self.channel.close()


def clear_error_file(env: Mapping[str, str], log_dir: str, note: Callable[[str], None]) -> str:
    """Return the error file of a worker, which does not exist yet.

    Args:
        env: its environment.
        log_dir: directory of its output; created.
        note: called with a message if that fails.
    """
    error_file = env.get(ERROR_FILE_ENV) or os.path.join(log_dir, "error.json")
    try:
        os.makedirs(log_dir, exist_ok=True)
        if os.path.exists(error_file):
            os.unlink(error_file)
    except OSError as error:
        note(f"{log_dir}: {error.strerror}; this worker's output is not written to a file")
    return error_file


def place_of(launch: Launch, local_rank: int) -> WorkerPlace:
    """The place of a local rank in a round."""
    env = launch.envs[local_rank] if local_rank < len(launch.envs) else {}
    return WorkerPlace(*(int(env.get(name) or -1) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")))


def hand_over(worker: LocalWorker, launch: Launch, env: Mapping[str, str], exec_reason: str) -> None:
    """Hand its launch over to a forked process, which answers on ``worker.parked.channel``.

    Args:
        worker: the worker.
        launch: the launch.
        env: its environment.
        exec_reason: why it must be a fresh interpreter; empty: it need not.
    """
    body = protocol.body_fd(
        {
            "argv": list(launch.argv),
            "module": launch.module,
            "no_python": launch.no_python,
            "cwd": launch.cwd,
            "env": dict(env),
            "python": env.get("PYTHON_EXEC") or sys.executable,
            "exec_reason": exec_reason,
            "hooks": HOOKS,
            "stacks": -1,
        }
    )
    fds = [body, worker.stdout.worker_end, worker.stderr.worker_end, worker.page.fd, worker.stacks.fd]
    fds.append(worker.channel.worker_end.fileno())
    # Sending fails if the worker was just killed; the reaper reports its end.
    with contextlib.suppress(OSError):
        protocol.send(worker.parked.channel, {"start": 1}, fds)
    os.close(body)
    worker.page.release_fd()


def how_started(workers: int, how: str, parked: int, prepared: int) -> str:
    """How the workers of a round were started; see ``workers.started``.

    Args:
        workers: their number.
        how: start method of new processes; empty: there are none.
        parked: number of those that had left an earlier round.
        prepared: number of those that waited for their first one.
    """
    waited = {name: count for name, count in (("parked", parked), ("prepared", prepared)) if count}
    if not how and len(waited) == 1:
        return next(iter(waited))
    return "; ".join([*([how] if how else []), *(f"{count} of {workers} {name}" for name, count in waited.items())])


def has_stepped(worker: LocalWorker) -> bool:
    """Whether a worker has completed a step of its round."""
    page = worker.page.progress()
    return page is not None and page.steps > 0


async def wait_for_rank(workers: Sequence[LocalWorker], limit_s: float) -> str:
    """Wait until workers without a round have come to where they need their rank; ``waits`` is set for each that has.

    Args:
        workers: they were started.
        limit_s: longest wait in seconds.

    Returns:
        Why one did not come there; empty: all did.
    """

    def answered(worker: LocalWorker, left: "asyncio.Future[None]") -> None:
        worker.waits = not left.cancelled() and worker.exitcode is None

    asked = {worker.local_rank: worker.channel.leave(()) for worker in workers}
    for worker in workers:
        asked[worker.local_rank].add_done_callback(partial(answered, worker))
    if asked:
        await asyncio.wait(asked.values(), timeout=limit_s)
    for worker in workers:
        left, which = asked[worker.local_rank], f"worker {worker.local_rank}"
        if not left.done():
            return f"{which} did not ask for its rank within {format_duration(round(limit_s))}"
        if left.cancelled():
            await _reaped(worker)
            worker.stderr.drain()
            if worker.exitcode is not None and worker.exitcode < 0:
                return f"{which} was ended by {signal_name(-worker.exitcode)} before it asked for its rank"
            lines = worker.stderr.tail().decode(errors="replace").strip().splitlines()
            code = "" if worker.exitcode is None else f" with code {worker.exitcode}"
            return f"{which} ended{code} before it asked for its rank" + (f": {lines[-1]}" if lines else "")
    return ""


async def _reaped(worker: LocalWorker) -> None:
    """Wait until the exit code of a worker that has closed its channel is known, briefly."""
    deadline = asyncio.get_running_loop().time() + REAPED_S
    while worker.exitcode is None and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110  (rare)
        await asyncio.sleep(0.005)


async def ask_to_leave(workers: Sequence[LocalWorker], grace_s: float) -> None:
    """Let workers leave their round; afterwards ``waits`` says of each whether it has.

    Args:
        workers: they live.
        grace_s: longest wait in seconds. A script that cannot leave is not waited for.
    """
    able = [worker for worker in workers if worker.page.orders.read().able & RETRIES]
    damaged = [worker.place.rank for worker in able if worker.damaged]
    loop = asyncio.get_running_loop()
    until = loop.time() + grace_s
    for first in (True, False):  # what the damaged ones lack, others save after them
        asked = [(each, each.channel.leave(damaged)) for each in able if each.damaged is first]
        for worker, _ in asked:
            worker.page.orders.save_at(0)
            worker.page.orders.stop_at(0)  # one that is paused leaves, too
        if asked:
            await asyncio.wait([left for _, left in asked], timeout=max(0.0, until - loop.time()))
        for worker, left in asked:
            worker.waits = left.done() and not left.cancelled() and worker.exitcode is None

"""One worker process of this node, and what its supervisor has of it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ftcore.ports import Launch
from ftcore.runtime.agent.workers.output import OutputPipe
from ftcore.runtime.agent.workers.pages import WorkerPage
from ftcore.runtime.agent.workers.parking import RoundChannel
from ftcore.runtime.agent.workers.stackfile import StackFile
from ftcore.runtime.agent.workers.warm_link import ParkedWorker
from ftcore.shm.boundary import RETRIES


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
        place: its place among the ranks; see ``place_of``.
        exitcode: its exit code; None: it runs.
        waits: it has left its round, and waits for the next one.
        dropped: it did not leave its round in time, and was killed.
        damaged: it has reported that its memory is damaged.
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
    place: tuple[str | None, ...]
    exitcode: int | None = None
    waits: bool = False
    dropped: bool = False
    damaged: bool = False
    former: list[OutputPipe] = attrs.field(factory=list)

    def renew(self, stdout: OutputPipe, stderr: OutputPipe) -> None:
        """Give it what a new process of a round has; see ``enter``. Raises ``OSError``."""
        self.former += (self.stdout, self.stderr)
        self.stdout, self.stderr = stdout, stderr
        self.page.close()
        self.page = WorkerPage()
        self.waits = self.damaged = False

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


def place_of(launch: Launch, local_rank: int) -> tuple[str | None, ...]:
    """What a process cannot change: its rank, the number of ranks, and that of the node."""
    env = launch.envs[local_rank] if local_rank < len(launch.envs) else {}
    return tuple(env.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))


async def ask_to_leave(workers: Sequence[LocalWorker], grace_s: float) -> None:
    """Let workers leave their round; afterwards ``waits`` says of each whether it has.

    Args:
        workers: they live.
        grace_s: longest wait in seconds. A script that cannot leave is not waited for.
    """
    able = [worker for worker in workers if worker.page.orders.read().able & RETRIES]
    damaged = [int(worker.place[0] or 0) for worker in able if worker.damaged]
    loop = asyncio.get_running_loop()
    until = loop.time() + grace_s
    for first in (True, False):  # what the damaged ones lack, others save after them
        asked = [(each, each.channel.leave(damaged)) for each in able if each.damaged is first]
        if asked:
            await asyncio.wait([left for _, left in asked], timeout=max(0.0, until - loop.time()))
        for worker, left in asked:
            worker.waits = left.done() and not left.cancelled() and worker.exitcode is None

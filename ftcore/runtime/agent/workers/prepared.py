"""Workers that are started before their round, so that it begins without their imports and set-up.

Each runs the script up to where it needs its rank, and waits there (``worker/_prepared.py``). It belongs to no round,
so neither its start nor its end is reported. If one ends by itself before it waits, none is prepared any more; one that
is killed, or ends later, is replaced after the next launch.
"""

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Collection
from typing import TypeAlias

import attrs

from ftcore.errors import UsageError
from ftcore.ports import Launch
from ftcore.runtime.agent.workers import local_worker, processes
from ftcore.runtime.agent.workers.local_worker import LocalWorker

PREPARE_AFTER_S = 5.0
"""Seconds until workers are prepared, after a launch or after the node can start workers: at the start of a job, all
nodes join within these."""

FIRST_STEPS_S = 1800.0
"""Longest wait in seconds for the first steps of running workers: before them, these do their own set-up."""

ENDS_S = 5.0
"""Longest wait in seconds for the end of a killed set-up: it may hold a device's memory, a port or a lock of a file."""

FIRST_STEPS_POLL_S = 0.5

SET_UP_S = 1800.0
"""Seconds after which a set-up counts as endless. Until it has ended, the job does not grow for this node."""

Begin: TypeAlias = Callable[[Launch, Collection[int]], Awaitable[str]]
"""Starts and adds workers by local rank; returns why they cannot be prepared, or an empty text."""


@attrs.frozen
class PrepareOptions:
    """What is prepared.

    Args:
        launch: of ``NO_ROUND``; no environment has one of the variables ``shm.rounds.OF_ROUND``.
        beside: also beside the workers of a round, not only on standby.
        after_s: see ``PREPARE_AFTER_S``.
        first_steps_s: see ``FIRST_STEPS_S``.
        limit_s: see ``SET_UP_S``.
    """

    launch: Launch
    beside: bool = False
    after_s: float = PREPARE_AFTER_S
    first_steps_s: float = FIRST_STEPS_S
    limit_s: float = SET_UP_S


class PreparedWorkers:
    """The prepared workers of one node.

    Args:
        options: what is prepared; None: nothing.
        begin: starts them.
        stepped: whether all running workers of a round have completed a step.
        note: called with a message for the user.
        release: called with each of these workers that has ended and belongs to no round.
    """

    def __init__(
        self,
        options: PrepareOptions | None,
        begin: Begin,
        stepped: Callable[[], bool],
        note: Callable[[str], None],
        release: Callable[[LocalWorker], None],
    ) -> None:
        self._options, self._begin, self._stepped = options, begin, stepped
        self._note, self._release = note, release
        self._workers: list[LocalWorker] = []
        self._entering: list[LocalWorker] = []
        self._task: asyncio.Task[None] | None = None
        self._asleep = self._is_due = False
        self._ended = asyncio.Event()
        self._times = 0

    async def standby(self) -> None:
        """Prepare the workers of a node that has no round yet; wait for them, or until a round begins."""
        task = self._prepare_soon()
        if task is not None:
            await asyncio.wait({task})

    def add(self, worker: LocalWorker) -> None:
        """Add a worker that was started."""
        self._workers.append(worker)

    async def choose(self, launch: Launch, others: Collection[int]) -> dict[int, LocalWorker]:
        """The workers that can enter a round, by local rank; then ``entered`` or ``keep`` follows.

        On standby, the others are ended first.

        Args:
            launch: of the round.
            others: local ranks that need none of them.
        """
        waiting = [each for each in self._workers if each.waits and not processes.is_stopped(each.pid)]
        able = {each.local_rank: each for each in waiting if each.local_rank not in others and each.fits(launch)}
        self._entering = list(able.values())
        self._workers = [each for each in self._workers if each not in self._entering]
        if not self._is_beside():
            self.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ENDS_S):
                    while self._workers:
                        self._ended.clear()
                        await self._ended.wait()
        return able

    def entered(self) -> None:
        """The round has begun, and the chosen workers belong to it."""
        self._entering = []
        if self._is_beside():
            self._prepare_soon()
        else:
            self.close()

    def keep(self) -> None:
        """The round has not begun: the chosen workers go on to wait."""
        chosen, self._entering = self._entering, []
        self._workers += [each for each in chosen if each.exitcode is None]
        for each in chosen:
            if each.exitcode is not None:
                self._release(each)

    def ended(self, worker: LocalWorker) -> bool:
        """Note the end of a worker; returns whether it belongs to no round."""
        if worker in self._workers:
            self._workers.remove(worker)
            self._release(worker)
            self._ended.set()
            return True
        return worker in self._entering

    def close(self) -> None:
        """End all prepared workers, and prepare no more before the next call of ``standby``."""
        if self._task is not None:
            self._task.cancel()
        for worker in self._workers:
            processes.kill(worker.pid, signal.SIGKILL, group=True)

    def _is_beside(self) -> bool:
        return self._options is not None and self._options.beside

    def _prepare_soon(self) -> asyncio.Task[None] | None:
        if self._options is None:
            return None
        if self._task is not None and self._asleep:
            self._task.cancel()
        self._is_due = True
        if self._task is None or self._asleep or self._task.done():
            self._asleep = True
            self._task = asyncio.get_running_loop().create_task(self._run(self._options))
        return self._task

    async def _run(self, options: PrepareOptions) -> None:
        while self._is_due and self._options is not None:  # a round may begin during a set-up
            self._asleep = True
            await asyncio.sleep(options.after_s)
            for _ in range(round(options.first_steps_s / FIRST_STEPS_POLL_S)):
                if self._stepped():
                    break
                await asyncio.sleep(FIRST_STEPS_POLL_S)
            self._asleep = self._is_due = False
            with contextlib.suppress(UsageError, OSError):  # the next launch says why
                await self._prepare(options)

    async def _prepare(self, options: PrepareOptions) -> None:
        there = {worker.local_rank for worker in (*self._workers, *self._entering)}
        missing = [rank for rank in range(len(options.launch.envs)) if rank not in there]
        if not missing:
            return
        self._times += 1
        launch = options.launch
        if self._times > 1:  # what the running ones have written stays
            launch = attrs.evolve(launch, log_dirs=tuple(f"{each}.{self._times}" for each in launch.log_dirs))
        problem = await self._begin(launch, missing)
        new = [each for each in self._workers if not each.waits]
        problem = problem or await local_worker.wait_for_rank(new, options.limit_s)
        if problem:
            self._note(f"workers cannot be prepared: {problem}; they are started in their round")
            if not any(each.exitcode is not None and each.exitcode < 0 for each in new):
                self._options = None  # the script itself is the reason
                self.close()

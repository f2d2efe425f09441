"""Carries out the order that names the steps after which workers save to storage; see ``engine/save_interval.py``.

House rules: no worker is stopped. A worker reports a step before it looks for the order, so one that reports an earlier
step than the first of the order will see it there.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ftcore.commands import PaceSaves
from ftcore.errors import Refused
from ftcore.ports import Performed, Progress

SETTLE_S: Final = 0.005
"""Seconds between writing an order and reading where the workers are: far longer than memory needs to show it."""


class PacedWorker(Protocol):
    """A worker that can be told when to save; see ``shm/boundary.py``."""

    def pace(self, every: int, since: int) -> None:
        """Let it save to storage after each step that is a multiple of ``every``, from step ``since`` on."""


class SavePacer:
    """Carries out ``PaceSaves``; see ``ports.Performer``.

    Args:
        workers: returns the workers, by local rank; None for one that has ended.
        progress: returns the workers' progress pages, by local rank.
    """

    def __init__(
        self,
        workers: Callable[[], Sequence[PacedWorker | None]],
        progress: Callable[[], Sequence[Progress | None]],
    ) -> None:
        self._workers, self._progress = workers, progress

    async def perform(self, command: Any, effect: str) -> Performed:
        """See ``ports.Performer``. A worker that has passed the first step obeys from the next one on."""
        assert isinstance(command, PaceSaves)
        for worker in self._workers():
            if worker is not None:
                worker.pace(command.every, command.since)
        await asyncio.sleep(SETTLE_S)
        steps = [page.step for page in self._progress() if page is not None and page.steps > 0]
        if steps and max(steps) >= command.since:
            raise Refused(f"a worker has completed step {max(steps)}; its saves begin after step {command.since}")
        return Performed(min(steps) if steps else None)

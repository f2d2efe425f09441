"""Carries out orders at step boundaries: finds one that all workers can reach, pauses, resumes and saves there.

All ranks of a job must stop after the same step, or those that go on wait in a collective for those that do not. So a
stop has two orders. The first one (``FindBoundary``) stops each worker at its next boundary; its answer is the latest
boundary at which a worker of this node can stop. The master sends the latest of all nodes as the boundary of the second
order. Workers before it go on up to it.

House rules: workers that were stopped by the first order go on after ``AGREE_S`` without a second one: a master that is
gone must not stop the training; a second order that comes later is refused. The same holds for workers that were held
after their save. A wait for workers ends when one of them
ends, or with the next order: workers that never come to the boundary do not delay an order to resume.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from ftcore.commands import FindBoundary, PauseWorkers, ResumeWorkers, SaveCheckpoint
from ftcore.errors import Refused
from ftcore.ports import BoundaryControl, Performed, Performer, Progress
from ftcore.shm.boundary import SAVES, WAITS, BoundaryState

AGREE_S: Final = 15.0
"""Seconds for which workers stay stopped without an order that names the boundary; longer than a master's failover."""

ORDER_S: Final = 3.0
"""Seconds in which the order to save must come after a notice that the node leaves."""

OTHERS_S: Final = 1.0
"""Seconds for which a node that leaves waits after its own save, so that the other nodes' saves end as well."""

SETTLE_S: Final = 0.005
"""Seconds between writing an order and reading where the workers are: far longer than memory needs to show it."""

POLL_S: Final = 0.005
"""Shortest interval in seconds of reading where the workers are."""


class BoundaryPerformer:
    """Carries out the orders at step boundaries; see ``ports.Performer``.

    Args:
        control: stops the workers.
        progress: returns the workers' progress pages, by local rank.
    """

    def __init__(self, control: BoundaryControl, progress: Callable[[], Sequence[Progress | None]]) -> None:
        self._control = control
        self._progress = progress
        self._paused_at = 0
        self._round = 0
        self._stopped = False
        self._newest: Any = None
        self._expiry: asyncio.TimerHandle | None = None
        self._ordered = asyncio.Event()
        self._saved = asyncio.Event()

    @property
    def can_save(self) -> bool:
        """Whether all workers run and save on request."""
        states = [worker.read() if worker is not None else None for worker in self._control.boundaries()]
        return bool(states) and all(state is not None and state.able & SAVES for state in states)

    async def saved(self, within_s: float) -> None:
        """Wait for a save that is ordered from now on; return at once if it fails or no order comes in ``ORDER_S``.

        Args:
            within_s: longest wait in seconds.
        """
        self._ordered.clear()
        self._saved.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                async with asyncio.timeout(ORDER_S):
                    await self._ordered.wait()
                await self._saved.wait()
                await asyncio.sleep(OTHERS_S)

    async def perform(self, command: Any, effect: str) -> Performed:
        """See ``ports.Performer``."""
        self._ordered.set()
        try:
            return await self._perform(command)
        finally:
            if isinstance(command, SaveCheckpoint):
                self._saved.set()

    async def _perform(self, command: Any) -> Performed:
        if command.round != self._round:
            self._round, self._paused_at = command.round, 0
            self._end_find()
        self._stopped = self._paused_at > 0 or self._expiry is not None
        self._end_find()
        self._newest = command
        try:
            boundary = await self._carry_out[type(command)](self, command)
        except Refused:
            if self._newest is command:
                self._go_on()
            raise
        steps = [page.step for page in self._progress() if page is not None and page.steps > 0]
        return Performed(min(steps) if steps else None, boundary)

    async def _find(self, command: FindBoundary) -> int:
        if not self._paused_at:
            self._stop_at(1)
            self._go_on_later()
            await asyncio.sleep(SETTLE_S)
        try:
            return max((state.stops_at for state in self._living(WAITS)), default=0)
        except Refused:
            self._end_find()
            raise

    async def _pause(self, command: PauseWorkers) -> int:
        number = self._chosen(command)
        self._stop_at(number)
        await self._until(command, WAITS, lambda state: state.waits and state.reached == number)
        self._paused_at = number
        return number

    async def _resume(self, command: ResumeWorkers) -> int:
        self._paused_at = 0
        self._go_on()
        return 0

    async def _save(self, command: SaveCheckpoint) -> int:
        number = self._chosen(command)
        self._save_at(number, command.hold)
        self._stop_at(number if command.hold else self._paused_at)
        await self._until(command, SAVES, lambda state: state.saved == number)
        self._save_at(0)
        for local, state in enumerate(self._living(SAVES)):
            if state.error:
                raise Refused(f"local rank {local} could not save: {state.error}")
        if command.hold and not self._paused_at:
            self._go_on_later()
        return number

    def _chosen(self, command: PauseWorkers | SaveCheckpoint) -> int:
        """The boundary of an order; raises ``Refused`` if it names none, or the workers no longer stop for it."""
        if command.boundary < 1:
            raise Refused("the order names no step boundary: the master is older than this agent")
        if not self._stopped:
            raise Refused(f"the workers have gone on: no order named their step boundary within {AGREE_S:g} s")
        return command.boundary

    async def _until(self, command: Any, able: int, done: Callable[[BoundaryState], bool]) -> None:
        """Wait until all workers have carried out an order; raises ``Refused`` if one cannot, or a newer order came."""
        now = asyncio.get_running_loop().time
        began = now()
        while not all(map(done, self._living(able))):
            self._check_reachable(command.boundary)
            await asyncio.sleep(max(POLL_S, (now() - began) / 50))  # known to 2 %
            if self._newest is not command:
                raise Refused("a later order revoked it")

    def _check_reachable(self, number: int) -> None:
        """Raise ``Refused`` if a worker has passed the boundary without stopping or saving there."""
        for local, state in enumerate(self._living()):
            if state.reached > number and state.saved != number:
                raise Refused(f"local rank {local} is past step boundary {number}; it is at {state.reached}")

    def _living(self, able: int = 0) -> list[BoundaryState]:
        """Where the workers are; raises ``Refused`` if one has ended or lacks an ability."""
        found = []
        for local, worker in enumerate(self._control.boundaries()):
            if worker is None:
                raise Refused(f"the worker of local rank {local} has ended")
            state = worker.read()
            if able & ~state.able:
                what = "save on request" if able == SAVES else "wait at a step boundary"
                raise Refused(f"the script of local rank {local} cannot {what}")
            found.append(state)
        return found

    def _stop_at(self, number: int) -> None:
        for worker in self._control.boundaries():
            if worker is not None:
                worker.stop_at(number)

    def _save_at(self, number: int, in_memory: bool = False) -> None:
        for worker in self._control.boundaries():
            if worker is not None:
                worker.save_at(number, in_memory)

    def _go_on_later(self) -> None:
        """Let the workers go on in ``AGREE_S``, unless an order comes before."""
        self._end_find()
        self._expiry = asyncio.get_running_loop().call_later(AGREE_S, self._expire)

    def _go_on(self) -> None:
        """Let the workers go on, unless they are paused."""
        self._save_at(0)
        self._stop_at(self._paused_at)

    def _expire(self) -> None:
        self._expiry = None
        self._go_on()

    def _end_find(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    _carry_out: ClassVar[dict[type[Any], Callable[..., Any]]] = {
        FindBoundary: _find,
        PauseWorkers: _pause,
        ResumeWorkers: _resume,
        SaveCheckpoint: _save,
    }


def performers_of(performer: BoundaryPerformer | None) -> dict[type[Any], Performer]:
    """The performers at step boundaries by type of command; none if the supervisor has no such control."""
    commands = (FindBoundary, PauseWorkers, ResumeWorkers, SaveCheckpoint)
    return dict.fromkeys(commands, performer) if performer is not None else {}

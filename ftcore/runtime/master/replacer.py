"""Has the platform carry out what the log orders from it, and tells the job what the platform knows.

| in the log | at the platform |
|---|---|
| ``action.ordered`` of ``replace_nodes`` | cordon (if isolated), launch, then delete, for each node given up |
| ... that ``keep`` | the same, but nothing is deleted: they train until the others are ready |
| ``action.ordered`` of ``delete_nodes`` | cordon (if isolated), delete, for each of those |
| ``platform.answered`` | all of that was taken; or one launch was refused, with the reason |
| ``node.lost`` | the platform saw its agent end |
| ``fault.observed``, ``preemption-notice`` | the platform will take the node away |
| ``ability.declared`` | it is there and has a machine to give, or has none |

House rules: nothing is asked for before its order is durable. An order is asked again, under the same effect, until the
platform answered or the order failed: after an error, and by the next master, so the platform must see to it that
nothing happens twice. A platform that is away, slow or broken costs its own orders and nothing else: no exception of
an adapter passes this module, and the master's loop never waits for one.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import structlog

from ftcore.commands import PLATFORM, Command, DeleteNodes, ReplaceNodes
from ftcore.engine.platform_events import told_of
from ftcore.errors import FtcoreError, Refused
from ftcore.events.node import PlatformAnswered
from ftcore.events.policy import AbilityDeclared
from ftcore.platforms import open_platform
from ftcore.policies.base import Ability
from ftcore.policies.external import one_line
from ftcore.ports import CapacityChanged, Happening, Occupant, Platform
from ftcore.runtime import tasks
from ftcore.states import timers
from ftcore.states.model import ActionState, JobState
from ftcore.states.phases import has_run

SOURCE = "platform"
"""Under this name the platform declares abilities."""

MARGIN_S = 2.0
"""So much before its order fails a platform that does not answer is given up, so that the log can say why."""

AGAIN_S = (0.2, 5.0)
"""Pauses between two tries: the first, doubled each time, and the longest."""

LEAVE_S = 30.0
"""What a node that the job itself tells to leave has to do so, before the platform ends it."""

DECLARE_S = 5.0
"""Capacity that comes and goes is told no more often: every word of it is an event."""

logger = structlog.get_logger()


class Replacer:
    """Speaks with the platform, for one term.

    Args:
        url: of the platform.
        job: the job.
        tell: takes the facts that come of it, and what is asked when their turn comes: whether they are still so.
        state: the folded state, which may run ahead of the log: only looked at for what harms nobody.
        make: opens the platform at a URL.
    """

    def __init__(
        self,
        url: str,
        job: str,
        tell: Callable[..., Any],
        state: Callable[[], JobState],
        make: Callable[[str, str], Platform] = open_platform,
    ) -> None:
        self._url = url
        self._job = job
        self._tell = tell
        self._state = state
        self._make = make
        self._platform: Platform | None = None
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._able: bool | None = None
        self._declared: tuple[int, bool | None] = (0, None)
        self._declared_at = 0.0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch the platform until cancelled."""
        declaring = asyncio.create_task(self._declare())
        pause_s = AGAIN_S[0]
        try:
            while True:
                try:
                    async for happening in self._open().watch():
                        pause_s = AGAIN_S[0]
                        self._take(happening)
                    problem = "it stopped telling"
                except Exception as error:  # an adapter is not ours: whatever it raises, the job goes on
                    problem = _said(error)
                logger.warning("the platform cannot be watched; trying again", platform=self._url, problem=problem)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, AGAIN_S[1])
        finally:
            await tasks.end([declaring])

    def attend(self, state: JobState, now: int) -> None:
        """Carry out what is ordered, and give up what no longer is.

        Args:
            state: the folded state, exactly that of the log.
            now: nanoseconds of the clock that the events have.
        """
        self._changed.set()
        for effect in [effect for effect in self._asked if effect not in state.actions]:
            task = self._asked.pop(effect)
            self._ending[task] = None
            task.add_done_callback(lambda ended: self._ending.pop(ended, None))
            task.cancel()
        for ordered in list(state.actions.values()):
            if PLATFORM in ordered.waiting and ordered.effect not in self._asked:
                deadline = timers.due(state, timers.Action(ordered.effect))
                left_s = (deadline - now) / 1e9 - MARGIN_S if deadline is not None else None
                self._asked[ordered.effect] = asyncio.create_task(
                    self._carry_out(ordered, _places(ordered, state), left_s)
                )

    async def close(self) -> None:
        """Stop; what is under way is the next master's."""
        await tasks.end([*self._asked.values(), *self._ending])
        if self._platform is not None:
            with contextlib.suppress(Exception):
                await self._platform.close()

    def _open(self) -> Platform:
        if self._platform is None:
            self._platform = self._make(self._url, self._job)
        return self._platform

    # -- orders

    async def _carry_out(
        self, ordered: ActionState, places: list[tuple[Occupant, float]], left_s: float | None
    ) -> None:
        last = ["it did not answer"]
        try:
            async with asyncio.timeout(left_s if left_s is None else max(left_s, 0.0)):
                await self._insist(ordered.effect, places, ordered.command, last)
            answer = PlatformAnswered(effect=ordered.effect, ok=True)
        except Refused as error:
            answer = PlatformAnswered(effect=ordered.effect, ok=False, reason=one_line(str(error), 500))
        except TimeoutError:
            reason = f"it could not be reached in time; the last try: {last[0]}"
            answer = PlatformAnswered(effect=ordered.effect, ok=False, reason=reason)
        self._tell(answer)

    async def _insist(
        self, effect: str, places: list[tuple[Occupant, float]], command: Command, last: list[str]
    ) -> None:
        """Carry an order out, however often it takes; raises ``Refused``."""
        assert isinstance(command, ReplaceNodes | DeleteNodes)
        pause_s = AGAIN_S[0]
        launches = isinstance(command, ReplaceNodes)
        keeps = isinstance(command, ReplaceNodes) and command.keep
        while True:
            try:
                platform = self._open()
                for place, _ in places if command.isolate else ():
                    await platform.cordon(place, "the job does not want its machine again")
                for number, (place, _) in enumerate(places if launches else ()):
                    await platform.launch(f"{self._job}/{effect}/{number}", place)
                for place, grace_s in () if keeps else places:
                    await platform.delete(place, grace_s)
                return
            except Refused:
                raise
            except Exception as error:  # as in `run`
                last[0] = _said(error)
                logger.warning("the platform did not take an order; trying again", effect=effect, problem=last[0])
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S[1])

    # -- what the platform tells

    def _take(self, happening: Happening) -> None:
        if isinstance(happening, CapacityChanged):
            self._able = happening.free != 0
            self._changed.set()
            return
        told = told_of(self._state(), happening)
        if told is not None:
            self._tell(told, lambda: told_of(self._state(), happening) == told)

    async def _declare(self) -> None:
        """Say in each run what the platform can do, and when that changes."""
        loop = asyncio.get_running_loop()
        while True:
            await self._changed.wait()
            self._changed.clear()
            state = self._state()
            wanted = (state.run, self._able)
            if self._able is None or not has_run(state) or wanted == self._declared:
                continue
            if wanted[0] == self._declared[0]:
                await asyncio.sleep(max(0.0, self._declared_at + DECLARE_S - loop.time()))
                if (self._state().run, self._able) != wanted:
                    self._changed.set()
                    continue
            self._declared, self._declared_at = wanted, loop.time()
            names = (str(Ability.REPLACE),) if self._able else ()
            if state.abilities.get(SOURCE) != names:
                self._tell(AbilityDeclared(source=SOURCE, abilities=names))


def _places(ordered: ActionState, state: JobState) -> list[tuple[Occupant, float]]:
    """The places that an order names, with the seconds that who holds them has to leave."""
    assert isinstance(ordered.command, ReplaceNodes | DeleteNodes)
    found = []
    for name in ordered.command.nodes:
        node = state.nodes.get(name)
        place = Occupant(node=name, pid=node.pid if node is not None else 0, ordinal=state.ordinals.get(name))
        found.append((place, LEAVE_S if node is not None and node.alive else 0.0))
    return found


def _said(error: Exception) -> str:
    text = str(error) if isinstance(error, FtcoreError) else f"{type(error).__name__}: {error}"
    return one_line(text, 300)

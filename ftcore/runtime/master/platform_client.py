"""Carries out platform orders, and records what the platform reports.

| in the log | at the platform |
|---|---|
| ``action.ordered`` of ``replace_nodes`` | cordon (if isolated), launch, then delete, for each node given up |
| ... with ``keep`` | the same without the deletion: the old nodes train until the new ones are ready |
| ``action.ordered`` of ``delete_nodes`` | cordon (if isolated), delete, for each of those nodes |
| ``platform.answered`` | it accepted everything; or it refused one launch, with the reason |
| ``node.lost`` | it saw the agent of the node end |
| ``fault.observed``, ``preemption-notice`` | it will preempt the node |
| ``ability.declared`` | it has free capacity, or none |

House rules: an order is carried out only once it is durable. It is repeated with the same effect id until the platform
answers or the order times out, after errors and by the next master; so the platform must be idempotent. An unreachable,
slow or broken platform affects only its own orders: this module catches every exception of an adapter, and the master's
event loop never waits for one.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import structlog

from ftcore.commands import PLATFORM, Command, DeleteNodes, ReplaceNodes
from ftcore.engine.platform_events import fact_from
from ftcore.errors import FtcoreError, Refused
from ftcore.events.node import PlatformAnswered
from ftcore.events.policy import AbilityDeclared
from ftcore.platforms import open_platform
from ftcore.policies.base import Ability
from ftcore.policies.external import one_line
from ftcore.ports import CapacityChanged, LaunchRequest, Occupant, Platform, PlatformEvent
from ftcore.runtime import tasks
from ftcore.states import timers
from ftcore.states.model import ActionState, JobState
from ftcore.states.phases import has_run

SOURCE = "platform"
"""Source of the platform's abilities in ``ability.declared``."""

MARGIN_S = 2.0
"""An order is given up this long before its deadline, so that the log gets the reason."""

BACKOFF_S = (0.2, 5.0)
"""First and longest pause between two tries; doubled each time."""

GRACE_S = 30.0
"""Grace period of a live node that the job deletes."""

DECLARE_S = 5.0
"""Minimum time between two declarations in one run: each is an event."""

logger = structlog.get_logger()


class PlatformClient:
    """Client of the job's platform, for one term.

    Args:
        url: URL of the platform.
        job: the job.
        record: submits a fact, with an optional check that is called when it is sequenced: whether it still holds.
        state: returns the folded state, which may be ahead of the log; used only where that does no harm.
        make: opens the platform at a URL.
        argv: command line of a node of the job, for the platform; empty: unknown.
    """

    def __init__(
        self,
        url: str,
        job: str,
        record: Callable[..., Any],
        state: Callable[[], JobState],
        make: Callable[[str, str], Platform] = open_platform,
        argv: tuple[str, ...] = (),
    ) -> None:
        self._url = url
        self._job = job
        self._record = record
        self._state = state
        self._make = make
        self._argv = argv
        self._platform: Platform | None = None
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[asyncio.Task[None], None] = {}
        self._able: bool | None = None
        self._declared: tuple[int, bool | None] = (0, None)
        self._declared_at = 0.0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch the platform until cancelled."""
        declaring = asyncio.create_task(self._declare())
        pause_s = BACKOFF_S[0]
        try:
            while True:
                try:
                    async for report in self._open().watch():
                        pause_s = BACKOFF_S[0]
                        self._handle(report)
                    problem = "the platform closed the watch"
                except Exception as error:  # an external adapter may raise anything; the job must continue
                    problem = _error_text(error)
                logger.warning("cannot watch the platform; retrying", platform=self._url, problem=problem)
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, BACKOFF_S[1])
        finally:
            await tasks.end([declaring])

    def reconcile(self, state: JobState, now: int) -> None:
        """Start pending orders, and cancel those that the state no longer has.

        Args:
            state: the folded state, exactly that of the log.
            now: nanoseconds of the event clock.
        """
        self._changed.set()
        for effect in [effect for effect in self._running if effect not in state.orders.open]:
            task = self._running.pop(effect)
            self._ending[task] = None
            task.add_done_callback(lambda ended: self._ending.pop(ended, None))
            task.cancel()
        for ordered in list(state.orders.open.values()):
            if PLATFORM in ordered.waiting and ordered.effect not in self._running:
                deadline = timers.due(state, timers.ActionTimer(ordered.effect))
                left_s = (deadline - now) / 1e9 - MARGIN_S if deadline is not None else None
                self._running[ordered.effect] = asyncio.create_task(
                    self._carry_out(ordered, _places(ordered, state), left_s)
                )

    async def close(self) -> None:
        """Cancel all work; the next master repeats pending orders."""
        await tasks.end([*self._running.values(), *self._ending])
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
        last = ["no answer"]
        try:
            async with asyncio.timeout(left_s if left_s is None else max(left_s, 0.0)):
                await self._carry_out_with_retries(ordered.effect, places, ordered.command, last)
            answer = PlatformAnswered(effect=ordered.effect, ok=True)
        except Refused as error:
            answer = PlatformAnswered(effect=ordered.effect, ok=False, reason=one_line(str(error), 500))
        except TimeoutError:
            reason = f"the platform did not answer in time; last error: {last[0]}"
            answer = PlatformAnswered(effect=ordered.effect, ok=False, reason=reason)
        self._record(answer)

    async def _carry_out_with_retries(
        self, effect: str, places: list[tuple[Occupant, float]], command: Command, last: list[str]
    ) -> None:
        """Carry out an order, with retries; raises ``Refused``."""
        assert isinstance(command, ReplaceNodes | DeleteNodes)
        pause_s = BACKOFF_S[0]
        launches = isinstance(command, ReplaceNodes)
        keeps = isinstance(command, ReplaceNodes) and command.keep
        while True:
            try:
                platform = self._open()
                for place, _ in places if command.isolate else ():
                    await platform.cordon(place, "the job excludes this machine")
                for number, (place, _) in enumerate(places if launches else ()):
                    await platform.launch(self._request(f"{self._job}/{effect}/{number}", place))
                for place, grace_s in () if keeps else places:
                    await platform.delete(place, grace_s)
                return
            except Refused:
                raise
            except Exception as error:  # as in `run`
                last[0] = _error_text(error)
                logger.warning("the platform failed an order; retrying", effect=effect, problem=last[0])
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, BACKOFF_S[1])

    def _request(self, effect: str, replaces: Occupant) -> LaunchRequest:
        node = self._state().membership.nodes.get(replaces.node)
        return LaunchRequest(
            effect=effect,
            argv=self._argv,
            replaces=replaces,
            resources={"workers": node.slots, "accelerators": node.accelerators} if node is not None else {},
            labels=node.labels if node is not None else {},
        )

    # -- reports of the platform

    def _handle(self, report: PlatformEvent) -> None:
        if isinstance(report, CapacityChanged):
            self._able = report.free != 0
            self._changed.set()
            return
        fact = fact_from(self._state(), report)
        if fact is not None:
            self._record(fact, lambda: fact_from(self._state(), report) == fact)

    async def _declare(self) -> None:
        """Declare the platform's abilities in each run, and when they change."""
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
            if state.abilities.declared.get(SOURCE) != names:
                self._record(AbilityDeclared(source=SOURCE, abilities=names))


def _places(ordered: ActionState, state: JobState) -> list[tuple[Occupant, float]]:
    """The places that an order names, each with the grace period of its node in seconds."""
    assert isinstance(ordered.command, ReplaceNodes | DeleteNodes)
    found = []
    for name in ordered.command.nodes:
        node = state.membership.nodes.get(name)
        place = Occupant(
            node=name, pid=node.pid if node is not None else 0, ordinal=state.membership.ordinals.get(name)
        )
        found.append((place, GRACE_S if node is not None and node.alive else 0.0))
    return found


def _error_text(error: Exception) -> str:
    text = str(error) if isinstance(error, FtcoreError) else f"{type(error).__name__}: {error}"
    return one_line(text, 300)

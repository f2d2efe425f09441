"""Keeps the live view of a job current: follows its log, and asks log and master how they are.

House rule: it only reads, by its own handle; whoever draws the view takes the newest one, and no queue is kept for
those who are slow.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

import attrs

from ftcore.errors import FtcoreError, Unreachable
from ftcore.replay.live import Links, LiveReader, LiveView
from ftcore.replay.live.reader import EVENTS_KEPT, awaited_view
from ftcore.runtime import tasks
from ftcore.runtime.observers import Observed

ASK_EVERY_S: Final = 1.0
"""Pause between two questions to the log: is it there, what is its last event, does a master lead?"""

LOOK_EVERY_S: Final = 2.0
"""Pause between two looks at the master's memory. One of 1,000 nodes is some 100 KiB."""

ANSWER_S: Final = 4.0
"""A log that does not answer within that time is away."""

TURN: Final = 200
"""Events that are folded without a pause: others, such as a key that is pressed, wait for a few milliseconds."""

T = TypeVar("T")


class LiveFeed:
    """The live view of one job.

    Args:
        observed: the job.
        looks: ask the master for heartbeats, too.

    Attributes:
        changed: set at each change; cleared by whoever draws.
    """

    def __init__(self, observed: Observed, *, looks: bool = True) -> None:
        self._observed, self._looks = observed, looks
        self._reader: LiveReader | None = None
        self._links = Links()
        self._was_behind = False
        self.changed = asyncio.Event()

    @property
    def has_read(self) -> bool:
        """Whether there is something to see."""
        return self._reader is not None

    async def run(self) -> None:
        """Follow the job until its observer shall end.

        Raises:
            FtcoreError: the log can never be read: it is damaged, was deleted, or an older copy of it was restored.
        """
        reading, asking = asyncio.create_task(self._read()), asyncio.create_task(self._ask())
        looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait({reading, asking, looking}, return_when=asyncio.FIRST_COMPLETED)
            for task in (reading, asking, looking):
                if task.done():
                    task.result()
        finally:
            await tasks.end([reading, asking, looking])

    def view(self, *, nodes: int, events: int) -> LiveView:
        """What is to be shown now.

        Args:
            nodes: nodes that are shown one by one, at most.
            events: events, at most.
        """
        now = time.time_ns()
        if self._reader is None:
            why = self._links.log_error
            text = f"{self._observed.job}: the log cannot be read, trying again: {why}" if why else "reading the log"
            return awaited_view(self._observed.job, text, now)
        return self._reader.view(now, self._links, nodes=nodes, events=events)

    async def catch_up(self) -> None:
        """Read the log to its present end, and ask once; for a view that is drawn once.

        Raises:
            FtcoreError: the log cannot be read.
        """
        end = await self._observed.last_seq()
        reader = await self._begun()
        if reader.state.seq < end:
            async for event in self._observed.events(reader.state.seq):
                reader.feed(event)
                if event.seq >= end:
                    break
        await self._ask_once()
        if self._looks:
            await self._look_once()

    async def _begun(self) -> LiveReader:
        state, before = await self._observed.recent(4 * EVENTS_KEPT)
        reader = LiveReader(self._observed.job, state)
        for event in before:
            reader.recall(event)
        self._reader = reader
        return reader

    async def _read(self) -> None:
        while True:
            try:
                reader = await self._begun()
                break
            except (Unreachable, OSError) as error:
                self._is_away(str(error), time.time_ns())
                await self._observed.pause(ASK_EVERY_S)
                if self._observed.ending:
                    return
        self.changed.set()
        async for event in self._observed.events(reader.state.seq):
            reader.feed(event)
            self.changed.set()
            if event.seq % TURN == 0:
                await asyncio.sleep(0)

    async def _ask(self) -> None:
        while True:
            await self._ask_once()
            await asyncio.sleep(ASK_EVERY_S)

    async def _ask_once(self) -> None:
        began = time.time_ns()
        try:
            end = await _soon(self._observed.last_seq())
            led = await _soon(self._observed.is_led())
        except (FtcoreError, OSError) as error:
            self._is_away(str(error) or type(error).__name__, began)
            return
        links = self._links
        away = None if led or led is None else links.master_away if links.master_away is not None else began
        behind = max(0, end - (self._reader.state.seq if self._reader is not None else 0))
        stays, self._was_behind = self._was_behind and behind > 1, behind > 1  # what was just appended is no lag
        shown = behind if stays else 0
        self._links = attrs.evolve(links, master_alive=led, master_away=away, log_away=None, log_error="", behind=shown)

    def _is_away(self, why: str, since: int) -> None:
        links = self._links
        first = links.log_away if links.log_away is not None else since
        self._links = attrs.evolve(links, log_away=first, log_error=why)
        self.changed.set()

    async def _look(self) -> None:
        if not self._looks:
            await asyncio.Event().wait()
        while True:
            await self._look_once()
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look_once(self) -> None:
        if self._links.master_alive is False:
            found = None
        else:
            found = await self._observed.look()
        if found is None:
            self._links = attrs.evolve(self._links, beats=(), waiting=0, wait_s=0.0)
            return
        self._links = attrs.evolve(
            self._links, beats=found.nodes, beats_at=time.time_ns(), waiting=found.waiting, wait_s=found.wait_s
        )


async def _soon(answer: Awaitable[T]) -> T:
    """Wait for an answer of the log, for a limited time; raises ``Unreachable`` after it."""
    try:
        async with asyncio.timeout(ANSWER_S):
            return await answer
    except TimeoutError:
        raise Unreachable(f"no answer within {ANSWER_S:g} s") from None

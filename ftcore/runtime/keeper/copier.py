"""Copies the shards of this node to its buddies, so that the loss of the node does not lose its state.

A round can resume from a step only if all shards of that step exist. So a node copies whole steps, and each node should
copy the same ones without asking the others:

- One step is copied at a time: the newest one when the step before is done. What is sealed meanwhile is never queued.
- If steps are saved faster than they are copied, only every 2nd, 4th, 8th, ... save is copied, by the number of the
  step: nodes that copy at slightly different speeds still copy the same steps. When no more is sealed, the last one is
  copied, too.
- The shards of the step that is copied, and of the one copied before, stay in this node's own memory until the next one
  begins. Until then, another node may have only the older one copied.

A shard that ranks on other nodes stage as well is not copied.

House rules: sending is for threads; a buddy that is dead, frozen, or has no memory costs the copy alone, is tried again
after a pause, and is reported once.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import attrs

from ftcore.checkpoint.bandwidth import BandwidthLimit
from ftcore.runtime.keeper import copy_wire
from ftcore.runtime.keeper.config import BuddyAddress, BuddyPlan, KeeperConfig
from ftcore.runtime.keeper.copy_wire import CopyFailed, CopyOffer, CopyOwner
from ftcore.runtime.keeper.slots import COPIED_SLOTS, KeptSlot, SlotMemory

RETRY_S: Final = 1.0
RETRY_S_MAX: Final = 60.0
"""Pause in seconds before a buddy is tried again; it begins with ``RETRY_S`` and doubles."""

REPORTED_FAILURES: Final = 2
"""Failures in a row after which one is reported: a node may just begin its round, or end."""

IDLE_S: Final = 1.0
"""After so many seconds without a save, or twice the time of the last copy, the newest step is copied in any case."""

CALM_COPIES: Final = 8
"""Copies in a row that would allow to copy twice as often, before that is done."""

BUDDIES_MAX: Final = 8
"""Buddies that are sent to at the same time."""

Moment = tuple[int, int]
"""Round and step."""


class CopyPace:
    """Which saves are copied: every one, or every 2nd, 4th, 8th, ..."""

    def __init__(self) -> None:
        self.every = 1
        self._calm = 0

    def is_due(self, step: int, stride: int) -> bool:
        """Whether the save of a step is copied, if ``stride`` is the number of steps between two saves."""
        return step // stride % self.every == 0

    def copied(self, saves: int) -> None:
        """A copy has ended, and meanwhile so many further saves were sealed."""
        needed = 1 << saves.bit_length()
        if needed >= self.every:
            self.every, self._calm = needed, 0
            return
        self._calm += 1
        if self._calm >= CALM_COPIES:
            self.every, self._calm = self.every // 2, 0


@attrs.define(eq=False)
class _BuddyLink:
    """A keeper that gets copies, and the newest step that it has of all ranks."""

    address: BuddyAddress
    last: Moment = (-1, -1)
    pause_s: float = RETRY_S
    retry_at: float = 0.0
    failures: int = 0
    said: str = ""

    def lacks(self, moment: Moment) -> bool:
        """Whether a step can be sent to it, and was not."""
        return self.last < moment and self.retry_at <= time.monotonic()

    def failed(self, why: str) -> bool:
        """Pause; returns whether that is to be reported: the next try failed as well, and was not reported before."""
        self.retry_at, self.pause_s = time.monotonic() + self.pause_s, min(2 * self.pause_s, RETRY_S_MAX)
        self.failures += 1
        if self.failures < REPORTED_FAILURES or why == self.said:
            return False
        self.said = why
        return True

    def succeeded(self) -> None:
        """It has a shard."""
        self.pause_s, self.failures, self.said = RETRY_S, 0, ""


class Copier:
    """Copies the shards of this node; made in the event loop.

    Args:
        slots: the staging memory.
        report: called with a message to the agent.
    """

    def __init__(self, slots: SlotMemory, report: Callable[[dict[str, Any]], None]) -> None:
        self._slots, self._report = slots, report
        self._config: KeeperConfig | None = None
        self._limit = BandwidthLimit(0)
        self._plan = BuddyPlan()
        self._buddies: list[_BuddyLink] = []
        self._pace = CopyPace()
        self._target: Moment | None = None
        self._met: set[int] = set()
        self._newer: set[Moment] = set()
        self._staying: tuple[list[KeptSlot], list[KeptSlot]] = ([], [])
        self._stays: Moment = (-1, -1)
        self._sealed_at = 0.0
        self._idle_s = IDLE_S
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(BUDDIES_MAX, "copy")
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        """Whether this node has buddies."""
        return bool(self._buddies)

    def configure(self, config: KeeperConfig) -> None:
        """Use this job, its secrets and its bandwidth from now on."""
        if self._config is None or self._config.bandwidth != config.bandwidth:
            self._limit = BandwidthLimit(config.bandwidth)
        self._config = config

    def plan(self, plan: BuddyPlan) -> None:
        """Copy to these buddies from now on."""
        known = {buddy.address: buddy for buddy in self._buddies}
        self._plan = plan
        self._buddies = [known.get(address, _BuddyLink(address)) for address in plan.buddies[:BUDDIES_MAX]]
        if not self._buddies:
            self._target = None
            self._release(2)
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(self._stopped)
        self._changed.set()

    def _stopped(self, task: "asyncio.Task[None]") -> None:
        """Report an error of ours; the next plan begins again."""
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._report({"note": f"shards are not copied any more in this round: {type(error).__name__}: {error}"})

    def close(self) -> None:
        """Copy no more; what is being sent is given up."""
        if self._task is not None:
            self._task.cancel()
        self._buddies = []

    def sealed(self, kept: KeptSlot) -> None:
        """A worker has sealed a shard."""
        origin = kept.origin()
        if origin is None:
            return
        moment = (origin.round, origin.step)
        self._sealed_at = time.monotonic()
        if self._target is not None and moment > self._target:
            self._newer.add(moment)
        elif moment == self._target:
            self._meet(kept)
        self._changed.set()

    # -- which step

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            moment = self._due()
            if moment is not None:
                await self._copy(moment)
                continue
            times = [self._sealed_at + self._idle_s, *(buddy.retry_at for buddy in self._buddies)]
            pauses = [each - time.monotonic() for each in times]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min((each for each in pauses if each > 0), default=None))

    def _moments(self) -> set[Moment]:
        """The steps of which this node holds shards that no other node stages."""
        found = (kept.origin() for kept in self._slots.sealed() if not kept.is_copy)
        return {(origin.round, origin.step) for origin in found if origin is not None and not origin.elsewhere}

    def _due(self) -> Moment | None:
        """The step to copy now; None: there is none, or no buddy to send it to."""
        moments = self._moments()
        newest = max(moments, default=None)
        if newest is None or not any(buddy.lacks(newest) for buddy in self._buddies):
            return None
        steps = sorted(step for round_, step in moments if round_ == newest[0])
        stride = min((after - before for before, after in itertools.pairwise(steps)), default=1)
        is_last = newest == self._stays or time.monotonic() >= self._sealed_at + self._idle_s
        return newest if is_last or self._pace.is_due(newest[1], stride) else None

    # -- one step

    async def _copy(self, moment: Moment) -> None:
        """Copy the shards of all ranks of a step, those that are not sealed yet as well."""
        if moment != self._stays:
            self._release(1)
        self._stays = self._target = moment
        self._met, self._newer = set(), set()
        for kept in self._slots.sealed():
            origin = kept.origin()
            if origin is not None and not kept.is_copy and (origin.round, origin.step) == moment:
                self._meet(kept)
        buddies, began = [buddy for buddy in self._buddies if buddy.lacks(moment)], time.monotonic()
        sent: set[int] = set()
        while self._buddies:
            following = next((kept for kept in self._staying[1] if kept.local_rank not in sent), None)
            if following is not None:
                sent.add(following.local_rank)
                buddies = await self._send_to_all(buddies, following)
            elif len(self._met) >= self._plan.ranks:
                for buddy in buddies:
                    buddy.last = moment
                break
            elif len(self._newer) >= 2 or any(round_ > moment[0] for round_, _ in self._newer):
                break  # a rank that has not sealed it by now never will
            else:
                self._changed.clear()
                await self._changed.wait()
        self._target = None
        if buddies:
            self._idle_s = max(IDLE_S, 2 * (time.monotonic() - began))
            self._pace.copied(len({each for each in self._moments() if each > moment} | self._newer))

    def _meet(self, kept: KeptSlot) -> None:
        """Note, and keep, a shard of the step that is copied."""
        origin = kept.origin()
        if origin is None:
            return
        self._met.add(kept.local_rank)
        if not origin.elsewhere and kept not in self._staying[1]:
            kept.pin(queued=1)
            self._staying[1].append(kept)

    def _release(self, steps: int) -> None:
        """Give back the shards of the older one, or of both, of the two steps that stay."""
        for _ in range(steps):
            for kept in self._staying[0]:
                kept.pin(queued=-1)
            self._staying = (self._staying[1], [])
        few = [kept for kept in self._staying[0] if self._slots.count(kept.local_rank) < COPIED_SLOTS]
        for kept in few:  # its worker needs them
            kept.pin(queued=-1)
            self._staying[0].remove(kept)
        self._slots.tidy()

    async def _send_to_all(self, buddies: list[_BuddyLink], kept: KeptSlot) -> list[_BuddyLink]:
        """Send a shard; returns the buddies that have it."""
        sequence, origin = kept.sequence, kept.origin()
        if origin is None or (origin.round, origin.step) != self._target:
            return []  # its worker had no other slot to write
        kept.pin(readers=1)
        try:
            done = await asyncio.gather(*(self._send_to(buddy, kept, sequence) for buddy in buddies))
        finally:
            kept.pin(readers=-1)
        return [buddy for buddy, is_done in zip(buddies, done, strict=True) if is_done]

    async def _send_to(self, buddy: _BuddyLink, kept: KeptSlot, sequence: int) -> bool:
        config, loop = self._config, asyncio.get_running_loop()
        assert config is not None
        try:
            await loop.run_in_executor(self._threads, self._send, config, buddy.address, kept, sequence)
        except Exception as error:  # whatever happens in the thread, the next step is tried
            why = str(error) if isinstance(error, CopyFailed) else f"{type(error).__name__}: {error}"
            if buddy.failed(why):
                text = f"a shard was not copied to node {buddy.address.node}: {why}; it is tried again"
                self._report({"note": text})
            return False
        buddy.succeeded()
        return True

    def _send(self, config: KeeperConfig, buddy: BuddyAddress, kept: KeptSlot, sequence: int) -> None:
        """Send a shard, in a thread."""
        head, index = kept.slot.header(), kept.slot.index()
        if index is None or not kept.holds(sequence):
            raise CopyFailed("a newer step overwrote it before it was sent")
        offer = CopyOffer(
            local_rank=kept.local_rank, round=head.round, step=head.step, index=len(index), data=head.data_bytes
        )
        me = CopyOwner(job=config.job, log=config.log, node=config.node)
        with kept.slot.data() as data, copy_wire.connected(buddy, config.access, config.peer_s) as channel:
            copy_wire.greet(channel, me, buddy.node, config.access.token)
            copy_wire.send_copy(channel, offer, index, data, lambda: kept.holds(sequence), self._limit)

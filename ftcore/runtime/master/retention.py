"""Keeps the job's log small, beside everything else the master does: snapshots, archive, truncation, compaction.

    every SNAPSHOT events:   pack (in the master's loop) -> seal (thread) -> save
    every PIECE events:      read as stored -> write the piece, synced (thread)
    then:                    truncate up to what is archived, lies before the older snapshot, and is KEEP events old

House rules:

- Nothing here is waited for, and nothing here fails a master: what cannot be done now is told once and tried again.
- It works through a handle of the log of its own, so that appends do not queue behind it.
- Only durable events are archived, and only archived ones are truncated: whatever dies between two of these steps,
  nothing is lost and nothing is missing. The next master finds out by itself how far the last one came.
- A full store is never made room in at the cost of what was not archived. What is shed are samples of progress.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import attrs
import structlog

from ftcore.errors import Fenced, FtcoreError, StoreError, Unreachable
from ftcore.events.codec import chain
from ftcore.events.envelope import Event
from ftcore.events.retention import ArchiveExtended, ArchiveFailed, SpaceRanLow, SpaceRecovered
from ftcore.ids import Seq, Term
from ftcore.ports import Archive, EventLog, Floor, Space
from ftcore.states.model import JobState
from ftcore.states.snapshot import Packed, pack, restore, seal

LOOK_S = 10.0
"""How often space is looked at, and what could not be done is tried again."""

ARCHIVE_S = 120.0
"""An archive that takes longer for one file is told of, and tried again."""

LOW, ENOUGH = 0.7, 0.6
"""Parts of a store's limit: above the first it is low on space, below the second it is not any more."""

T = TypeVar("T")

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class Sizes:
    """How much is kept where.

    Args:
        snapshot: events between two snapshots.
        quiet_snapshot: a job that says little has a snapshot after so many events, if ``quiet_s`` have passed.
        quiet_s: seconds.
        piece: events in one file of the archive.
        keep: events that stay in the live log, if there is room.
    """

    snapshot: int = 50_000
    quiet_snapshot: int = 1_000
    quiet_s: float = 600.0
    piece: int = 10_000
    keep: int = 100_000


@attrs.frozen(kw_only=True)
class RetentionConfig:
    """How a log is kept small.

    Args:
        log: a handle on the log, best one of its own.
        archive: where truncated events go; None: nothing is truncated.
        sizes: how much is kept where.
        look_s: seconds between two looks.
    """

    log: EventLog
    archive: Archive | None = None
    sizes: Sizes = Sizes()
    look_s: float = LOOK_S


class LogRetention:
    """Keeps one log small for one term.

    Args:
        retention: which, and how.
        term: the term won.
        tell: takes the facts that come of it.

    Attributes:
        shedding: the store is low on space: what can be done without is not to be recorded.
    """

    def __init__(self, retention: RetentionConfig, term: Term, tell: Callable[[Any], object]) -> None:
        self.shedding = False
        self._log = retention.log
        self._term = term
        self._tell = tell
        self._archive = retention.archive
        self._sizes = retention.sizes
        self._look_s = retention.look_s
        self._wake = asyncio.Event()
        self._packed: Packed | None = None
        self._last = Seq(0)
        self._snapped = -1
        self._snapped_at = 0.0
        self._older = Seq(0)
        self._archived: tuple[Seq, bytes] | None = None
        self._archive_error = ""
        self._said: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ftcore-archive")

    @property
    def knows_its_log(self) -> bool:
        """It has found out what the master before has left; before, no snapshot is made."""
        return self._snapped >= 0

    def close(self) -> None:
        """Wait for nothing any more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def committed(self, state: JobState, tail: Iterable[Event]) -> None:
        """A batch is durable.

        Args:
            state: exactly the log's; looked at before this returns, and not after.
            tail: events that whoever goes on from here wants beside the state.
        """
        self._last = Seq(state.seq)
        if not self.knows_its_log or self._packed is not None:
            return
        fresh = state.seq - self._snapped
        quiet = asyncio.get_running_loop().time() - self._snapped_at >= self._sizes.quiet_s
        if fresh >= self._sizes.snapshot or (quiet and fresh >= self._sizes.quiet_snapshot):
            if not state.poisoned:
                self._packed = pack(state, tail)
            self._wake.set()
        elif self._archive is not None and not self._archive_error and self._last >= self._piece_due():
            self._wake.set()

    async def run(self) -> None:
        """Keep the log small for as long as this master leads; never ends by itself."""
        await self._guarded(self._find_out)
        while True:
            if not self.knows_its_log:
                await self._guarded(self._find_out)
            await self._guarded(self._look_at_space)
            await self._guarded(self._save)
            await self._guarded(self._keep_archive)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _guarded(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do one step; what goes wrong with it is told in the master's own log, once."""
        try:
            await step()
            self._said.pop(step.__name__, None)
        except Fenced:
            logger.info("another master keeps the log small now", job=self._log.job)
            await asyncio.get_running_loop().create_future()
        except Unreachable as error:
            logger.debug("the log's retention waits", error=str(error))
        except FtcoreError as error:
            self._say(step.__name__, str(error))
        except Exception as error:  # whatever it is, it is no reason for a master to end
            self._say(step.__name__, f"{type(error).__name__}: {error}", exc_info=True)

    def _say(self, step: str, error: str, **more: Any) -> None:
        if self._said.get(step) != error:
            self._said[step] = error
            logger.warning("the log cannot be kept small now", job=self._log.job, error=error, **more)

    # -- snapshots

    async def _find_out(self) -> None:
        """What the master before has left."""
        newest = await self._log.snapshot()
        older = await self._log.snapshot(Seq(newest.seq - 1)) if newest is not None else None
        usable = newest is not None and await asyncio.to_thread(restore, newest) is not None
        self._older = older.seq if older is not None and usable else Seq(0)
        self._snapped_at = asyncio.get_running_loop().time()
        self._snapped = newest.seq if newest is not None and usable else 0

    async def _save(self) -> None:
        packed = self._packed
        if packed is None:
            return
        try:
            snapshot = await asyncio.to_thread(seal, packed)
            await self._log.save_snapshot(snapshot, term=self._term)
        finally:
            self._packed = None  # if it could not be saved, a newer one will do
        self._older, self._snapped = Seq(self._snapped), packed.seq
        self._snapped_at = asyncio.get_running_loop().time()

    # -- archive and truncation

    def _piece_due(self) -> int:
        return (self._archived[0] if self._archived is not None else 0) + self._sizes.piece

    async def _keep_archive(self) -> None:
        archive = self._archive
        if archive is None or self._last == 0:
            return
        try:
            floor = await self._log.floor()
            await self._extend(archive, floor)
            await self._truncate(archive, floor)
        except (Fenced, Unreachable):
            raise
        except FtcoreError as error:
            if str(error) != self._archive_error:
                self._archive_error = str(error)
                logger.warning("the log's archive cannot be used; nothing is taken out", error=str(error))
                self._tell(ArchiveFailed(archive=archive.where, error=str(error)[:1000]))
            return
        self._archive_error = ""

    async def _extend(self, archive: Archive, floor: Floor) -> None:
        """Write the pieces that are due, behind those that are there and are of this log."""
        if self._archived is None or self._archived[0] < floor.seq or self._archive_error:
            await self._on_disk(archive.prepare, floor.seq == 0)
            if floor.seq and await self._on_disk(archive.reaches, floor.seq) is None:
                # A disk that is not mounted here looks like this; what went there must not be cut off from the rest.
                raise StoreError(f"{archive.where} has not the events that were archived (up to {floor.seq}): mount it")
            self._archived = (floor.seq, bytes.fromhex(floor.digest))
        last = self._last
        while True:
            after, digest = self._archived
            there = await self._on_disk(archive.reaches, Seq(after + 1))
            end = Seq(there if there is not None else after + self._sizes.piece)
            if end > last and there is not None:
                last = await self._log.last_seq()  # a newer master may have archived what it wrote
                if end > last:
                    raise StoreError(_of_another_log(archive, f"its events go up to {end}, the log's to {last}"))
            if end > last:
                return
            bodies = [body async for part in self._log.stored(after, end) for body in part]
            assert len(bodies) == end - after
            following = await asyncio.to_thread(_chained, digest, bodies)
            if there is None:
                await self._on_disk(archive.add, after, digest, bodies)
            elif await self._on_disk(archive.digest_at, there) != following.hex():
                raise StoreError(_of_another_log(archive, f"event {end} there has another digest"))
            self._archived = (end, following)

    async def _on_disk(self, work: Callable[..., T], *args: Any) -> T:
        """Do something in the archive, in a thread that may hang: a network file system does, at times.

        Raises:
            StoreError: whatever is wrong with the archive, a full disk too: it says nothing of the log's own store.
        """
        working = asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args))
        try:
            async with asyncio.timeout(ARCHIVE_S):
                return await working
        except TimeoutError as error:
            raise StoreError(f"the archive does not answer for {ARCHIVE_S:g} s") from error
        except FtcoreError as error:
            raise StoreError(str(error)) from error

    async def _truncate(self, archive: Archive, floor: Floor) -> None:
        assert self._archived is not None
        keep = 0 if self.shedding else self._sizes.keep
        until = Seq(min(self._archived[0], self._older, self._last - keep))
        if until - floor.seq < (1 if self.shedding else self._sizes.piece):
            return
        now = await self._log.truncate(until, term=self._term, archive=archive.where)
        if now.seq > floor.seq:
            self._tell(ArchiveExtended(archive=archive.where, until=self._archived[0], floor=now.seq))

    # -- space

    async def _look_at_space(self) -> None:
        space = await self._log.space()
        if space is not None:
            self._guard(space)
        await self._log.reclaim()

    def _guard(self, space: Space) -> None:
        part = space.used / space.limit if space.limit else 0.0
        if not self.shedding and (space.full or part > LOW):
            self.shedding = True
            logger.warning("the log's store is low on space", used=space.used, limit=space.limit, full=space.full)
            self._tell(SpaceRanLow(used=space.used, limit=space.limit, full=space.full))
        elif self.shedding and not space.full and part < ENOUGH:
            self.shedding = False
            logger.warning("the log's store has room again", used=space.used, limit=space.limit)
            self._tell(SpaceRecovered(used=space.used, limit=space.limit))


def _chained(digest: bytes, bodies: Iterable[bytes]) -> bytes:
    for body in bodies:
        digest = chain(digest, body)
    return digest


def _of_another_log(archive: Archive, why: str) -> str:
    return (
        f"{archive.where} is the archive of another log of that name ({why}): name another --archive, or move it away"
    )

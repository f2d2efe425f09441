"""Limits the size of the job's log, in the background: snapshots, archive, truncation, compaction.

    every SNAPSHOT events:   pack (in the master's loop) -> overview (thread) -> seal (thread) -> save
    every PIECE events:      read the stored bytes -> write and sync a file of the archive (thread)
    then:                    truncate events that are archived, precede the older snapshot, and are KEEP events old

House rules:

- No other work waits for retention, and its errors never end the master: a failure is logged once and retried.
- Retention has its own handle of the log, so that appends do not queue behind it.
- Only durable events are archived, and only archived events are truncated. So a crash between two steps loses nothing;
  the next master determines from the log and the archive where to continue.
- Events that are not archived are never truncated, even if the store is full. Only progress samples are shed.
"""

import asyncio
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
from ftcore.ports import Archive, Floor, OverviewMaker, RetainedLog, Space
from ftcore.runtime import tasks
from ftcore.runtime.master.overview import SnapshotOverview
from ftcore.states.model import JobState
from ftcore.states.snapshot import Packed, pack, restore, seal

INTERVAL_S = 10.0
"""Interval of space checks and retries, in seconds."""

ARCHIVE_S = 120.0
"""Timeout of one operation of the archive; it is reported and retried."""

LOW, ENOUGH = 0.7, 0.6
"""Used fractions of the store's limit: above the first it is low on space, below the second it has recovered."""

T = TypeVar("T")

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class Sizes:
    """Sizes of log, snapshots and archive, in events.

    Args:
        snapshot: events between two snapshots.
        quiet_snapshot: events between two snapshots if ``quiet_s`` have passed since the last one.
        quiet_s: seconds.
        piece: events in one file of the archive.
        keep: events that stay in the live log unless space is low.
    """

    snapshot: int = 20_000
    quiet_snapshot: int = 1_000
    quiet_s: float = 600.0
    piece: int = 10_000
    keep: int = 100_000


@attrs.frozen(kw_only=True)
class RetentionConfig:
    """Configuration of ``LogRetention``.

    Args:
        log: a handle of the log, preferably not shared.
        archive: receives events before they are truncated; None: nothing is truncated.
        sizes: sizes in events.
        interval_s: interval of space checks and retries, in seconds.
        overview: makes the overviews in the snapshots; None: they have none.
    """

    log: RetainedLog
    archive: Archive | None = None
    sizes: Sizes = Sizes()
    interval_s: float = INTERVAL_S
    overview: Callable[[], OverviewMaker] | None = None


class LogRetention:
    """Limits the size of one log, for one term.

    Args:
        retention: the configuration.
        term: the term won.
        record: submits facts.

    Attributes:
        shedding: the store is low on space: dispensable facts must not be recorded.
    """

    def __init__(self, retention: RetentionConfig, term: Term, record: Callable[[Any], object]) -> None:
        self.shedding = False
        self._log = retention.log
        self._term = term
        self._record = record
        self._archive = retention.archive
        self._sizes = retention.sizes
        self._interval_s = retention.interval_s
        self._wake = asyncio.Event()
        maker = retention.overview() if retention.overview is not None else None
        self._overview = SnapshotOverview(retention.log, maker)
        self._packed: Packed | None = None
        self._last = Seq(0)
        self._snapshot_seq = -1
        self._snapshot_time = 0.0
        self._older_snapshot = Seq(0)
        self._archived: tuple[Seq, bytes] | None = None
        self._archive_error = ""
        self._warned: dict[str, str] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ftcore-archive")

    @property
    def ready(self) -> bool:
        """Whether the existing snapshots are known; no snapshot is made before."""
        return self._snapshot_seq >= 0

    def close(self) -> None:
        """Stop the archive's thread without waiting for it."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def committed(self, state: JobState, tail: Iterable[Event]) -> None:
        """Process a durable batch; pack a snapshot if one is due.

        Args:
            state: the state of the log; not used after the return.
            tail: older events that the snapshot must include beside the state.
        """
        self._last = Seq(state.seq)
        if not self.ready or self._packed is not None:
            return
        fresh = state.seq - self._snapshot_seq
        quiet = asyncio.get_running_loop().time() - self._snapshot_time >= self._sizes.quiet_s
        if fresh >= self._sizes.snapshot or (quiet and fresh >= self._sizes.quiet_snapshot):
            if not state.log.poisoned:
                self._packed = pack(state, tail)
            self._wake.set()
        elif self._archive is not None and not self._archive_error and self._last >= self._piece_due():
            self._wake.set()

    async def run(self) -> None:
        """Limit the size of the log; never returns."""
        await self._attempt(self._load_snapshots)
        while True:
            if not self.ready:
                await self._attempt(self._load_snapshots)
            await self._attempt(self._check_space)
            await self._attempt(self._save)
            await self._attempt(self._update_archive)
            await tasks.wait_or_set(self._wake, self._interval_s)
            self._wake.clear()

    async def _attempt(self, step: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run one step; an error is logged once."""
        try:
            await step()
            self._warned.pop(step.__name__, None)
        except Fenced:
            logger.info("another master does the log's retention now", job=self._log.job)
            await asyncio.get_running_loop().create_future()
        except Unreachable as error:
            logger.debug("the log's retention waits", error=str(error))
        except FtcoreError as error:
            self._warn(step.__name__, str(error))
        except Exception as error:  # the master must survive any failure of the retention
            self._warn(step.__name__, f"{type(error).__name__}: {error}", exc_info=True)

    def _warn(self, step: str, error: str, **more: Any) -> None:
        if self._warned.get(step) != error:
            self._warned[step] = error
            logger.warning("log retention failed; retrying", job=self._log.job, error=error, **more)

    # -- snapshots

    async def _load_snapshots(self) -> None:
        """Find the snapshots of earlier masters."""
        newest = await self._log.snapshot()
        older = await self._log.snapshot(Seq(newest.seq - 1)) if newest is not None else None
        usable = newest is not None and await asyncio.to_thread(restore, newest) is not None
        self._older_snapshot = older.seq if older is not None and usable else Seq(0)
        self._snapshot_time = asyncio.get_running_loop().time()
        self._snapshot_seq = newest.seq if newest is not None and usable else 0

    async def _save(self) -> None:
        packed = self._packed
        if packed is None:
            return
        try:
            overview = await self._overview.until(Seq(packed.seq))
            snapshot = await asyncio.to_thread(seal, packed, overview)
            await self._log.save_snapshot(snapshot, term=self._term)
        finally:
            self._packed = None  # a failed save is not repeated: a newer snapshot follows
        self._older_snapshot, self._snapshot_seq = Seq(self._snapshot_seq), packed.seq
        self._snapshot_time = asyncio.get_running_loop().time()

    # -- archive and truncation

    def _piece_due(self) -> int:
        return (self._archived[0] if self._archived is not None else 0) + self._sizes.piece

    async def _update_archive(self) -> None:
        archive = self._archive
        if archive is None or self._last == 0:
            return
        floor = await self._log.floor()
        try:
            await self._extend(archive, floor)
            await self._truncate(archive, floor)
        except (Fenced, Unreachable):
            raise
        except FtcoreError as error:
            if (await self._log.floor()).seq > floor.seq:
                return  # a newer master truncated meanwhile; the next attempt continues behind it
            if str(error) != self._archive_error:
                self._archive_error = str(error)
                logger.warning("cannot use the log's archive; the log is not truncated", error=str(error))
                self._record(ArchiveFailed(archive=archive.where, error=str(error)[:1000]))
            return
        self._archive_error = ""

    async def _extend(self, archive: Archive, floor: Floor) -> None:
        """Write the due files after those that exist, once their digests match this log."""
        if self._archived is None or self._archived[0] < floor.seq or self._archive_error:
            await self._on_disk(archive.prepare, floor.seq == 0)
            if floor.seq and await self._on_disk(archive.reaches, floor.seq) is None:
                # Probably a disk that is not mounted here; a new archive would be cut off from the old one.
                raise StoreError(
                    f"{archive.where} does not contain the archived events (up to {floor.seq}): mount the archive"
                )
            self._archived = (floor.seq, bytes.fromhex(floor.digest))
        last = self._last
        while True:
            after, digest = self._archived
            existing = await self._on_disk(archive.reaches, Seq(after + 1))
            end = Seq(existing if existing is not None else after + self._sizes.piece)
            if end > last and existing is not None:
                last = await self._log.last_seq()  # a newer master may have appended and archived more
                if end > last:
                    raise StoreError(_of_another_log(archive, f"its events go up to {end}, the log's to {last}"))
            if end > last:
                return
            bodies = [body async for part in self._log.stored(after, end) for body in part]
            assert len(bodies) == end - after
            following = await asyncio.to_thread(_digest_after, digest, bodies)
            if existing is None:
                await self._on_disk(archive.add, after, digest, bodies)
            elif await self._on_disk(archive.digest_at, existing) != following.hex():
                raise StoreError(_of_another_log(archive, f"its event {end} has another digest"))
            self._archived = (end, following)

    async def _on_disk(self, work: Callable[..., T], *args: Any) -> T:
        """Run an operation of the archive in a thread, because a network file system may hang.

        Raises:
            StoreError: any error of the archive, to tell it from an error of the log's store.
        """
        working = asyncio.get_running_loop().run_in_executor(self._thread, partial(work, *args))
        try:
            async with asyncio.timeout(ARCHIVE_S):
                return await working
        except TimeoutError as error:
            raise StoreError(f"the archive did not answer within {ARCHIVE_S:g} s") from error
        except FtcoreError as error:
            raise StoreError(str(error)) from error

    async def _truncate(self, archive: Archive, floor: Floor) -> None:
        assert self._archived is not None
        keep = 0 if self.shedding else self._sizes.keep
        until = Seq(min(self._archived[0], self._older_snapshot, self._last - keep))
        if until - floor.seq < (1 if self.shedding else self._sizes.piece):
            return
        now = await self._log.truncate(until, term=self._term, archive=archive.where)
        if now.seq > floor.seq:
            self._record(ArchiveExtended(archive=archive.where, until=self._archived[0], floor=now.seq))

    # -- space

    async def _check_space(self) -> None:
        space = await self._log.space()
        if space is not None:
            self._compare(space)
        await self._log.reclaim()

    def _compare(self, space: Space) -> None:
        part = space.used / space.limit if space.limit else 0.0
        if not self.shedding and (space.full or part > LOW):
            self.shedding = True
            logger.warning("the log's store is low on space", used=space.used, limit=space.limit, full=space.full)
            self._record(SpaceRanLow(used=space.used, limit=space.limit, full=space.full))
        elif self.shedding and not space.full and part < ENOUGH:
            self.shedding = False
            logger.warning("the log's store has room again", used=space.used, limit=space.limit)
            self._record(SpaceRecovered(used=space.used, limit=space.limit))


def _digest_after(digest: bytes, bodies: Iterable[bytes]) -> bytes:
    for body in bodies:
        digest = chain(digest, body)
    return digest


def _of_another_log(archive: Archive, why: str) -> str:
    return (
        f"{archive.where} is the archive of another log with the same name ({why}): set another --archive, or move "
        "this one"
    )

"""The overview in the snapshots of a job's log: its readers continue from there instead of reading the whole log.

House rule: nothing depends on it. Events are decoded in a thread, after they are durable; after an error the snapshots
of this term have no overview, and the log's readers read it from its start.
"""

import asyncio

import structlog

from ftcore.errors import Unreachable
from ftcore.ids import Seq
from ftcore.ports import OverviewMaker, RetainedLog
from ftcore.states.snapshot import overview_in

BEHIND_MAX = 200_000
"""Most events that are read to make the first overview of a term, some seconds of work; a log that an older version
wrote may be longer."""

logger = structlog.get_logger()


class SnapshotOverview:
    """The overview of one log, for one term.

    Args:
        log: the log.
        maker: makes it; None: there is none.
    """

    def __init__(self, log: RetainedLog, maker: OverviewMaker | None) -> None:
        self._log = log
        self._maker = maker
        self._seq: Seq | None = None

    async def until(self, seq: Seq) -> bytes:
        """The overview of the events up to one; empty if there is none now."""
        if self._maker is None:
            return b""
        try:
            return await self._until(self._maker, seq)
        except Unreachable:
            return b""  # the next snapshot continues
        except Exception as error:  # whatever it is, the master and its snapshots go on
            self._give_up(f"{type(error).__name__}: {error}")
            return b""

    async def _until(self, maker: OverviewMaker, seq: Seq) -> bytes:
        if self._seq is None:
            self._seq = await self._begin(maker)
        floor = await self._log.floor()
        if self._seq < floor.seq or seq - self._seq > BEHIND_MAX:
            self._give_up(f"it would need the events after {self._seq}")
            return b""
        async for bodies in self._log.stored(self._seq, seq):
            await asyncio.to_thread(maker.feed, bodies)
            self._seq = Seq(self._seq + len(bodies))
        return await asyncio.to_thread(maker.make, await self._log.digest_at(seq))

    async def _begin(self, maker: OverviewMaker) -> Seq:
        newest = await self._log.snapshot()
        if newest is None:
            return await asyncio.to_thread(maker.begin, b"", "")
        digest = await self._log.digest_at(newest.seq)
        return await asyncio.to_thread(maker.begin, overview_in(newest), digest)

    def _give_up(self, why: str) -> None:
        self._maker = None
        logger.info("the log's snapshots get no overview; its readers read it from its start", why=why)

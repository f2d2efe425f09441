"""Looks up the leader in the log's store. A question without an answer in time stays open for the next call."""

import asyncio

from ftcore.ports import Leader, LeaderElection
from ftcore.runtime import tasks


class LeaderLookup:
    """At most one open question to the store.

    House rule: a store that answers later than a caller waits is not asked anew each time, or it would never answer.

    Args:
        log: the job's log; only its ``leader`` is read.
    """

    def __init__(self, log: LeaderElection) -> None:
        self._log = log
        self._open: asyncio.Task[Leader | None] | None = None

    async def ask(self, within_s: float | None) -> Leader | None:
        """The leader that the store names; None: there is none.

        Args:
            within_s: longest wait in seconds; None: as long as the store takes.

        Raises:
            TimeoutError: no answer yet; the next call waits for the same one.
            FtcoreError: as ``LeaderElection.leader`` does.
        """
        if self._open is None:
            self._open = asyncio.create_task(self._log.leader())
        done, _ = await asyncio.wait([self._open], timeout=within_s)
        if not done:
            raise TimeoutError
        answered, self._open = self._open, None
        return answered.result()

    async def drop(self) -> None:
        """Give up an open question: its answer would be out of date."""
        if self._open is not None:
            dropped, self._open = self._open, None
            await tasks.end([dropped])

"""Follows a job's log, also while its store is unreachable at times."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

from ftcore import Event, open_log
from ftcore.errors import FtcoreError, NotFound

RETRY_S: Final = 5.0

logger = logging.getLogger(__name__)


async def new_events(store: str, job: str) -> AsyncIterator[Event]:
    """Yield the events that are appended from now on, without end; an unreachable log is tried again.

    Of a log that does not exist yet, all events are yielded.

    Args:
        store: URL of the log's store.
        job: the job's name.
    """
    last: Any = None
    while True:
        try:
            log = await open_log(store, job)
            try:
                last = await log.last_seq() if last is None else last
                async for event in log.follow(last):
                    last = event.seq
                    yield event
            finally:
                await log.close()
        except NotFound:
            last = 0
        except FtcoreError as error:
            logger.debug("the log cannot be followed: %s", error)
        await asyncio.sleep(RETRY_S)

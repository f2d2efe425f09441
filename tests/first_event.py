"""Waits for an event in the log of a job that runs elsewhere."""

from collections.abc import Callable
from typing import Any

import ftcore


async def first_event(
    store: str, job: str, kind: str, after: int = 0, where: Callable[[Any], bool] = lambda data: True
) -> ftcore.Event:
    """Return the first event of a type, once it is in the log.

    Args:
        store: URL of the log's store.
        job: the job, which need not exist yet.
        kind: the type.
        after: only events behind this one count.
        where: only events whose data fulfils it count.
    """
    log = await ftcore.open_log(store, job, create=True)
    try:
        async for event in log.follow():
            if event.type == kind and event.seq > after and where(event.data):
                return event
    finally:
        await log.close()
    raise AssertionError("a log is followed without end")

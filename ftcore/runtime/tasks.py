"""Reliable cancellation of tasks, and waits with a time limit.

House rule of all asynchronous code here: use ``asyncio.timeout``, never ``wait_for``. Python 3.11's ``wait_for`` loses
a cancellation that coincides with its result (python/cpython#86296), and the task runs on.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

INSIST_S = 0.5
"""Seconds after which a cancellation is repeated, because a library's ``wait_for`` may have lost it."""


async def wait_or_set(event: asyncio.Event, within_s: float | None) -> None:
    """Wait until an event is set, and set it after ``within_s`` seconds; None: no limit.

    For loops that work on an event and periodically. It costs less than ``asyncio.timeout``, which cancels the task and
    raises an exception each time.
    """
    timer = asyncio.get_running_loop().call_later(within_s, event.set) if within_s is not None else None
    try:
        await event.wait()
    finally:
        if timer is not None:
            timer.cancel()


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; their exceptions are dropped."""
    pending = list(dict.fromkeys(tasks))  # in a fixed order, so that a simulation is reproducible
    while pending:
        for task in pending:
            task.cancel()
        if running := [task for task in pending if not task.done()]:
            await asyncio.wait(running, timeout=INSIST_S)
        for task in pending:
            if task.done() and not task.cancelled():
                task.exception()
        pending = [task for task in pending if not task.done()]

"""Ending tasks for certain.

House rule of all asynchronous code here: time-outs are ``asyncio.timeout``, never ``wait_for``. Python 3.11's
``wait_for`` swallows a cancellation that coincides with its result (python/cpython#86296), and the task runs on.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

INSIST_S = 0.5
"""A library's own ``wait_for`` may lose a cancellation too: after this time it is repeated."""


async def end(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended; what they raise is theirs and is dropped."""
    pending = list(dict.fromkeys(tasks))  # in the order given, always: a simulation of them can be repeated
    while pending:
        for task in pending:
            task.cancel()
        done, _ = await asyncio.wait(pending, timeout=INSIST_S)
        for task in done:
            if not task.cancelled():
                task.exception()
        pending = [task for task in pending if task not in done]

"""Blocking calls in coroutines: in another thread, so that the event loop goes on; directly, if there is no loop.

A command that reads a file waits for nothing else, so it runs without asyncio, whose import costs tens of milliseconds.
"""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a blocking function; returns what it returns."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return function(*arguments)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return function(*arguments)
    result: T = await asyncio.to_thread(function, *arguments)
    return result

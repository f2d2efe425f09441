"""Processes that workers have left behind."""

import asyncio
import os
import signal
from collections.abc import Callable, Collection
from typing import Final

from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper

SWEEP_S_MAX: Final = 10.0


async def kill(
    reaper: Reaper, own: Collection[int], note_once: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Kill all descendants of this process that are not its own, until none is left, at most ``SWEEP_S_MAX`` seconds.

    Args:
        reaper: waits for children; those that it watches stay.
        own: other processes that stay.
        note_once: called with a message that may repeat.
        note: called with any other message for the user.
    """
    loop = asyncio.get_running_loop()
    deadline, pause = loop.time() + SWEEP_S_MAX, 0.0005
    while True:
        reaper.drain()
        found: list[int] = []
        unread = False
        try:
            found = processes.descendants(os.getpid(), reaper.watched | frozenset(own))
        except OSError as error:
            unread = True
            note_once(f"cannot search for processes left by workers: {error.strerror}; retrying")
        if not found and not unread:
            return
        if loop.time() > deadline:
            if found:
                note(f"killed processes do not end (blocked in the kernel): pids {found}; continuing")
            return
        for pid in found:
            processes.kill(pid, signal.SIGKILL)
        await asyncio.sleep(pause)
        pause = min(2 * pause, 0.05)

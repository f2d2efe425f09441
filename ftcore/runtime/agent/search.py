"""Looks up checkpoints on storage at the start of an agent, in another process: see ``runtime/keeper/search.py``."""

import asyncio
import os
import signal
import sys
from typing import Final

import msgspec
import structlog

from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.keeper.search import FoundOnStorage

SEARCH_S: Final = 10.0
"""How long the start of an agent waits for the storage, in seconds."""

logger = structlog.get_logger()


async def search(reaper: Reaper, url: str, job: str, within_s: float = SEARCH_S) -> list[FoundOnStorage]:
    """Look up the newest checkpoints; empty, with a line in the agent's log, if that fails.

    Args:
        reaper: waits for the process.
        url: path or URL of the checkpoints.
        job: the job's name.
        within_s: longest wait in seconds.
    """
    loop = asyncio.get_running_loop()
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    answer = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(answer), os.fdopen(ours, "rb"))
    pid = 0
    try:
        argv = [sys.executable, "-P", "-m", "ftcore.runtime.keeper.search", url, job]
        pid = processes.spawn(argv, os.environ, {1: theirs}, null=(0, 2))
        reaper.watch(pid, lambda code, mono: None)
        os.close(theirs)
        theirs = -1
        text = await asyncio.wait_for(answer.read(), within_s)
        pid = 0  # it has closed its output, and ends
        return msgspec.json.decode(text, type=list[FoundOnStorage])
    except (OSError, msgspec.DecodeError, TimeoutError):
        logger.warning("checkpoints on storage cannot be looked up; those of the log are used", place=url)
        return []
    finally:
        if theirs >= 0:
            os.close(theirs)
        if pid:
            processes.kill(pid, signal.SIGKILL)
        transport.close()

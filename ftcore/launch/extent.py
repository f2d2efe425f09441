"""How far a run has come, for the last message of ``ftrun``."""

import asyncio

from ftcore.errors import FtcoreError
from ftcore.ids import Seq
from ftcore.logs.stores import opened
from ftcore.replay.reading import Folder, read_async
from ftcore.states.snapshot import recall
from ftcore.wording import plural

READ_S = 2.0
"""Longest time to read the log."""


def extent(store: str, job: str) -> str:
    """The last step and the number of rounds of the newest run; empty if the log does not tell in time."""
    return asyncio.run(_extent(store, job))


async def _extent(store: str, job: str) -> str:
    # gRPC's poller may still report to the loop of the node, which is closed; nothing here matters to the user.
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    try:
        async with asyncio.timeout(READ_S), opened(store, job) as log:
            restored = await recall(log)
            folder = Folder(restored.state)
            await read_async(log.read(Seq(restored.state.seq)), folder)
    except (FtcoreError, OSError, TimeoutError):
        return ""
    training, rounds = folder.state.training, folder.state.rounds
    if rounds.world is None:
        return ""
    step = f"step {training.step}, " if training.step is not None and training.step_absolute else ""
    return f"{step}{plural(rounds.world.round - rounds.first + 1, 'round')}"

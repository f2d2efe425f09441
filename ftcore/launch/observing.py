"""The processes of a job's observers, beside the master that leads.

Each URL of ``ftrun --observe`` is a process, ``ftctl observe URL``. It is started when the master begins to lead. When
the master has resigned, the process is asked to end, and killed ``END_S`` later. If the master dies, the kernel kills
it.

House rule: nothing here is awaited while the master leads, and no failure here ends the master.
"""

import asyncio
import contextlib
import os
import sys

import structlog

from ftcore.launch.candidacy import Candidacy
from ftcore.runtime import tasks

AGAIN_S = (1.0, 60.0)
"""First and longest pause before a process that ended is started again."""

HEALTHY_S = 60.0
"""After a longer life, the pause begins at its first value again."""

END_S = 5.0
"""How long a process may read the log to its end and deliver what it has, after the master has resigned."""

logger = structlog.get_logger()


class ObserverProcesses:
    """The observers of one master.

    Args:
        candidacy: the configuration of the master, with the URLs.
    """

    def __init__(self, candidacy: Candidacy) -> None:
        self._candidacy = candidacy
        self._keeping: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start them; called when the master begins to lead."""
        self._keeping = [asyncio.create_task(self._keep(url)) for url in self._candidacy.observe]

    async def end(self) -> None:
        """Ask them to end, and wait for them, for at most ``END_S`` seconds."""
        await tasks.end(self._keeping)

    async def _keep(self, url: str) -> None:
        """Run a process, and again whenever it ends."""
        pause_s, loop = AGAIN_S[0], asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                code = await self._run(url)
                logger.warning("an observer ended; it is started again", observer=url, exit_code=code, pause_s=pause_s)
            except OSError as error:
                logger.warning("an observer cannot be started", observer=url, error=str(error), pause_s=pause_s)
            if loop.time() - began > HEALTHY_S:
                pause_s = AGAIN_S[0]
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, AGAIN_S[1])

    async def _run(self, url: str) -> int:
        process = await asyncio.create_subprocess_exec(
            *observer_argv(self._candidacy, url, os.getpid()), stdin=asyncio.subprocess.DEVNULL
        )
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(END_S):
                        await process.wait()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


def observer_argv(candidacy: Candidacy, url: str, parent: int) -> list[str]:
    """The command line of an observer's process.

    Args:
        candidacy: the configuration of the master.
        url: of the observer.
        parent: process id of the master, with which it dies.
    """
    argv = [sys.executable, "-m", "ftcore.cli.ftctl", "observe", url, "--job", candidacy.job]
    argv += ["--store", candidacy.store, "--until-parent", str(parent)]
    return argv + (["--archive", str(candidacy.archive)] if candidacy.archive else [])

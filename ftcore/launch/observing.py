"""The processes of a job's observers, beside the master that leads.

Each URL of ``ftrun --observe`` is a process, ``ftctl observe URL``. It is started when the master begins to lead. When
the master has resigned, the process is asked to end, and killed ``END_S`` later. If the master dies, the kernel kills
it.

House rule: nothing here is awaited while the master leads, and no failure here ends the master.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

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
        self._running: list[subprocess.Popen[bytes]] = []
        self._over = asyncio.Event()

    def start(self) -> None:
        """Start them; called when the master begins to lead."""
        self._keeping = [asyncio.create_task(self._keep(url)) for url in self._candidacy.observe]

    async def end(self) -> None:
        """Ask them to end, and wait for them, for at most ``END_S`` seconds."""
        self._over.set()
        for process in self._running:
            process.terminate()
        if self._keeping:
            await asyncio.wait(self._keeping, timeout=END_S)
        await tasks.end(self._keeping)

    async def _keep(self, url: str) -> None:
        """Run a process, and again whenever it ends."""
        pause_s, loop = AGAIN_S[0], asyncio.get_running_loop()
        while not self._over.is_set():
            began = loop.time()
            try:
                code = await self._run(url)
                if self._over.is_set():
                    return
                logger.warning("an observer ended; it is started again", observer=url, exit_code=code, pause_s=pause_s)
            except OSError as error:
                logger.warning("an observer cannot be started", observer=url, error=str(error), pause_s=pause_s)
            if loop.time() - began > HEALTHY_S:
                pause_s = AGAIN_S[0]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._over.wait()
            pause_s = min(2 * pause_s, AGAIN_S[1])

    async def _run(self, url: str) -> int:
        process = _spawn(observer_argv(self._candidacy, url, os.getpid()))
        self._running.append(process)
        try:
            return await _ended(process)
        finally:
            self._running.remove(process)
            process.kill()
            process.wait()


def _spawn(argv: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a process with SIGTERM blocked: it unblocks it once it can end in good order."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


async def _ended(process: "subprocess.Popen[bytes]") -> int:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    fd = os.pidfd_open(process.pid)
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return process.wait()


def observer_argv(candidacy: Candidacy, url: str, parent: int) -> list[str]:
    """The command line of an observer's process.

    Args:
        candidacy: the configuration of the master.
        url: of the observer.
        parent: process id of the master, with which it dies.
    """
    argv = [sys.executable, "-m", "ftcore.cli.ftctl", "observe", url, "--job", candidacy.job]
    argv += ["--store", candidacy.store, "--until-parent", str(parent), "--log-level", candidacy.log_level]
    argv += ["--node", candidacy.node] if candidacy.node else []
    return argv + (["--archive", str(candidacy.archive)] if candidacy.archive else [])

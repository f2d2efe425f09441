"""The actor of a node: runs one ``ftrun``, which ends with it."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence

BOUND = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: end with the actor
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
NAMESPACE = "ftcore"
"""Ray's namespace of all controllers and nodes."""
KEPT = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Variables of Ray that a process of the cluster needs. The others describe the actor's process, not its children."""


def node_env(given: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """The environment of ``ftrun``: that of the actor without Ray's own variables, and the job's."""
    return {name: value for name, value in base.items() if name in KEPT or not name.startswith("RAY_")} | dict(given)


class NodeProcess:
    """The class of the actor. Its methods run in one event loop, whose thread lives as long as the process.

    Args:
        argv: command line of ``ftrun``.
        env: variables of the job.
        cwd: directory in which it runs.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], cwd: str) -> None:
        self._argv, self._env, self._cwd = tuple(argv), node_env(env, os.environ), cwd
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> tuple[int, int]:
        """Start it; returns the process IDs of ``ftrun`` and of the actor."""
        argv = (sys.executable, "-c", BOUND, str(os.getpid()), *self._argv)
        self._process = await asyncio.create_subprocess_exec(
            *argv, env=self._env, cwd=self._cwd, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        return self._process.pid, os.getpid()

    async def wait(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    async def stop(self, grace_s: float) -> None:
        """End it: SIGTERM, and SIGKILL after ``grace_s`` seconds."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM if grace_s > 0 else signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s or None):
                await process.wait()
                return
        with contextlib.suppress(ProcessLookupError):
            process.kill()

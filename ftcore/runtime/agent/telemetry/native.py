"""Native stacks of a worker: frames of C and C++ between those of Python, by py-spy if it is installed.

They say where a collective library, a driver or an extension module waits. py-spy stops the process while it reads,
typically for a second or two, so it is asked once about a process that makes no progress, and about no other.

House rule: no answer is no error: without py-spy, without the permission to trace (in some containers), or for a
process in uninterruptible sleep, there are the Python stacks alone.
"""

import asyncio
import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

LIMIT_S: Final = 10.0
"""Longest time in seconds that py-spy may take."""

BYTES_MAX: Final = 256 << 10

NATIVE_NAME: Final = "native.txt"
"""File beside a worker's output with its native stacks."""

NATIVE_MAX: Final = 8
"""Most processes that are read at once."""

logger = structlog.get_logger()


class NativeStacks:
    """Reads the native stacks of several processes.

    Args:
        read: returns those of one process, as ``native_stack``; blocks.

    Attributes:
        reading: the processes that are read now, and stopped for it.
    """

    def __init__(self, read: Callable[[int], str]) -> None:
        self._read = read
        self.reading: set[int] = set()

    async def of(self, files: Mapping[int, str]) -> dict[str, str]:
        """The stacks of processes, by the path of their file.

        Args:
            files: a file in the directory of each process.
        """
        run = asyncio.get_running_loop().run_in_executor
        self.reading = set(files)
        try:
            texts = await asyncio.gather(*(run(None, self._read, pid) for pid in files))
        finally:
            self.reading = set()
        paths = (str(Path(file).with_name(NATIVE_NAME)) for file in files.values())
        return {path: text for path, text in zip(paths, texts, strict=True) if text}


def native_stack(pid: int) -> str:
    """The stacks of all threads of a process, with native frames; empty if they cannot be read. Blocks."""
    program = _program()
    if not program:
        return ""
    reading = subprocess.Popen(
        [program, "dump", "--native", "--pid", str(pid)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    try:
        text, errors = reading.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        reading.kill()
        reading.communicate()
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)  # a process whose tracer was killed while it attached may stay stopped
        _note(f"no answer within {LIMIT_S:g} s")
        return ""
    if reading.returncode != 0:
        _note(errors.decode(errors="replace").strip()[-200:] or f"exit code {reading.returncode}")
        return ""
    return text[:BYTES_MAX].decode(errors="replace")


@functools.cache
def _program() -> str:
    """The path of py-spy: beside this Python, or on the search path; empty: there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("py-spy") or ""


@functools.lru_cache(maxsize=16)
def _note(why: str) -> None:
    """Log each reason once."""
    logger.info("native stacks cannot be read", why=why)

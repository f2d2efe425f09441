"""Starts the warm process, as the first action of ``ftrun``.

House rule: few imports here, because they delay the start.
"""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from ftcore.runtime.agent.workers import processes
from ftcore.runtime.warm import protocol

AGENT_ENV: Final = "FTCORE_AGENT"
"""Variable with the agent's tag in all processes of an agent; the guard finds surviving processes by it."""

_MAIN = Path(protocol.__file__).with_name("__main__.py")
_ROOT = Path(protocol.__file__).parents[3]


class Started(NamedTuple):
    """A started warm process.

    Args:
        pid: its process id.
        since: monotonic nanoseconds at which it was alive.
        channel: the agent's end of its channel.
        errors: non-blocking descriptor to read its output.
        tag: the tag of its agent.
    """

    pid: int
    since: int
    channel: socket.socket
    errors: int
    tag: str


def new_tag() -> str:
    """A unique tag for an agent."""
    return os.urandom(16).hex()


def start(env: Mapping[str, str], preload: Sequence[str], tag: str = "") -> Started:
    """Start a warm process as a child that ends with this process.

    Args:
        env: its environment, without the tag.
        preload: the modules that it imports.
        tag: the agent's tag; empty: a new one.

    Raises:
        OSError: the process cannot be started.
    """
    tag = tag or new_tag()
    ours, theirs = protocol.pair()
    errors, theirs_errors = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(errors, False)
    args = [str(os.getpid()), str(_ROOT), json.dumps(list(preload))]
    stdin = {0: 0} if os.path.exists("/proc/self/fd/0") else {}  # workers read the agent's stdin, as with torchrun
    since = time.monotonic_ns()
    try:
        pid = processes.spawn(
            [sys.executable, "-u", str(_MAIN), *args],
            {**env, AGENT_ENV: tag},
            {1: theirs_errors, 2: theirs_errors, protocol.CHANNEL_FD: theirs.fileno(), **stdin},
            null=() if stdin else (0,),
        )
    except BaseException:
        ours.close()
        os.close(errors)
        raise
    finally:
        theirs.close()
        os.close(theirs_errors)
    return Started(pid, since, ours, errors, tag)

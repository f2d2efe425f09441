"""The keeper's program: ``python -m ftcore.runtime.keeper``, with its listening socket on 3 and its agent on 4."""

import asyncio
import os
import signal
import socket
import traceback
from pathlib import Path

from ftcore.runtime.keeper.server import Keeper
from ftcore.runtime.warm.title import show

LISTENER_FD = 3
CONTROL_FD = 4


async def _serve() -> None:
    channels = [socket.socket(fileno=fd) for fd in (LISTENER_FD, CONTROL_FD)]
    for channel in channels:
        channel.set_inheritable(False)
    await Keeper(*channels).run()


def main() -> None:
    """Serve until the job has ended. The process then ends at once, even if the storage holds up a thread of it."""
    show("ftcore: keeper")
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    os.closerange(CONTROL_FD + 1, highest + 1)  # inherited by the agent, whose readers wait for their end
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the agent decides what a terminal's signals mean
    code = 0
    try:
        asyncio.run(_serve())
    except Exception:
        traceback.print_exc()
        code = 1
    os._exit(code)


if __name__ == "__main__":
    main()

"""The keeper's program: ``python -m ftcore.runtime.keeper``, with its listening socket on 3 and its agent on 4.

With the argument ``copies``, a listening TCP socket for the keepers of other nodes is on 5.
"""

import asyncio
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

from ftcore.runtime.keeper.config import CONTROL_FD, COPIES, COPIES_FD, LISTENER_FD
from ftcore.runtime.keeper.server import Keeper
from ftcore.runtime.warm.title import show


async def _serve() -> None:
    channels = [socket.socket(fileno=fd) for fd in range(LISTENER_FD, _last_fd() + 1)]
    for channel in channels:
        channel.set_inheritable(False)
    await Keeper(*channels).run()


def _last_fd() -> int:
    return COPIES_FD if COPIES in sys.argv[1:] else CONTROL_FD


def main() -> None:
    """Serve until the job has ended. The process then ends at once, even if the storage holds up a thread of it."""
    show("ftcore: keeper")
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    os.closerange(_last_fd() + 1, highest + 1)  # inherited by the agent, whose readers wait for their end
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

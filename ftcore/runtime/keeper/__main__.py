"""The keeper's program: ``python -m ftcore.runtime.keeper``, with its listening socket on 3 and its agent on 4."""

import asyncio
import signal
import socket

from ftcore.runtime.keeper.server import Keeper
from ftcore.runtime.warm.title import show

LISTENER_FD = 3
CONTROL_FD = 4


async def _serve() -> None:
    await Keeper(socket.socket(fileno=LISTENER_FD), socket.socket(fileno=CONTROL_FD)).run()


def main() -> None:
    """Serve until the job has ended."""
    show("ftcore: keeper")
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the agent decides what a terminal's signals mean
    asyncio.run(_serve())


if __name__ == "__main__":
    main()

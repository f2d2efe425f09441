"""A worker writes the Python stacks of all its threads when it is asked to, whatever it hangs in.

The handler is faulthandler's: plain C, which needs neither the interpreter nor its lock, so a worker that waits in a
collective answers too, and the interrupted call goes on. The signal is a real-time one that no convention claims
(SIGUSR1 and SIGUSR2 belong to schedulers and scripts); a script that wants this very one simply takes it.

It writes to a memfd that it shares with its agent, so that nothing of it is mixed with the script's own output. A
script that closes descriptors it does not know may have another file at that number: the agent looks before it asks.
"""

import faulthandler
import signal

STACKS = int(signal.SIGRTMAX) - 2
"""The signal."""

MEMFD = "ftcore-stacks"
"""The name of the file that is written to."""


def listen(fd: int) -> None:
    """Answer ``STACKS`` into this file from now on."""
    faulthandler.register(STACKS, file=fd, all_threads=True, chain=False)

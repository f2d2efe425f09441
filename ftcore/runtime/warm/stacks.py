"""A worker writes Python stacks when it is asked to, whatever it hangs in: that of its main thread, or those of all.

The handler is faulthandler's: plain C, which needs neither the interpreter nor its lock, so a worker that waits in a
collective answers too, and the interrupted call goes on. The signal is a real-time one that no convention claims
(SIGUSR1 and SIGUSR2 belong to schedulers and scripts); a script that wants this very one simply takes it.

House rule: the stacks of all threads are asked for only while no other thread runs. The handler reads them without the
interpreter's lock; a thread that calls and returns meanwhile ends the process with SIGSEGV.

It writes to a memfd that it shares with its agent, so that nothing of it is mixed with the script's own output. A
script that closes descriptors it does not know may have another file at that number: the agent looks before it asks.
"""

import faulthandler
import signal

STACKS = int(signal.SIGRTMAX) - 2
"""The signal that asks for the stack of the main thread."""

ALL_STACKS = STACKS - 1
"""The signal that asks for those of all threads."""

MEMFD = "ftcore-stacks"
"""The name of the file that is written to."""


def listen(fd: int) -> None:
    """Answer both signals into this file from now on."""
    faulthandler.register(STACKS, file=fd, all_threads=False, chain=False)
    faulthandler.register(ALL_STACKS, file=fd, all_threads=True, chain=False)

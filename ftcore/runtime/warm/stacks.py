"""A worker prints the Python stacks of all its threads when it is asked to, whatever it hangs in.

The handler is faulthandler's: plain C, which needs neither the interpreter nor its lock, so a worker that waits in a
collective answers too, and the interrupted call goes on. The signal is a real-time one that no convention claims
(SIGUSR1 and SIGUSR2 belong to schedulers and scripts); a script that wants this very one simply takes it.
"""

import faulthandler
import signal
import sys

STACKS = int(signal.SIGRTMAX) - 2
"""The signal."""


def listen() -> None:
    """Answer ``STACKS`` on standard error from now on."""
    faulthandler.register(STACKS, file=sys.__stderr__ or 2, all_threads=True, chain=False)

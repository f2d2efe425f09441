"""A worker writes Python stacks when it is asked to, whatever it hangs in.

Two signals ask, one after the other. The first is handled in Python: its handler runs between two steps of the
interpreter, with the interpreter's lock, and writes the stacks of all threads. A worker that does not answer it is
inside a call that is not Python's, as a collective is. Only then the second one is sent; faulthandler's own handler
answers it at once with the stack of the main thread, and the interrupted call goes on.

House rule: the second signal is never sent first. Its handler, plain C, reads frames where it finds them: of a thread
that enters or leaves one at that moment it may read what is freed already, and that ends the process with SIGSEGV.

The signals are real-time ones that no convention claims (SIGUSR1 and SIGUSR2 belong to schedulers and scripts); a
script that wants these very ones simply takes them. The stacks go to a memfd that the worker shares with its agent, so
that nothing of it is mixed with the script's own output. A script that closes descriptors it does not know may have
another file at that number: the agent looks before it asks.
"""

import contextlib
import faulthandler
import signal

STACKS = int(signal.SIGRTMAX) - 2
"""The signal that asks for the stack of the main thread; only for who did not answer the other one."""

ALL_STACKS = STACKS - 1
"""The signal that asks for those of all threads."""

ALL_STACKS_LOCKED = STACKS - 2
"""The same for a main thread that waits for a lock: the wait is interrupted, and Python waits on behind its answer."""

MEMFD = "ftcore-stacks"
"""The name of the file that is written to."""


def listen(fd: int) -> None:
    """Answer both signals into this file from now on; called by the main thread."""

    def answer(number: int, frame: object) -> None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback(file=fd, all_threads=True)

    faulthandler.register(STACKS, file=fd, all_threads=False, chain=False)
    signal.signal(ALL_STACKS_LOCKED, answer)
    signal.signal(ALL_STACKS, answer)
    signal.siginterrupt(ALL_STACKS, False)  # calls that know no EINTR go on

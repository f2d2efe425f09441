"""Handlers with which a worker writes its Python stacks on request, even if it hangs.

The agent requests stacks with two signals. The handler of the first runs in Python, holding the GIL, and writes the
stacks of all threads. A worker that does not answer is inside a native call, such as a collective. Only then the agent
sends the second signal; faulthandler's C handler writes the stack of the main thread at once, and the interrupted call
continues.

House rule: the second signal is never sent first. Its handler reads frames without the GIL: if a thread enters or
leaves a frame at that moment, the handler may read freed memory and end the process with SIGSEGV.

The signals are real-time signals without a conventional use (SIGUSR1 and SIGUSR2 belong to schedulers and scripts); a
script can install its own handlers for them. Stacks go to a memfd shared with the agent, so that they do not mix with
the script's output. A script that closes unknown descriptors may have another file at that number, so the agent checks
the descriptor first.
"""

import contextlib
import faulthandler
import signal

STACKS = int(signal.SIGRTMAX) - 2
"""Signal that requests the stack of the main thread; only for a worker that did not answer the other signals."""

ALL_STACKS = STACKS - 1
"""Signal that requests the stacks of all threads."""

ALL_STACKS_LOCKED = STACKS - 2
"""The same for a main thread that waits for a lock: interrupts the wait, which Python resumes after the handler."""

MEMFD = "ftcore-stacks"
"""Name of the memfd that receives the stacks."""


def listen(fd: int) -> None:
    """Install the handlers; they write to ``fd``. Must be called by the main thread."""

    def answer(number: int, frame: object) -> None:
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            faulthandler.dump_traceback(file=fd, all_threads=True)

    faulthandler.register(STACKS, file=fd, all_threads=False, chain=False)
    signal.signal(ALL_STACKS_LOCKED, answer)
    signal.signal(ALL_STACKS, answer)
    signal.siginterrupt(ALL_STACKS, False)  # calls that do not handle EINTR continue

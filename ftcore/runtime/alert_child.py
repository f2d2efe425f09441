"""The process that sends one message to people.

    python -P -m ftcore.runtime.alert_child PARENT      a ``Message`` on stdin -> a ``Delivery``, one line on stdout

House rules: one process to a message, so that neither a slow chat nor a library's thread can hold the master; it ends
with its parent, and after ``LIMIT_S`` whatever becomes of it.
"""

import os
import signal
import sys

import msgspec

from ftcore.runtime.agent.processes import die_with_parent
from ftcore.runtime.alert import LIMIT_S, Message, send


def main(argv: list[str]) -> None:
    """Send what stdin says and write what came of it."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)  # nobody has to be there to end it
    die_with_parent(int(argv[0]))
    message = msgspec.json.decode(sys.stdin.buffer.read(), type=Message)
    out, sys.stdout = sys.stdout, sys.stderr  # a plugin that prints does not disturb the answer
    out.write(msgspec.json.encode(send(message)).decode() + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # a plugin's threads have nothing to say any more

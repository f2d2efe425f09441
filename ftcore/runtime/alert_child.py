"""The process that sends one alert.

    python -P -m ftcore.runtime.alert_child PARENT      a ``Message`` on stdin -> a ``Delivery``, one line on stdout

House rules: one process per message, so that neither a slow service nor a library's thread can block the master. The
process ends with its parent, and after ``LIMIT_S`` in any case.
"""

import os
import signal
import sys

import msgspec

from ftcore.runtime.agent.workers.processes import die_with_parent
from ftcore.runtime.alert import LIMIT_S, Message, send


def main(argv: list[str]) -> None:
    """Send the message on stdin and write the result to stdout."""
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)  # ends this process even if the master does not
    die_with_parent(int(argv[0]))
    message = msgspec.json.decode(sys.stdin.buffer.read(), type=Message)
    out, sys.stdout = sys.stdout, sys.stderr  # output of plugins must not mix with the result
    out.write(msgspec.json.encode(send(message)).decode() + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # do not wait for threads of plugins

"""What ``ps`` and ``top`` show for forked processes: what they are, not the command line of their ancestor."""

import os

from setproctitle import setproctitle


def show(text: str) -> None:
    """Show this as the process's command line; what has no room in the ancestor's is cut off.

    The title is kept out of the memory of the environment, because the guard reads ``/proc/PID/environ``. The library
    looks for ``SPT_NOENV`` when it is used for the first time.
    """
    os.environ["SPT_NOENV"] = "1"
    try:
        setproctitle(text)
    finally:
        del os.environ["SPT_NOENV"]

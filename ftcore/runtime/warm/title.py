"""Process titles for ``ps`` and ``top``; a fork would show the command line of its ancestor."""

import os

from setproctitle import setproctitle


def show(text: str) -> None:
    """Set the process title; it is cut to the length of the ancestor's command line.

    The title must not overwrite the environment, because the guard reads ``/proc/PID/environ``. The library reads
    ``SPT_NOENV`` at its first use.
    """
    os.environ["SPT_NOENV"] = "1"
    try:
        setproctitle(text)
    finally:
        del os.environ["SPT_NOENV"]

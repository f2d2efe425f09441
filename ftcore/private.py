"""Directories that are private to this user, and the Unix sockets in them.

A directory for runtime files may be emptied under a process: a login ends, a cleaner sweeps. The kernel keeps the
socket open, but nobody can connect to it any more. So whoever serves one looks now and then, and makes it anew.

House rules: for a socket a directory is made one level deep only. What is above it belongs to others, and if that is
gone, so is the log beside it. A socket is removed only if nobody serves it, and is left alone while it is young:
between its bind and its listen a socket refuses connections, too.
"""

import contextlib
import os
import socket
import stat
import time
from pathlib import Path

PATH_BYTES_MAX = 107
"""The kernel takes no longer path (unix(7))."""

YOUNG_S = 10.0
"""A socket younger than this is left alone, whether it answers or not."""


class Place:
    """The path of one socket, and whether it is ours that lies there.

    Args:
        path: the path.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._inode: int | None = None

    def prepare(self) -> None:
        """Make the directory if it was removed.

        Raises:
            OSError: it cannot be made, or is not private to this user.
        """
        parent = self.path.parent
        parent.mkdir(mode=0o700, exist_ok=True)
        if not is_private(parent):
            raise PermissionError(f"{parent} is not private to this user")

    def bound(self) -> None:
        """The socket was made just now."""
        self._inode = self._found()

    def is_ours(self) -> bool:
        """Whether others find our socket at the path."""
        return self._inode is not None and self._found() == self._inode

    def remove(self) -> None:
        """Remove it, if it is ours."""
        if self.is_ours():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _found(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except OSError:
            return None


def make_private(directory: Path, levels: int | None = None) -> None:
    """Make a directory that only this user may enter; what is missing above it likewise.

    Args:
        directory: the directory.
        levels: how many directories may be missing, this one included; None: any number.

    Raises:
        OSError: it cannot be made, or more are missing.
    """
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    if levels is not None and len(missing) > levels:
        raise FileNotFoundError(f"{missing[-1].parent} is gone")
    for one in reversed(missing):
        one.mkdir(exist_ok=True, mode=0o700)


def is_private(directory: Path) -> bool:
    """Whether this user made the directory and nobody else may enter it; a link is not one."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def sweep(directory: Path) -> None:
    """Remove the sockets (``*.sock``) in a directory that no process serves: theirs were killed."""
    for path in directory.glob("*.sock"):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > YOUNG_S and _is_dead(path):
                path.unlink()


def _is_dead(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:  # its queue is full, or it is not ours to ask
            return False
    return False

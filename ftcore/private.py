"""Directories private to this user, and the Unix sockets in them.

Runtime directories may be emptied while a process runs (end of a login session, ``systemd-tmpfiles``). The socket stays
open, but clients can no longer connect, so servers check their socket periodically and create it again.

For a socket, only its own directory is created: if the parent is missing, so is the log in it. A socket is removed only
if no process serves it and it is older than ``YOUNG_S``: between bind and listen, a socket also refuses connections.
"""

import contextlib
import os
import socket
import stat
import time
from pathlib import Path

PATH_BYTES_MAX = 107
"""Longest path of a Unix socket (unix(7))."""

YOUNG_S = 10.0
"""Age in seconds below which a socket is never removed."""


class SocketPath:
    """The path of a socket that this process serves.

    Args:
        path: the path.
    """

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._inode: int | None = None

    def prepare(self) -> None:
        """Create the directory if it was removed.

        Raises:
            OSError: it cannot be created, or is not private to this user.
        """
        parent = self.path.parent
        parent.mkdir(mode=0o700, exist_ok=True)
        if not is_private(parent):
            raise PermissionError(f"{parent} is not private to this user")

    def bound(self) -> None:
        """Record the socket that was just bound."""
        self._inode = self._found()

    def is_ours(self) -> bool:
        """Whether the path still is this process's socket."""
        return self._inode is not None and self._found() == self._inode

    @property
    def missing(self) -> bool:
        """Whether nothing has the path."""
        return self._found() is None

    def remove(self) -> None:
        """Remove the socket if it is this process's."""
        if self.is_ours():
            with contextlib.suppress(OSError):
                self.path.unlink()

    def _found(self) -> int | None:
        try:
            return self.path.stat().st_ino
        except OSError:
            return None


def make_private(directory: Path, levels: int | None = None) -> None:
    """Create a directory and its missing parents with mode 0700.

    Args:
        directory: the directory.
        levels: most directories to create, this one included; None: any number.

    Raises:
        OSError: it cannot be created, or more levels are missing.
    """
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    if levels is not None and len(missing) > levels:
        raise FileNotFoundError(f"{missing[-2]} does not exist")
    for path in reversed(missing):
        path.mkdir(exist_ok=True, mode=0o700)


def is_private(directory: Path) -> bool:
    """Whether the directory belongs to this user and has no permissions for others; false for a link."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def sweep(directory: Path) -> None:
    """Remove the sockets (``*.sock``) in a directory that killed processes left."""
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
        except OSError:  # its queue is full, or permission is denied
            return False
    return False

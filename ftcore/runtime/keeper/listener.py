"""The listening socket of a keeper: made by its agent, or again by whichever of the two accepts when it was removed."""

import contextlib
import socket
from typing import Final

from ftcore.private import SocketPath
from ftcore.shm import messages

BACKLOG: Final = 128

KEEP_S: Final = 1.0
"""How often the process that accepts looks whether the socket is still there, in seconds."""


def listen(place: SocketPath) -> socket.socket:
    """Make the socket; what has its path is removed.

    Raises:
        OSError: it cannot be made.
    """
    place.prepare()
    with contextlib.suppress(FileNotFoundError):
        place.path.unlink()
    listener = messages.new_socket()
    try:
        listener.bind(str(place.path))
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    place.bound()
    return listener

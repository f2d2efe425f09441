"""Messages between torchrun's handler and its sidecar: JSON datagrams on a socket pair.

The sidecar reads its configuration from standard input, once. After that:

| torchrun sends | meaning |
|---|---|
| ``{"next": [failure, ...]}`` | waits in the rendezvous, no worker runs; failures of the last round |
| ``{"running": {local rank: pid}}`` | the workers of the round have started |
| ``{"unusable": reason}`` | the world's store cannot be reached; torchrun waits again |
| ``{"store": round, "port": n}`` or ``{"store": round, "error": text}`` | answers ``open`` |
| ``{"expired": 1}`` | no world was formed within ``timeout`` |
| ``{"done": 1}``, ``{"gave_up": reason, "failures": [...]}``, ``{"leaving": reason}`` | starts no more workers |
| ``{"close": 1}`` | the rendezvous was closed: end the job |

| the sidecar sends | meaning |
|---|---|
| ``{"world": {...}}`` | start the workers: ``round``, ranks, store, variables |
| ``{"restart": 1}`` | stop the workers and return to the rendezvous |
| ``{"open": round, "host": name}`` | serve a store |
| ``{"timeout": reason}`` | answers ``expired``, if torchrun should not wait longer |
| ``{"end": {"outcome", "exit_code", "reason"}}`` | the node has left the job; the sidecar ends now |

End of file means that the peer has ended. A failure is ``{"local_rank", "pid", "exitcode", "error_file"}``.
"""

import socket
from typing import Any

from ftcore.runtime.warm import protocol


def send(channel: socket.socket, message: dict[str, Any]) -> bool:
    """Send a message; False if the peer has ended or does not read."""
    try:
        protocol.send(channel, message)
    except OSError:
        return False
    return True


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None if the peer has ended. Raises ``BlockingIOError`` if the channel is non-blocking."""
    try:
        return protocol.receive(channel)[0]
    except BlockingIOError:
        raise
    except OSError:
        return None

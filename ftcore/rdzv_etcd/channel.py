"""What torchrun's handler and its sidecar say to each other: JSON datagrams on a socket pair.

The sidecar is given its configuration on standard input, once; after that:

| torchrun says | meaning |
|---|---|
| ``{"next": [failure, ...]}`` | waits in the rendezvous; none of its workers runs. How those of the last round ended |
| ``{"running": {local rank: pid}}`` | the workers of the round have begun |
| ``{"unusable": reason}`` | the world cannot be entered (its store is not reached); waits again |
| ``{"store": round, "port": n}`` or ``{"store": round, "error": text}`` | answers ``open`` |
| ``{"expired": 1}`` | no world came within ``timeout`` |
| ``{"done": 1}``, ``{"gave_up": reason, "failures": [...]}``, ``{"leaving": reason}`` | starts no more workers |
| ``{"close": 1}`` | somebody closed the rendezvous: the job is to end |

| the sidecar says | meaning |
|---|---|
| ``{"world": {...}}`` | start the workers: ``round``, ranks, store, variables |
| ``{"restart": 1}`` | stop the workers and come to the rendezvous |
| ``{"open": round, "host": name}`` | serve a store |
| ``{"timeout": reason}`` | answers ``expired``, if there is no reason to wait on |
| ``{"end": {"outcome", "exit_code", "reason"}}`` | takes no further part; it ends now |

End of file says that the other is gone. A failure is ``{"local_rank", "pid", "exitcode", "error_file"}``.
"""

import socket
from typing import Any

from ftcore.runtime.warm import protocol


def send(channel: socket.socket, message: dict[str, Any]) -> bool:
    """Send; False if the other is gone or does not read."""
    try:
        protocol.send(channel, message)
    except OSError:
        return False
    return True


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next message; None: the other is gone. Raises ``BlockingIOError`` if the channel does not block."""
    try:
        return protocol.receive(channel)[0]
    except BlockingIOError:
        raise
    except OSError:
        return None

"""NIC to NIC: how fast plain TCP carries data from one node of a group to the next. Without torch.

Each node sends to the next one of its group and receives from the one before, all at once; who receives measures. The
best of many short spans counts: what else ran on a node meanwhile says nothing of its network.

House rule: never a reason to give a node up. A firewall may close a port that NCCL never needs; so what does not pass
is a warning, and the exchange of data by the training's own backend is what decides.
"""

import os
import socket
import threading
import time
from typing import Any, Final

from ftcore.runtime.checks.protocol import NIC_TO_NIC, DeviceSpec, Said

SEND_S: Final = 0.5
"""How long is sent; less than the exchange itself takes, and enough for TCP to find its speed."""

WHOLE_S: Final = 5.0
"""How long connecting, or receiving what was sent, may take."""

SPAN_S: Final = 0.05
CHUNK: Final = 1 << 18
_TOKEN_BYTES: Final = 16


def measure(store: Any, spec: DeviceSpec) -> Said:
    """Exchange data with the neighbours in the group; all of them must have been met at the store.

    Args:
        store: set, get and wait of the place where the group meets.
        spec: the group, and this node's address.
    """
    if not spec.address:
        return Said(name=NIC_TO_NIC, verdict="unavailable", detail="this node told no address")
    place = spec.group.index(spec.node)
    into, source = spec.group[(place + 1) % len(spec.group)], spec.group[place - 1]
    try:
        family = socket.getaddrinfo(spec.address, None, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server(("", 0), family=family) as server:
            token = os.urandom(_TOKEN_BYTES)
            store.set(f"nic/{spec.node}", f"{server.getsockname()[1]} {token.hex()} {spec.address}")
            received: list[float] = []
            receiver = threading.Thread(target=_receive, args=(server, token, received), daemon=True)
            receiver.start()
            port, asked, host = store.get(f"nic/{into}").decode().split(" ", 2)
            _send(host, int(port), bytes.fromhex(asked))
            receiver.join(2 * WHOLE_S)
    except Exception as error:
        return Said(name=NIC_TO_NIC, verdict="warned", detail=f"to {into}: {type(error).__name__}: {error}")
    if not received:
        return Said(name=NIC_TO_NIC, verdict="warned", detail=f"nothing came from {source} by TCP")
    rate = received[0]
    return Said(name=NIC_TO_NIC, verdict="passed", values={"GBps": round(rate / 1e9, 4)}, seconds=1e9 / rate)


def _send(host: str, port: int, token: bytes) -> None:
    with socket.create_connection((host, port), timeout=WHOLE_S) as out:
        out.sendall(token)
        chunk, end = bytes(CHUNK), time.monotonic() + SEND_S
        while time.monotonic() < end:
            out.sendall(chunk)
        out.shutdown(socket.SHUT_WR)
        out.recv(1)  # the receiver has all of it, or has enough


def _receive(server: socket.socket, token: bytes, found: list[float]) -> None:
    """Take the data of whoever shows the token; the best rate of any span, in bytes per second, goes to ``found``."""
    end = time.monotonic() + WHOLE_S
    try:
        while (left := end - time.monotonic()) > 0:
            server.settimeout(left)
            peer, _ = server.accept()
            with peer:
                peer.settimeout(WHOLE_S)
                if peer.recv(len(token), socket.MSG_WAITALL) == token:
                    found.append(_best_rate(peer))
                    return
    except OSError:
        return  # nothing came: who asked sees that nothing was found


def _best_rate(peer: socket.socket) -> float:
    room = memoryview(bytearray(1 << 20))
    best, got, whole = 0.0, 0, 0
    begun = first = time.perf_counter()
    while count := peer.recv_into(room):
        got, whole, now = got + count, whole + count, time.perf_counter()
        if now - begun >= SPAN_S:
            best, got, begun = max(best, got / (now - begun)), 0, now
        if now - first > WHOLE_S:
            break
    return best or whole / max(time.perf_counter() - first, 1e-9)

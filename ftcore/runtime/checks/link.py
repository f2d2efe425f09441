"""NIC to NIC: throughput of plain TCP from each node of a group to the next. Without torch.

Each node sends to the next node of its group and receives from the previous one, all at the same time; the receiver
measures. The best of many short spans counts, so that other load on a node does not affect the result.

House rule: never a reason to exclude a node. A firewall may close a port that NCCL never needs, so a failure is a
warning; the exchange by the training's own backend decides.
"""

import os
import socket
import threading
import time
from typing import Any, Final

from ftcore.runtime.checks.protocol import NIC_TO_NIC, CheckReport, DeviceSpec

SEND_S: Final = 0.5
"""Duration of sending: shorter than the exchange itself, and long enough for TCP to reach its full rate."""

TIMEOUT_S: Final = 5.0
"""Timeout of connecting, and of receiving."""

SPAN_S: Final = 0.05
CHUNK: Final = 1 << 18
_TOKEN_BYTES: Final = 16


def measure(store: Any, spec: DeviceSpec) -> CheckReport:
    """Exchange data with the neighbours in the group; all nodes of the group must be at the store already.

    Args:
        store: the group's store.
        spec: the group, and this node's address.
    """
    if not spec.address:
        return CheckReport(name=NIC_TO_NIC, verdict="unavailable", detail="this node has no address for other nodes")
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
            receiver.join(2 * TIMEOUT_S)
    except Exception as error:
        return CheckReport(name=NIC_TO_NIC, verdict="warned", detail=f"to {into}: {type(error).__name__}: {error}")
    if not received:
        return CheckReport(name=NIC_TO_NIC, verdict="warned", detail=f"received nothing from {source} by TCP")
    rate = received[0]
    return CheckReport(name=NIC_TO_NIC, verdict="passed", values={"GBps": round(rate / 1e9, 4)}, seconds=1e9 / rate)


def _send(host: str, port: int, token: bytes) -> None:
    with socket.create_connection((host, port), timeout=TIMEOUT_S) as out:
        out.sendall(token)
        chunk, end = bytes(CHUNK), time.monotonic() + SEND_S
        while time.monotonic() < end:
            out.sendall(chunk)
        out.shutdown(socket.SHUT_WR)
        out.recv(1)  # returns when the receiver has closed the connection


def _receive(server: socket.socket, token: bytes, found: list[float]) -> None:
    """Receive from the peer that sends the token; append the best rate of any span, in bytes per second."""
    end = time.monotonic() + TIMEOUT_S
    try:
        while (left := end - time.monotonic()) > 0:
            server.settimeout(left)
            peer, _ = server.accept()
            with peer:
                peer.settimeout(TIMEOUT_S)
                if peer.recv(len(token), socket.MSG_WAITALL) == token:
                    found.append(_best_rate(peer))
                    return
    except OSError:
        return  # the caller reports that nothing was received


def _best_rate(peer: socket.socket) -> float:
    room = memoryview(bytearray(1 << 20))
    best, got, whole = 0.0, 0, 0
    begun = first = time.perf_counter()
    while count := peer.recv_into(room):
        got, whole, now = got + count, whole + count, time.perf_counter()
        if now - begun >= SPAN_S:
            best, got, begun = max(best, got / (now - begun)), 0, now
        if now - first > TIMEOUT_S:
            break
    return best or whole / max(time.perf_counter() - first, 1e-9)

"""The protocol in which keepers copy shards: TCP, one connection per shard.

    sender                                      receiver
    {protocol, job, log, node, nonce}     ->
                                          <-    {node, nonce, proof}
    {proof}, then
    {local_rank, round, step, index, data} ->
                                          <-    {} or {error}
    index and data, then {crc} or {error} ->
                                          <-    {} or {error}

``proof`` is an HMAC with the job's token over both nonces, the job, the log and the names of both nodes; the receiver
proves itself first. A message is a length (4 bytes, big-endian) and JSON. ``index`` and ``data`` are numbers of bytes.
With certificates, TLS carries all of it.

House rules: blocking calls, for threads; the socket has a timeout for each wait. Whatever the other side
does wrong raises ``CopyFailed``.
"""

import contextlib
import hmac
import json
import secrets
import socket
import ssl
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import attrs

from ftcore.checkpoint.bandwidth import BandwidthLimit
from ftcore.runtime.keeper.config import BuddyAddress, CopyAccess

PROTOCOL: Final = 1
MESSAGE_BYTES_MAX: Final = 4096
CHUNK_BYTES: Final = 1 << 20
"""Data that is sent or received at once, at most."""

_LENGTH: Final = struct.Struct(">I")
_SENDER, _RECEIVER = "sender", "receiver"


class CopyFailed(Exception):
    """A copy was not made; the text says why."""


@attrs.frozen(kw_only=True)
class CopyOwner:
    """Whose shards are copied.

    Args:
        job: the job's name.
        log: the identity of its log.
        node: this node.
    """

    job: str
    log: str
    node: str


@attrs.frozen(kw_only=True)
class CopyOffer:
    """The shard of a copy.

    Args:
        local_rank: the local rank that staged it.
        round: the round in which it was staged.
        step: its step.
        index: bytes of its index.
        data: bytes of its data.
    """

    local_rank: int
    round: int
    step: int
    index: int
    data: int


# -- connections


@contextlib.contextmanager
def connected(buddy: BuddyAddress, access: CopyAccess, timeout_s: float) -> Iterator[socket.socket]:
    """Connect to a keeper.

    Args:
        buddy: the keeper.
        access: certificates.
        timeout_s: timeout of each call, in seconds.

    Raises:
        CopyFailed: it cannot be reached.
    """
    with _failures():
        channel = socket.create_connection((buddy.address, buddy.port), timeout_s)
    try:
        with _failures():
            if access.ca:
                context = ssl.create_default_context(cafile=access.ca)
                if access.cert:
                    context.load_cert_chain(access.cert, access.key)
                channel = context.wrap_socket(channel, server_hostname=access.name or buddy.address)
        yield channel
    finally:
        channel.close()


@contextlib.contextmanager
def accepted(channel: socket.socket, access: CopyAccess, timeout_s: float) -> Iterator[socket.socket]:
    """Serve a keeper that has connected; arguments and errors as for ``connected``."""
    try:
        channel.settimeout(timeout_s)
        with _failures():
            if access.ca:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                context.load_cert_chain(access.cert, access.key)
                context.load_verify_locations(access.ca)
                context.verify_mode = ssl.CERT_REQUIRED if access.mutual else ssl.CERT_NONE
                channel = context.wrap_socket(channel, server_side=True)
        yield channel
    finally:
        channel.close()


@contextlib.contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise CopyFailed("it did not answer in time") from error
    except (OSError, ValueError) as error:  # certificates that cannot be used as well
        raise CopyFailed(str(error)) from error


# -- handshake


def greet(channel: socket.socket, me: CopyOwner, node: str, token: str) -> None:
    """Authenticate as the sender.

    Args:
        channel: the connection.
        me: this node and its job.
        node: the node of the other keeper.
        token: the job's token; empty: none is required.

    Raises:
        CopyFailed: it is another keeper, or has another token.
    """
    nonce = secrets.token_hex(16)
    _send(channel, {"protocol": PROTOCOL, "job": me.job, "log": me.log, "node": me.node, "nonce": nonce})
    answer = _answer(channel)
    theirs = _text(answer, "nonce")
    found = _text(answer, "node")
    if found != node:
        raise CopyFailed(f"it is the keeper of node {found!r}")
    about = (me.job, me.log, me.node, node, nonce, theirs)
    if not _is_proof(answer, token, _RECEIVER, about):
        raise CopyFailed("it does not know the job's token")
    _send(channel, {"proof": _proof(token, _SENDER, about)})


def receive_greeting(channel: socket.socket, me: CopyOwner, is_ward: Callable[[str], bool], token: str) -> str:
    """Authenticate as the receiver.

    Args:
        channel: the connection.
        me: this node and its job.
        is_ward: whether copies of a node are taken.
        token: the job's token; empty: none is required.

    Returns:
        The sender's node.

    Raises:
        CopyFailed: the sender is refused; it has received the reason.
    """
    hello = _receive(channel)
    if hello.get("protocol") != PROTOCOL:
        raise refused(channel, f"this keeper speaks version {PROTOCOL} of the protocol of copies")
    if (hello.get("job"), hello.get("log")) != (me.job, me.log):
        raise refused(channel, "this keeper belongs to another job")
    node, nonce, ours = _text(hello, "node"), _text(hello, "nonce"), secrets.token_hex(16)
    about = (me.job, me.log, node, me.node, nonce, ours)
    _send(channel, {"node": me.node, "nonce": ours, "proof": _proof(token, _RECEIVER, about)})
    if not _is_proof(_receive(channel), token, _SENDER, about):
        raise refused(channel, "wrong token")
    if not is_ward(node):
        raise refused(channel, f"this node takes no copies of node {node!r} now")
    return node


def _proof(token: str, side: str, about: tuple[str, ...]) -> str:
    return hmac.new(token.encode(), json.dumps([PROTOCOL, side, *about]).encode(), "sha256").hexdigest()


def _is_proof(message: dict[str, Any], token: str, side: str, about: tuple[str, ...]) -> bool:
    return hmac.compare_digest(_proof(token, side, about).encode(), _text(message, "proof").encode())


# -- copies


def send_copy(
    channel: socket.socket,
    offer: CopyOffer,
    index: bytes,
    data: memoryview,
    is_valid: Callable[[], bool],
    limit: BandwidthLimit,
) -> None:
    """Send a shard.

    Args:
        channel: the connection, after ``greet``.
        offer: what it is.
        index: its index.
        data: its data.
        is_valid: whether nothing has been overwritten so far.
        limit: delays the data.

    Raises:
        CopyFailed: the receiver does not have it now.
    """
    _send(channel, attrs.asdict(offer))
    _answer(channel)
    crc = zlib.crc32(index)
    with _failures():
        channel.sendall(index)
    for chunk in limit.paced(_chunks(data, limit.unit(CHUNK_BYTES))):
        crc = zlib.crc32(chunk, crc)
        with _failures():
            channel.sendall(chunk)
    if not is_valid():
        _send(channel, {"error": "it was overwritten"})
        raise CopyFailed("a newer step overwrote it while it was sent")
    _send(channel, {"crc": crc})
    _answer(channel)


def receive_offer(channel: socket.socket) -> CopyOffer:
    """Receive what the sender wants to copy; answer with ``receive_copy`` or ``refused``.

    Raises:
        CopyFailed: the connection has ended.
    """
    message = _receive(channel)
    numbers = {name: message.get(name) for name in CopyOffer.__annotations__}
    if any(type(number) is not int or number < 0 for number in numbers.values()):
        raise refused(channel, "a shard was described wrongly")
    return CopyOffer(**numbers)  # type: ignore[arg-type]


def receive_copy(channel: socket.socket, index: memoryview, data: memoryview) -> None:
    """Receive a shard into memory, and compare its checksum; then call ``confirm``.

    Raises:
        CopyFailed: it is not complete.
    """
    _send(channel, {})
    crc = 0
    for part in (index, data):
        at = 0
        while at < len(part):
            with _failures():
                count = channel.recv_into(part[at : at + CHUNK_BYTES])
            if not count:
                raise CopyFailed("the connection has ended")
            crc = zlib.crc32(part[at : at + count], crc)
            at += count
    if _answer(channel).get("crc") != crc:
        raise refused(channel, "it does not have its checksum")


def confirm(channel: socket.socket) -> None:
    """Tell the sender that its copy is complete."""
    with contextlib.suppress(CopyFailed):
        _send(channel, {})


def refused(channel: socket.socket, why: str) -> CopyFailed:
    """Tell the sender why no copy is taken; returns the error to raise."""
    with contextlib.suppress(CopyFailed):
        _send(channel, {"error": why})
    return CopyFailed(why)


def _chunks(data: memoryview, unit: int) -> Iterator[memoryview]:
    for at in range(0, len(data), unit):
        yield data[at : at + unit]


# -- messages


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    with _failures():
        channel.sendall(_LENGTH.pack(len(body)) + body)


def _receive(channel: socket.socket) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(_exactly(channel, _LENGTH.size))
    if length > MESSAGE_BYTES_MAX:
        raise CopyFailed("it is no keeper of this version")
    with _failures():
        message = json.loads(_exactly(channel, length))
    if not isinstance(message, dict):
        raise CopyFailed("it is no keeper of this version")
    return message


def _answer(channel: socket.socket) -> dict[str, Any]:
    message = _receive(channel)
    if "error" in message:
        raise CopyFailed(str(message["error"]))
    return message


def _text(message: dict[str, Any], name: str) -> str:
    found = message.get(name)
    if not isinstance(found, str):
        raise CopyFailed("it is no keeper of this version")
    return found


def _exactly(channel: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count:
        with _failures():
            part = channel.recv(count - len(found))
        if not part:
            raise CopyFailed("the connection has ended")
        found += part
    return found

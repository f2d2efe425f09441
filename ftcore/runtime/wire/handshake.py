"""The handshake of a stream: caller and master prove that they know the job's token, without sending it.

    caller                               master
    AuthRequest(job, nonce a)            ->
                                   <-    Challenge(nonce m, proof of the token over a and m)
    AuthProof(Hello or Command, proof ->
      of the token over m, a and body)
                                   <-    Welcome, CommandReply, ...

A caller without a token sends ``Hello`` or ``Command`` at once. The master proves itself first, so that the command
line of a job and operators' commands are sent to the job's master only. A proof is valid for one stream: a replayed
handshake answers another stream's challenge and is refused. Frames after the handshake are protected by the transport:
a socket that is private to the user, TLS, or a trusted network.

House rules: no I/O here, except in ``open_stream``. Every rejection has a kind (``KINDS``) and a reason for the caller,
and the master records it. During the handshake an oversized frame is not decoded, and the body of a proof is decoded
only after the proof is verified.
"""

import hmac
import secrets
from typing import Final

import attrs
import msgspec

from ftcore.ports import Stream
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.security import Security
from ftcore.version import __version__

REQUEST_BYTES_MAX: Final = 16 << 10
"""Limit of the first frame of an unauthenticated caller, if a token is required."""

HANDSHAKE_BYTES_MAX: Final = 1 << 20
"""Limit of a handshake frame, including the proof: a submission must fit into one event of the log."""

NAME_CHARS_MAX: Final = 100
"""Limit of names; longer claims of refused callers are cut."""

TEXT_CHARS_MAX: Final = 4000
"""Limit of texts, such as an operator's reason."""

Request = frames.Command | frames.Inquiry | frames.Standby
"""The only frame of a stream of an operator or a standby."""

MASTER, CALLER = "master", "caller"

KINDS: Final = {
    "token": "the caller does not know the job's token",
    "replay": "the caller replayed the handshake of another stream",
    "version": "the caller uses another version of the protocol",
    "job": "the caller belongs to another job",
    "spec": "the caller was started with another job specification",
    "name": "a node with that name is a member already",
    "unreadable": "the frame cannot be decoded",
}
"""Kinds of refusals, as in ``caller.refused``."""


@attrs.frozen(kw_only=True)
class Rejection:
    """The refusal of a caller.

    Args:
        kind: one of ``KINDS``.
        reason: the reason, for the caller.
        name: the node or operator that the caller claims to be.
        version: the caller's version of ftcore, as claimed.
    """

    kind: str
    reason: str
    name: str = ""
    version: str = ""


@attrs.frozen
class Admitted:
    """An authenticated caller's first frame."""

    frame: frames.Hello | Request


@attrs.frozen
class HandshakeReply:
    """A master's answer to a caller's first frame.

    Args:
        frame: the answer; None: the master closed the stream without an answer.
        proven: the master has proved that it knows the token, or no token is used.
    """

    frame: frames.FromMaster | None
    proven: bool


TOKEN_HINT: Final = "set FTCORE_TOKEN_FILE (or FTCORE_TOKEN) to the same secret for every process of the job"
"""Advice for a caller whose token differs from the master's."""


def nonce() -> str:
    """A random nonce."""
    return secrets.token_hex(16)


def proof(token: str, side: str, job: str, theirs: str, ours: str, body: bytes = b"") -> str:
    """An HMAC that proves knowledge of the token, for one peer and one stream.

    Args:
        token: the token.
        side: ``MASTER`` or ``CALLER``, so that a proof of one side is not valid for the other.
        job: the job.
        theirs: the peer's nonce, which prevents replay.
        ours: our own nonce.
        body: the frame that is authenticated.
    """
    message = msgspec.json.encode((frames.PROTOCOL, side, job, theirs, ours))
    return hmac.new(token.encode(), message + b"\n" + body, "sha256").hexdigest()


class Handshake:
    """The master's side of one stream.

    Args:
        token: the job's token; empty: none is required.
        job: the job.
    """

    def __init__(self, token: str, job: str) -> None:
        self._token = token
        self._job = job
        self._nonce = nonce()
        self._request: frames.AuthRequest | None = None

    def receive(self, body: bytes) -> frames.Challenge | Admitted | Rejection:
        """Process a frame of the caller. After a ``Challenge`` the caller sends another frame."""
        if self._token and self._request is None and len(body) > REQUEST_BYTES_MAX:
            return _token_required(_claims(body[:REQUEST_BYTES_MAX]))
        if len(body) > HANDSHAKE_BYTES_MAX:
            return self._rejection("unreadable", f"the first frame is longer than {HANDSHAKE_BYTES_MAX} bytes")
        if self._request is not None:
            return self._receive_proof(body, self._request)
        try:
            frame = frames.decode_from_agent(body)
        except frames.UNREADABLE:
            return self._unreadable(body)
        if isinstance(frame, frames.AuthRequest):
            return self._receive_request(frame)
        if isinstance(frame, frames.Hello | Request):
            if self._token:
                return _token_required(_claims(body))
            return self._admit(frame)
        return self._rejection("unreadable", f"a {type(frame).__name__} cannot open a stream")

    def _receive_proof(self, body: bytes, request: frames.AuthRequest) -> Admitted | Rejection:
        try:
            frame = frames.decode_proof(body)
        except frames.UNREADABLE:
            return self._rejection("unreadable", "the frame is no answer to the challenge")
        if isinstance(frame, frames.AuthReject):
            return self._rejection("token", f"wrong token: {TOKEN_HINT}")
        return self._verify(frame, request)

    def _receive_request(self, request: frames.AuthRequest) -> frames.Challenge | Rejection:
        if request.protocol != frames.PROTOCOL:
            return version_mismatch(request.protocol, request.version, request.name)
        self._request = request
        if not self._token:
            return self._rejection(
                "token", f"the master of {self._job} has no token: unset it here, or set it for every process"
            )
        if request.job != self._job:
            return self._rejection("job", f"this master leads {self._job}, not {request.job[:NAME_CHARS_MAX]}")
        expected = proof(self._token, MASTER, self._job, request.nonce, self._nonce)
        return frames.Challenge(nonce=self._nonce, proof=expected)

    def _verify(self, proven: frames.AuthProof, request: frames.AuthRequest) -> Admitted | Rejection:
        if proven.nonce != self._nonce:
            return self._rejection("replay", "the frame answers the challenge of another stream")
        body = bytes(proven.body)
        expected = proof(self._token, CALLER, self._job, self._nonce, request.nonce, body)
        if not hmac.compare_digest(expected.encode(), proven.proof.encode()):
            return self._rejection("token", f"wrong token: {TOKEN_HINT}")
        try:
            frame = frames.decode_from_agent(body)
        except frames.UNREADABLE:
            return self._unreadable(body)
        if isinstance(frame, frames.Hello | Request):
            return self._admit(frame)
        return self._rejection("unreadable", f"a {type(frame).__name__} cannot open a stream")

    def _admit(self, frame: frames.Hello | Request) -> Admitted | Rejection:
        """Check the lengths of names and texts, because they are recorded in the log."""
        names, texts, name = [frame.job], [""], ""
        if isinstance(frame, frames.Hello):
            name = frame.node
            names += [frame.node, frame.incarnation, frame.version]
        elif isinstance(frame, frames.Command):
            name = frame.who
            names += [frame.node, frame.command]
            texts += [frame.who, frame.why]
        elif isinstance(frame, frames.Standby):
            texts.append(frame.address)
        for text, limit in ((max(names, key=len), NAME_CHARS_MAX), (max(texts, key=len), TEXT_CHARS_MAX)):
            if len(text) > limit:
                reason = f"{text[:NAME_CHARS_MAX]}... has {len(text)} characters; the limit is {limit}"
                return Rejection(kind="unreadable", reason=reason, name=name[:NAME_CHARS_MAX])
        return Admitted(frame)

    def _rejection(self, kind: str, reason: str) -> Rejection:
        request = self._request
        return Rejection(
            kind=kind,
            reason=reason,
            name=request.name[:NAME_CHARS_MAX] if request is not None else "",
            version=request.version[:NAME_CHARS_MAX] if request is not None else "",
        )

    def _unreadable(self, body: bytes) -> Rejection:
        claims = _claims(body)
        if claims.protocol not in (0, frames.PROTOCOL):
            return version_mismatch(claims.protocol, claims.version, claims.caller)
        return self._rejection("unreadable", "this is not a frame of ftcore")


class CallerHandshake:
    """The caller's side of one stream.

    Args:
        token: the job's token, not empty.
        job: the job.
        name: the caller's node or operator, for the record.
    """

    def __init__(self, token: str, job: str, name: str) -> None:
        self._token = token
        self._job = job
        self._nonce = nonce()
        self.request = frames.AuthRequest(
            protocol=frames.PROTOCOL, version=__version__, job=job, nonce=self._nonce, name=name[:NAME_CHARS_MAX]
        )

    def answer(self, challenge: frames.Challenge, body: bytes) -> frames.AuthProof | None:
        """The second frame; None: the master does not know the token and must get ``AuthReject``."""
        expected = proof(self._token, MASTER, self._job, self._nonce, challenge.nonce)
        if not hmac.compare_digest(expected.encode(), challenge.proof.encode()):
            return None
        return frames.AuthProof(
            nonce=challenge.nonce,
            proof=proof(self._token, CALLER, self._job, challenge.nonce, self._nonce, body),
            body=msgspec.Raw(body),
        )


class _Claims(msgspec.Struct, frozen=True):
    protocol: int = 0
    version: str = ""
    node: str = ""
    who: str = ""

    @property
    def caller(self) -> str:
        """The operator, or the node if there is none."""
        return self.who or self.node


def _claims(body: bytes) -> _Claims:
    """The sender's fields in a frame that could not be decoded, if any."""
    try:
        return msgspec.json.decode(body, type=_Claims)
    except frames.UNREADABLE:
        return _Claims()


def version_mismatch(protocol: int, version: str, name: str) -> Rejection:
    """The refusal of a caller with another protocol version."""
    return Rejection(
        kind="version",
        reason=f"this side uses protocol {protocol} (ftcore {version[:NAME_CHARS_MAX]}), the master "
        f"{frames.PROTOCOL} (ftcore {__version__}): install the same version on every node",
        name=name[:NAME_CHARS_MAX],
        version=version[:NAME_CHARS_MAX],
    )


def _token_required(claims: _Claims) -> Rejection:
    if claims.protocol not in (0, frames.PROTOCOL):
        return version_mismatch(claims.protocol, claims.version, claims.caller)
    return Rejection(
        kind="token",
        reason=f"this job requires a token: {TOKEN_HINT}",
        name=claims.caller[:NAME_CHARS_MAX],
        version=claims.version[:NAME_CHARS_MAX],
    )


async def open_stream(
    stream: Stream, security: Security, job: str, name: str, first: frames.Hello | Request
) -> HandshakeReply:
    """Authenticate, send the first frame, and read the answer.

    Args:
        stream: a new stream to a master.
        security: credentials, with the job's token.
        job: the job.
        name: the caller's node or operator, for the record.
        first: the first frame.

    Raises:
        msgspec.MsgspecError: the master's answer is not a frame.
        StreamBroken: the stream broke.
    """
    body = frames.encode(first)
    if not security.token:
        await stream.write(body)
        return HandshakeReply(_frame(await stream.read()), proven=True)
    caller = CallerHandshake(security.token, job, name)
    await stream.write(frames.encode(caller.request))
    found = _frame(await stream.read())
    if not isinstance(found, frames.Challenge):
        return HandshakeReply(found, proven=False)
    proven = caller.answer(found, body)
    if proven is None:
        await stream.write(frames.encode(frames.AuthReject()))
        await stream.read()  # the master must receive it before the stream is closed
        return HandshakeReply(
            frames.JoinRefused(f"the master of {job} has another token: {TOKEN_HINT}", rejoin=False), proven=False
        )
    await stream.write(frames.encode(proven))
    return HandshakeReply(_frame(await stream.read()), proven=True)


def _frame(body: bytes | None) -> frames.FromMaster | None:
    return frames.decode_from_master(body) if body is not None else None

"""How a stream is opened: who calls shows that it knows the job's token, and so does the master, and nobody says it.

    caller                               master
    AuthRequest(job, nonce a)            ->
                                   <-    Challenge(nonce m, proof of the token over a and m)
    AuthProof(Hello or Command, proof ->
      of the token over m, a and body)
                                   <-    Welcome, CommandReply, ...

A caller without a token says ``Hello`` or ``Command`` at once. The master proves itself first: to somebody else neither
the command line of a job nor an operator's word is told. A proof holds for one stream: a recorded opening that is
played again answers another stream's challenge, and is refused as such. What follows the opening is guarded by the
transport: a socket that is private to the user, TLS, or a network that is trusted.

House rules: what is decided here waits for nothing; ``call`` alone reads and writes. What is refused has a kind
(``KINDS``), a sentence for the caller, and is told to the master, who records it. Before an opening is through, a frame
is small or is not looked at, and what is said with a proof is decoded only once the proof is good.
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
"""Bound of what a stranger may say first where a token is asked for."""

OPENING_BYTES_MAX: Final = 1 << 20
"""Bound of a caller's first word, with its proof if it has one: a submission must fit into one event of the log."""

NAME_CHARS_MAX: Final = 100
"""So much of a stranger's claims is kept, and no name of one that is let in is longer."""

TEXT_CHARS_MAX: Final = 4000
"""No reason that an operator gives is longer."""

Word = frames.Command | frames.Inquiry | frames.Standby
"""What a stream may begin with that is no agent's: an operator's, or a standby's."""

MASTER, CALLER = "master", "caller"

KINDS: Final = {
    "token": "it does not know the job's token",
    "replay": "it played the opening of another stream again",
    "version": "it speaks another version of the protocol",
    "job": "it wants another job",
    "spec": "it was asked to run something else than the job",
    "name": "a node of that name takes part already",
    "unreadable": "what it said cannot be read",
}
"""Why a caller is refused, as in ``caller.refused``."""


@attrs.frozen(kw_only=True)
class Turned:
    """A caller is turned away.

    Args:
        kind: one of ``KINDS``.
        reason: for the caller.
        name: the node or person that it says it is.
        version: its ftcore, as it says.
    """

    kind: str
    reason: str
    name: str = ""
    version: str = ""


@attrs.frozen
class Admitted:
    """A caller is let in, with its first word."""

    frame: frames.Hello | Word


@attrs.frozen
class Answer:
    """What a master says to a caller's first word.

    Args:
        frame: its answer; None: it closed the stream without a word.
        proven: it has shown that it knows the token, or none is asked for.
    """

    frame: frames.FromMaster | None
    proven: bool


WHERE: Final = "set FTCORE_TOKEN_FILE (or FTCORE_TOKEN) to the same secret for every process of the job"
"""What a caller whose token is not the master's should do."""


def nonce() -> str:
    """A number used once."""
    return secrets.token_hex(16)


def proof(token: str, side: str, job: str, theirs: str, ours: str, body: bytes = b"") -> str:
    """What only who knows the token can say, to this one peer, in this one stream.

    Args:
        token: the token.
        side: ``MASTER`` or ``CALLER``, so that neither's proof is good for the other.
        job: the job.
        theirs: the nonce of the peer, which makes it fresh.
        ours: our own nonce.
        body: what is said with it.
    """
    said = msgspec.json.encode((frames.PROTOCOL, side, job, theirs, ours))
    return hmac.new(token.encode(), said + b"\n" + body, "sha256").hexdigest()


class Opening:
    """The master's side of one stream.

    Args:
        token: the job's token; empty: none is asked for.
        job: the job.
    """

    def __init__(self, token: str, job: str) -> None:
        self._token = token
        self._job = job
        self._nonce = nonce()
        self._knock: frames.AuthRequest | None = None

    def take(self, body: bytes) -> frames.Challenge | Admitted | Turned:
        """What follows from a frame of the caller; after a ``Challenge`` comes another one."""
        if self._token and self._knock is None and len(body) > REQUEST_BYTES_MAX:
            return _asks_for_token(_claims(body[:REQUEST_BYTES_MAX]))
        if len(body) > OPENING_BYTES_MAX:
            return self._turned("unreadable", f"more than {OPENING_BYTES_MAX} bytes open no stream")
        if self._knock is not None:
            return self._answered(body, self._knock)
        try:
            frame = frames.decode_from_agent(body)
        except frames.UNREADABLE:
            return self._misread(body)
        if isinstance(frame, frames.AuthRequest):
            return self._requested(frame)
        if isinstance(frame, frames.Hello | Word):
            if self._token:
                return _asks_for_token(_claims(body))
            return self._admitted(frame)
        return self._turned("unreadable", f"a {type(frame).__name__} opens no stream")

    def _answered(self, body: bytes, knock: frames.AuthRequest) -> Admitted | Turned:
        try:
            frame = frames.decode_proof(body)
        except frames.UNREADABLE:
            return self._turned("unreadable", "this answers no challenge")
        if isinstance(frame, frames.AuthReject):
            return self._turned("token", f"wrong token: {WHERE}")
        return self._proven(frame, knock)

    def _requested(self, knock: frames.AuthRequest) -> frames.Challenge | Turned:
        if knock.protocol != frames.PROTOCOL:
            return other_version(knock.protocol, knock.version, knock.name)
        self._knock = knock
        if not self._token:
            return self._turned("token", f"the master of {self._job} has no token; leave it out, or give it to all")
        if knock.job != self._job:
            return self._turned("job", f"this master leads {self._job}, not {knock.job[:NAME_CHARS_MAX]}")
        told = proof(self._token, MASTER, self._job, knock.nonce, self._nonce)
        return frames.Challenge(nonce=self._nonce, proof=told)

    def _proven(self, sealed: frames.AuthProof, knock: frames.AuthRequest) -> Admitted | Turned:
        if sealed.nonce != self._nonce:
            return self._turned("replay", "this answers the challenge of another stream")
        body = bytes(sealed.body)
        told = proof(self._token, CALLER, self._job, self._nonce, knock.nonce, body)
        if not hmac.compare_digest(told.encode(), sealed.proof.encode()):
            return self._turned("token", f"wrong token: {WHERE}")
        try:
            frame = frames.decode_from_agent(body)
        except frames.UNREADABLE:
            return self._misread(body)
        if isinstance(frame, frames.Hello | Word):
            return self._admitted(frame)
        return self._turned("unreadable", f"a {type(frame).__name__} opens no stream")

    def _admitted(self, frame: frames.Hello | Word) -> Admitted | Turned:
        """What is longer than any name goes no further: what is told of a caller, and by an operator, is recorded."""
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
        for said, most in ((max(names, key=len), NAME_CHARS_MAX), (max(texts, key=len), TEXT_CHARS_MAX)):
            if len(said) > most:
                reason = f"{said[:NAME_CHARS_MAX]}... has {len(said)} characters; {most} are taken"
                return Turned(kind="unreadable", reason=reason, name=name[:NAME_CHARS_MAX])
        return Admitted(frame)

    def _turned(self, kind: str, reason: str) -> Turned:
        knock = self._knock
        return Turned(
            kind=kind,
            reason=reason,
            name=knock.name[:NAME_CHARS_MAX] if knock is not None else "",
            version=knock.version[:NAME_CHARS_MAX] if knock is not None else "",
        )

    def _misread(self, body: bytes) -> Turned:
        claims = _claims(body)
        if claims.protocol not in (0, frames.PROTOCOL):
            return other_version(claims.protocol, claims.version, claims.caller)
        return self._turned("unreadable", "this is no frame of ftcore's")


class Call:
    """The caller's side of one stream.

    Args:
        token: the job's token, not empty.
        job: the job.
        name: who calls.
    """

    def __init__(self, token: str, job: str, name: str) -> None:
        self._token = token
        self._job = job
        self._nonce = nonce()
        self.knock = frames.AuthRequest(
            protocol=frames.PROTOCOL, version=__version__, job=job, nonce=self._nonce, name=name[:NAME_CHARS_MAX]
        )

    def answer(self, challenge: frames.Challenge, body: bytes) -> frames.AuthProof | None:
        """The second frame; None: the master does not know the token, and is told ``AuthReject``."""
        told = proof(self._token, MASTER, self._job, self._nonce, challenge.nonce)
        if not hmac.compare_digest(told.encode(), challenge.proof.encode()):
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
        """Who calls: an operator, who may name a node, or a node."""
        return self.who or self.node


def _claims(body: bytes) -> _Claims:
    """What a frame that is not of our version says of its sender, if anything."""
    try:
        return msgspec.json.decode(body, type=_Claims)
    except frames.UNREADABLE:
        return _Claims()


def other_version(protocol: int, version: str, name: str) -> Turned:
    """A caller speaks another protocol."""
    return Turned(
        kind="version",
        reason=f"this side speaks protocol {protocol} (ftcore {version[:NAME_CHARS_MAX]}), the master "
        f"{frames.PROTOCOL} (ftcore {__version__}): install the same version on every node",
        name=name[:NAME_CHARS_MAX],
        version=version[:NAME_CHARS_MAX],
    )


def _asks_for_token(claims: _Claims) -> Turned:
    if claims.protocol not in (0, frames.PROTOCOL):
        return other_version(claims.protocol, claims.version, claims.caller)
    return Turned(
        kind="token",
        reason=f"this job asks for a token: {WHERE}",
        name=claims.caller[:NAME_CHARS_MAX],
        version=claims.version[:NAME_CHARS_MAX],
    )


async def call(stream: Stream, security: Security, job: str, name: str, word: frames.Hello | Word) -> Answer:
    """Open a stream with a word, and read the answer to it.

    Args:
        stream: a stream to a master, just made.
        security: whose token is shown and asked for.
        job: the job.
        name: who calls, for the record.
        word: what is said first.

    Raises:
        msgspec.MsgspecError: the master says what is no frame.
        StreamBroken: the stream broke.
    """
    body = frames.encode(word)
    if not security.token:
        await stream.write(body)
        return Answer(_frame(await stream.read()), proven=True)
    caller = Call(security.token, job, name)
    await stream.write(frames.encode(caller.knock))
    found = _frame(await stream.read())
    if not isinstance(found, frames.Challenge):
        return Answer(found, proven=False)
    sealed = caller.answer(found, body)
    if sealed is None:
        await stream.write(frames.encode(frames.AuthReject()))
        await stream.read()  # so that it is heard before the stream is closed
        return Answer(frames.Refused(f"the master of {job} has another token: {WHERE}", rejoin=False), proven=False)
    await stream.write(frames.encode(sealed))
    return Answer(_frame(await stream.read()), proven=True)


def _frame(body: bytes | None) -> frames.FromMaster | None:
    return frames.decode_from_master(body) if body is not None else None

"""Client of the master for operators' tools and standbys: one request, one answer."""

import asyncio
import getpass
import os
import socket

import msgspec

from ftcore.errors import NotFound, Refused, StreamBroken, Unreachable
from ftcore.ports import Transport
from ftcore.runtime.wire import frames, handshake
from ftcore.runtime.wire.security import Security


def whoami() -> str:
    """The current user as ``user@host``, as recorded in events."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


async def command(
    transport: Transport,
    target: str,
    job: str,
    name: str,
    *,
    security: Security,
    node: str = "",
    why: str = "",
    who: str = "",
    exit_code: int = 5,
    timeout_s: float = 10.0,
) -> frames.CommandReply:
    """Send the master an operator's command.

    Args:
        transport: connects to the master.
        target: the master's address (``EventLog.leader``).
        job: the job.
        name: a command of ``engine/operator_requests.py``.
        security: credentials, with the job's token.
        node: for ``drain``, ``evict`` and ``admit``.
        why: the reason, for the log; of a note its text.
        who: the operator; empty: the current user.
        exit_code: for ``stop``: the exit code of ``ftrun``.
        timeout_s: seconds to wait for the answer.

    Raises:
        Unreachable: the master does not answer.
        NotFound: the job has no such node.
        Refused: the master refuses the command.
    """
    request = frames.Command(job=job, command=name, who=who or whoami(), why=why, exit_code=exit_code, node=node)
    reply = await _send(transport, target, job, request, request.who, security, timeout_s)
    if not isinstance(reply, frames.CommandReply):
        raise Unreachable(_unreachable(target, job, "it closed the stream"))
    if reply.unknown:
        raise NotFound(reply.message)
    if not reply.accepted:
        raise Refused(reply.message)
    return reply


async def nodes_seen(
    transport: Transport, target: str, job: str, *, security: Security, timeout_s: float = 10.0
) -> list[frames.NodeSeen]:
    """The connected nodes and their last heartbeats, by name.

    Args:
        transport: connects to the master.
        target: the master's address.
        job: the job.
        security: credentials, with the job's token.
        timeout_s: seconds to wait for each answer.

    Raises:
        Unreachable: the master does not answer, or no longer leads.
        Refused: the master refuses the caller.
    """
    pages = await look(transport, target, job, security=security, timeout_s=timeout_s)
    return [seen for page in pages for seen in page.nodes]


async def look(
    transport: Transport, target: str, job: str, *, security: Security, timeout_s: float = 10.0
) -> list[frames.NodesSeen]:
    """The master's memory, in pages, of which there is at least one; arguments and errors as of ``nodes_seen``."""
    found: list[frames.NodesSeen] = []
    while True:
        after = found[-1].nodes[-1].node if found else ""
        inquiry = frames.Inquiry(protocol=frames.PROTOCOL, job=job, after=after)
        reply = await _send(transport, target, job, inquiry, whoami(), security, timeout_s)
        if not isinstance(reply, frames.NodesSeen) or not reply.leading:
            raise Unreachable(_unreachable(target, job, "it does not lead"))
        found.append(reply)
        if not reply.more:
            return found


async def announce_standby(
    transport: Transport, target: str, standby: frames.Standby, *, security: Security, timeout_s: float
) -> None:
    """Announce a standby's address to the leader.

    Args:
        transport: connects to the leader.
        target: the leader's address.
        standby: the announcement.
        security: credentials, with the job's token.
        timeout_s: seconds to wait for the answer.

    Raises:
        Unreachable: the leader does not answer.
        Refused: the leader refuses the caller.
    """
    await _send(transport, target, standby.job, standby, standby.address, security, timeout_s)


async def _send(
    transport: Transport,
    target: str,
    job: str,
    request: handshake.Request,
    who: str,
    security: Security,
    timeout_s: float,
) -> frames.FromMaster | None:
    """Send a stream's only request and return the answer. Raises ``Unreachable``, ``Refused``."""
    try:
        async with transport.connect(target) as stream, asyncio.timeout(timeout_s):
            reply = (await handshake.open_stream(stream, security, job, who, request)).frame
    except TimeoutError as error:
        raise Unreachable(_unreachable(target, job, "no answer")) from error
    except StreamBroken as error:
        reason = f"cannot be trusted: {error.distrust}" if error.distrust else ""
        if not reason and security.tls is None and not target.startswith("unix:"):
            reason = "does not answer: the job has ended, or it uses TLS (then set FTCORE_TLS_CA here, too)"
        raise Unreachable(_unreachable(target, job, error.code, reason)) from error
    except msgspec.MsgspecError as error:
        raise Refused(
            f"the master of {job} at {target} uses another protocol version: use its version of ftcore"
        ) from error
    if isinstance(reply, frames.JoinRefused):
        raise Refused(reply.reason)
    return reply


def _unreachable(target: str, job: str, error: str, reason: str = "") -> str:
    return f"the master of {job} at {target} {reason or f'does not answer ({error}): is the job still running?'}"

"""What an operator's tool says to the master: one command, one answer."""

import asyncio
import getpass
import os
import socket

import msgspec

from ftcore.errors import NotFound, Refused, StreamBroken, Unreachable
from ftcore.ports import Transport
from ftcore.runtime.wire import frames, opening
from ftcore.runtime.wire.security import Security


def whoami() -> str:
    """The user as events name them: ``user@host``."""
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
    """Give the master a command.

    Args:
        transport: how the master is reached.
        target: its address (``EventLog.leader``).
        job: the job.
        name: one of ``engine/operator_requests.py``.
        security: whose token is shown.
        node: for ``drain``, ``evict`` and ``admit``.
        why: the reason, for the log.
        who: who asks; this user if empty.
        exit_code: for ``stop``: what ``ftrun`` will exit with.
        timeout_s: seconds to wait for the answer.

    Raises:
        Unreachable: the master does not answer.
        NotFound: it answers that there is no such node.
        Refused: it answers that it will not.
    """
    request = frames.Command(job=job, command=name, who=who or whoami(), why=why, exit_code=exit_code, node=node)
    reply = await _asked(transport, target, job, request, request.who, security, timeout_s)
    if not isinstance(reply, frames.CommandReply):
        raise Unreachable(_silence(target, job, "it closed the stream"))
    if reply.unknown:
        raise NotFound(reply.message)
    if not reply.accepted:
        raise Refused(reply.message)
    return reply


async def nodes_seen(
    transport: Transport, target: str, job: str, *, security: Security, timeout_s: float = 10.0
) -> list[frames.NodeSeen]:
    """What the heartbeats of all connected nodes tell, by name.

    Args:
        transport: how the master is reached.
        target: its address.
        job: the job.
        security: whose token is shown.
        timeout_s: seconds to wait for each answer.

    Raises:
        Unreachable: the master does not answer, or leads no more.
        Refused: it will not answer to us.
    """
    found: list[frames.NodeSeen] = []
    while True:
        inquiry = frames.Inquiry(protocol=frames.PROTOCOL, job=job, after=found[-1].node if found else "")
        reply = await _asked(transport, target, job, inquiry, whoami(), security, timeout_s)
        if not isinstance(reply, frames.NodesSeen) or not reply.leading:
            raise Unreachable(_silence(target, job, "it does not lead"))
        found += reply.nodes
        if not reply.more:
            return found


async def stand_by(
    transport: Transport, target: str, word: frames.Standby, *, security: Security, timeout_s: float
) -> None:
    """Tell a master where a standby of it serves.

    Args:
        transport: how the master is reached.
        target: its address.
        word: what is told.
        security: whose token is shown.
        timeout_s: seconds to wait for the answer.

    Raises:
        Unreachable: the master does not answer.
        Refused: it does not let us in.
    """
    await _asked(transport, target, word.job, word, word.address, security, timeout_s)


async def _asked(
    transport: Transport,
    target: str,
    job: str,
    request: opening.Word,
    who: str,
    security: Security,
    timeout_s: float,
) -> frames.FromMaster | None:
    """The master's answer to the only word of a stream. Raises ``Unreachable``, ``Refused``."""
    try:
        async with transport.connect(target) as stream, asyncio.timeout(timeout_s):
            reply = (await opening.call(stream, security, job, who, request)).frame
    except TimeoutError as error:
        raise Unreachable(_silence(target, job, "no answer")) from error
    except StreamBroken as error:
        why_not = f"cannot be trusted: {error.distrust}" if error.distrust else ""
        if not why_not and security.tls is None and not target.startswith("unix:"):
            why_not = "does not answer: the job has ended, or it speaks TLS (then set FTCORE_TLS_CA here, too)"
        raise Unreachable(_silence(target, job, error.code, why_not)) from error
    except msgspec.MsgspecError as error:
        raise Refused(f"the master of {job} at {target} speaks another protocol: use its version of ftcore") from error
    if isinstance(reply, frames.Refused):
        raise Refused(reply.reason)
    return reply


def _silence(target: str, job: str, how: str, why: str = "") -> str:
    return f"the master of {job} at {target} {why or f'does not answer ({how}): is the job still running?'}"

"""What an operator's tool says to the master: one command, one answer."""

import asyncio
import getpass
import os
import socket
from typing import Any

import grpc.aio
import msgspec

from ftcore.errors import NotFound, Refused, Unreachable
from ftcore.runtime.wire import frames, opening
from ftcore.runtime.wire.channel import CONNECT, channel
from ftcore.runtime.wire.security import Security
from ftcore.tls import trouble


def whoami() -> str:
    """The user as events name them: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


async def command(
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
        target: the master's gRPC target (``EventLog.leader``).
        job: the job.
        name: one of ``engine/wishes.py``.
        security: whose token and certificates are shown.
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
    reply = await _asked(target, job, request, request.who, security, timeout_s)
    if not isinstance(reply, frames.CommandReply):
        raise Unreachable(_silence(target, job, "it closed the stream"))
    if reply.unknown:
        raise NotFound(reply.message)
    if not reply.accepted:
        raise Refused(reply.message)
    return reply


async def nodes_seen(target: str, job: str, *, security: Security, timeout_s: float = 10.0) -> list[frames.NodeSeen]:
    """What the heartbeats of all connected nodes tell, by name.

    Args:
        target: the master's gRPC target.
        job: the job.
        security: whose token and certificates are shown.
        timeout_s: seconds to wait for each answer.

    Raises:
        Unreachable: the master does not answer, or leads no more.
        Refused: it will not answer to us.
    """
    found: list[frames.NodeSeen] = []
    while True:
        inquiry = frames.Inquiry(protocol=frames.PROTOCOL, job=job, after=found[-1].node if found else "")
        reply = await _asked(target, job, inquiry, whoami(), security, timeout_s)
        if not isinstance(reply, frames.NodesSeen) or not reply.leading:
            raise Unreachable(_silence(target, job, "it does not lead"))
        found += reply.nodes
        if not reply.more:
            return found


async def stand_by(target: str, word: frames.Standby, *, security: Security, timeout_s: float) -> None:
    """Tell a master where a standby of it serves.

    Args:
        target: the master's gRPC target.
        word: what is told.
        security: whose token and certificates are shown.
        timeout_s: seconds to wait for the answer.

    Raises:
        Unreachable: the master does not answer.
        Refused: it does not let us in.
    """
    await _asked(target, word.job, word, word.address, security, timeout_s)


async def _asked(
    target: str, job: str, request: opening.Word, who: str, security: Security, timeout_s: float
) -> frames.FromMaster | None:
    """The master's answer to the only word of a stream. Raises ``Unreachable``, ``Refused``."""
    async with channel(target, security) as opened:
        stream: Any = opened.stream_stream(CONNECT)()
        try:
            async with asyncio.timeout(timeout_s):
                reply = (await opening.call(stream, security, job, who, request)).frame
        except TimeoutError as error:
            raise Unreachable(_silence(target, job, "no answer")) from error
        except grpc.aio.AioRpcError as error:
            found = trouble(error.details() or "")
            why_not = f"cannot be trusted: {found}" if found else ""
            if not found and security.tls is None and not target.startswith("unix:"):
                why_not = "does not answer: the job has ended, or it speaks TLS (then set FTCORE_TLS_CA here, too)"
            raise Unreachable(_silence(target, job, error.code().name, why_not)) from error
        except msgspec.MsgspecError as error:
            raise Refused(
                f"the master of {job} at {target} speaks another protocol: use its version of ftcore"
            ) from error
        finally:
            stream.cancel()
    if isinstance(reply, frames.Refused):
        raise Refused(reply.reason)
    return reply


def _silence(target: str, job: str, how: str, why: str = "") -> str:
    return f"the master of {job} at {target} {why or f'does not answer ({how}): is the job still running?'}"

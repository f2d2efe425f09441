"""What an operator's tool says to the master: one command, one answer."""

import getpass
import os
import socket

import grpc
import grpc.aio

from ftcore.errors import NotFound, Refused, Unreachable
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.channel import COMMAND, channel

TOKEN_ENV = "FTCORE_TOKEN"
"""The job's token is read from the environment, never from the command line, and never logged."""


def token() -> str:
    """The job's token, empty if none is set."""
    return os.environ.get(TOKEN_ENV, "")


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
        node: for ``drain`` and ``evict``.
        why: the reason, for the log.
        who: who asks; this user if empty.
        exit_code: for ``stop``: what ``ftrun`` will exit with.
        timeout_s: seconds to wait for the answer.

    Raises:
        Unreachable: the master does not answer.
        NotFound: it answers that there is no such node.
        Refused: it answers that it will not.
    """
    request = frames.Command(
        job=job, token=token(), command=name, who=who or whoami(), why=why, exit_code=exit_code, node=node
    )
    async with channel(target) as open_channel:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = open_channel.unary_unary(COMMAND)
        try:
            answer = await call(frames.encode(request), timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise Unreachable(
                f"the master of {job} at {target} does not answer ({error.code().name}): is the job still running?"
            ) from error
    reply = frames.decode_reply(answer)
    if reply.unknown:
        raise NotFound(reply.message)
    if not reply.accepted:
        raise Refused(reply.message)
    return reply

"""Frames: what agents and masters say to each other. JSON, one frame to a gRPC message.

One bidirectional stream per agent. The agent opens with ``Hello``; a leading master answers ``Welcome`` and from then
on sends acknowledgements and orders; anybody else answers ``NotMaster`` or ``Refused`` and closes. Any frame counts as
a sign of life. Facts are packed: all that queued up since the last write go into one frame. Acknowledgements are
cumulative. Nothing is ever unpickled; a frame larger than ``FRAME_BYTES_MAX`` ends the stream.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from ftcore import __version__
from ftcore.commands import ReleaseNode
from ftcore.engine.orders import Order
from ftcore.events.codec import digest_of
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyLoaded
from ftcore.ids import Term
from ftcore.policies.config import default_chain

PROTOCOL = 1
"""Raised when a frame changes so that the other side would misread it."""

FRAME_BYTES_MAX = 4 << 20
"""Bound of a single message: a frame of facts is packed up to 256 KiB, an order is a few hundred bytes."""

PACK_BYTES_MAX = 256 << 10
"""An agent packs no more than this into one frame of facts."""


class Submission(msgspec.Struct, frozen=True):
    """What ``ftrun`` was asked to run; carried by every agent, used by the master when there is no run to join.

    Args:
        spec: the job.
        digest: hex digest of the spec.
        policy: the chain of policies.
        command: the command line, for people.
        versions: of ftcore and Python.
        user: who asks, as ``user@host``.
    """

    spec: JobSpec
    digest: str
    policy: PolicyLoaded
    command: tuple[str, ...]
    versions: dict[str, str]
    user: str


def submission(
    spec: JobSpec,
    policy: PolicyLoaded | None = None,
    *,
    command: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
    user: str = "",
) -> Submission:
    """A submission of a spec.

    Args:
        spec: the job.
        policy: the chain of policies; None: the default one.
        command: the command line, for people.
        versions: further versions to record beside ftcore's.
        user: who asks, as ``user@host``.
    """
    return Submission(
        spec=spec,
        digest=digest_of(msgspec.json.encode(spec)),
        policy=policy or default_chain(),
        command=tuple(command),
        versions={"ftcore": __version__, **(versions or {})},
        user=user,
    )


class Hello(msgspec.Struct, frozen=True, tag_field="f", tag="hello"):
    """The first frame of an agent.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        version: its ftcore.
        job: the job that it wants to take part in.
        token: the job's token, if one is set.
        node: its node.
        incarnation: its life.
        submission: what it was asked to run.
        acked: its facts up to this number were acknowledged; above 0, its life in the log has begun.
        again: it took part before, in an older life.
    """

    protocol: int
    version: str
    job: str
    token: str
    node: str
    incarnation: str
    submission: Submission
    acked: int = 0
    again: bool = False


class Facts(msgspec.Struct, frozen=True, tag_field="f", tag="facts"):
    """Facts, oldest first, in the codec's JSON."""

    facts: tuple[msgspec.Raw, ...]


class Beat(msgspec.Struct, frozen=True, tag_field="f", tag="beat"):
    """A heartbeat.

    Args:
        round: the round whose workers run, 0 if none do.
        step: the newest step that every reporting worker has completed; None if none reports.
        absolute: that step counts from the start of the training.
        loss: the loss last reported by the lowest rank that reports one.
    """

    round: int
    step: int | None = None
    absolute: bool = False
    loss: float | None = None


class Welcome(msgspec.Struct, frozen=True, tag_field="f", tag="welcome"):
    """The master takes the agent on.

    Args:
        term: its term.
        acked: the agent's facts up to this number are in the log.
    """

    term: Term
    acked: int


class NotMaster(msgspec.Struct, frozen=True, tag_field="f", tag="not_master"):
    """The addressed process does not lead.

    Args:
        hint: address of the one that does, if known.
    """

    hint: str


class Refused(msgspec.Struct, frozen=True, tag_field="f", tag="refused"):
    """The agent cannot take part.

    Args:
        reason: why, and what to do.
        rejoin: a new incarnation may try again, once this one's workers are gone.
        release: the run that it took part in has ended without it; it leaves with what came of the run.
    """

    reason: str
    rejoin: bool
    release: ReleaseNode | None = None


class Ack(msgspec.Struct, frozen=True, tag_field="f", tag="ack"):
    """Facts up to this number are durable. Sent again now and then as the master's sign of life."""

    n: int


class Orders(msgspec.Struct, frozen=True, tag_field="f", tag="orders"):
    """Things to do, oldest first."""

    orders: tuple[Order, ...]


class HostStandby(msgspec.Struct, frozen=True, tag_field="f", tag="host_standby"):
    """This node is to run a standby for the master role."""


class Command(msgspec.Struct, frozen=True):
    """An operator's command, unary.

    Args:
        job: the job.
        token: the job's token, if one is set.
        command: one of ``engine/wishes.py``.
        who: who asks.
        why: the reason given.
        exit_code: for ``stop``.
        node: for ``drain`` and ``evict``.
    """

    job: str
    token: str
    command: str
    who: str
    why: str
    exit_code: int
    node: str = ""


class CommandReply(msgspec.Struct, frozen=True):
    """What became of a command.

    Args:
        accepted: it is in the log, or what it asks for is so already.
        message: for the operator.
        seq: where in the log; 0: nothing had to be recorded.
        outcome: what it did by itself, as ``came_of`` says.
        unknown: refused, for it names something that does not exist.
    """

    accepted: bool
    message: str
    seq: int = 0
    outcome: str = ""
    unknown: bool = False


FromAgent: TypeAlias = Hello | Facts | Beat
FromMaster: TypeAlias = Welcome | NotMaster | Refused | Ack | Orders | HostStandby

encode = msgspec.json.Encoder().encode
decode_from_agent = msgspec.json.Decoder(FromAgent).decode
decode_from_master = msgspec.json.Decoder(FromMaster).decode
decode_command = msgspec.json.Decoder(Command).decode
decode_reply = msgspec.json.Decoder(CommandReply).decode

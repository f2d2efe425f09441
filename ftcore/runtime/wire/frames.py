"""Frames: what agents and masters say to each other. JSON, one frame to a gRPC message.

One bidirectional stream per agent. It is opened as ``opening`` says; the agent's first word is ``Hello``; a leading
master answers ``Welcome`` and from then on sends acknowledgements and orders; anybody else answers ``NotMaster`` or
``Refused`` and closes. An operator's stream has one ``Command`` and its answer. Any frame counts as a sign of life.
Facts are packed: all that queued up since the last write go into one frame. Acknowledgements are cumulative. Nothing is
ever unpickled; a frame larger than ``FRAME_BYTES_MAX`` ends the stream.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from ftcore.commands import ReleaseNode
from ftcore.engine.master import Mark
from ftcore.engine.orders import Order
from ftcore.events.codec import digest_of
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyLoaded
from ftcore.events.worker import Stand
from ftcore.faults.cuts import Net
from ftcore.ids import Term
from ftcore.policies.config import default_chain
from ftcore.version import __version__

PROTOCOL = 2
"""Raised when a frame changes so that the other side would misread it."""


def same_release(one: str, other: str) -> bool:
    """Whether two versions of ftcore may work on one job: all but their patch number is equal.

    Patch releases add no events and no orders; any other release may, and a master that does not know a fact could not
    take it in.
    """
    return one.split(".")[:2] == other.split(".")[:2]


FRAME_BYTES_MAX = 4 << 20
"""Bound of a single message: a frame of facts is packed up to 256 KiB, an order is a few hundred bytes."""

NODES_MAX = 500
"""Nodes in one answer to an inquiry."""

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
        launch: the one call that started this and other nodes: its late nodes begin no further run; empty: none did.
    """

    spec: JobSpec
    digest: str
    policy: PolicyLoaded
    command: tuple[str, ...]
    versions: dict[str, str]
    user: str
    launch: str = ""


def submission(
    spec: JobSpec,
    policy: PolicyLoaded | None = None,
    *,
    command: Sequence[str] = (),
    versions: Mapping[str, str] | None = None,
    user: str = "",
    launch: str = "",
) -> Submission:
    """A submission of a spec.

    Args:
        spec: the job.
        policy: the chain of policies; None: the default one.
        command: the command line, for people.
        versions: further versions to record beside ftcore's.
        user: who asks, as ``user@host``.
        launch: the one call that started this and other nodes; empty: none did.
    """
    return Submission(
        spec=spec,
        digest=digest_of(msgspec.json.encode(spec)),
        policy=policy or default_chain(),
        command=tuple(command),
        versions={"ftcore": __version__, **(versions or {})},
        user=user,
        launch=launch,
    )


class AuthRequest(msgspec.Struct, frozen=True, tag_field="f", tag="knock"):
    """The first frame of a caller that has a token: it asks for a challenge.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        version: its ftcore.
        job: the job.
        nonce: makes the master's proof fresh.
        name: the node or person that calls, for the record.
    """

    protocol: int
    version: str
    job: str
    nonce: str
    name: str = ""


class Challenge(msgspec.Struct, frozen=True, tag_field="f", tag="challenge"):
    """The master proves that it knows the token, and asks for the same.

    Args:
        nonce: makes the caller's proof fresh.
        proof: of the token, over both nonces.
    """

    nonce: str
    proof: str


class AuthProof(msgspec.Struct, frozen=True, tag_field="f", tag="sealed"):
    """What a caller has to say first, with the proof that it knows the token.

    Args:
        nonce: of the challenge that it answers.
        proof: of the token, over both nonces and the body.
        body: an encoded ``Hello`` or ``Command``.
    """

    nonce: str
    proof: str
    body: msgspec.Raw


class AuthReject(msgspec.Struct, frozen=True, tag_field="f", tag="distrust"):
    """The caller has another token than the master, and says no more."""


class Hello(msgspec.Struct, frozen=True, tag_field="f", tag="hello"):
    """The first word of an agent.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        version: its ftcore.
        job: the job that it wants to take part in.
        node: its node.
        incarnation: its life.
        submission: what it was asked to run.
        acked: its facts up to this number were acknowledged; above 0, its life in the log has begun.
        again: it took part before, in an older life.
        mark: how far it knows the log to be durable, if it takes part in one.
    """

    protocol: int
    version: str
    job: str
    node: str
    incarnation: str
    submission: Submission
    acked: int = 0
    again: bool = False
    mark: Mark | None = None


class Facts(msgspec.Struct, frozen=True, tag_field="f", tag="facts"):
    """Facts, oldest first, in the codec's JSON."""

    facts: tuple[msgspec.Raw, ...]


SEEING = "-"
"""Instead of why there are no gauges, once there are: an older reason is not believed any more."""


class Gauge(msgspec.Struct, frozen=True, omit_defaults=True):
    """An accelerator, as its driver tells it.

    Args:
        celsius: its temperature, to five degrees; None: not known, as the others.
        sm_mhz: clock of its processors, to fifty megahertz.
        used_mib: memory in use, to 256 MiB.
        trouble: errors of its memory, what holds it back, or that it does not answer; empty: none.
    """

    celsius: int | None = None
    sm_mhz: int | None = None
    used_mib: int | None = None
    trouble: str = ""


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a node says of itself; in a heartbeat only what has changed, at the master all of it.

    Args:
        host: its host's name.
        address: at which other nodes reach it.
        pod: what its platform calls it, if anything.
        devices: models of its accelerators, as their driver tells them.
        net: by interface: bytes received, bytes sent, errors and drops, since the host started.
        hits: by class of faults: lines that were known in what workers printed, or the kernel.
        phase: what it does: ``standby``, ``checking``, ``starting``, ``running``, ``parked``, ``leaving``.
        gauges: by index of the accelerator.
        blind: why there are no gauges; ``SEEING``: there are.
    """

    host: str = ""
    address: str = ""
    pod: str = ""
    devices: tuple[str, ...] = ()
    net: dict[str, tuple[int, int, int]] = {}
    hits: dict[str, int] = {}
    phase: str = ""
    gauges: dict[str, Gauge] = {}
    blind: str = ""

    def updated(self, news: "NodeInfo") -> "NodeInfo":
        """With what has changed."""
        return NodeInfo(
            host=news.host or self.host,
            address=news.address or self.address,
            pod=news.pod or self.pod,
            devices=news.devices or self.devices,
            net=self.net | news.net,
            hits=self.hits | news.hits,
            phase=news.phase or self.phase,
            gauges=self.gauges | news.gauges,
            blind=news.blind or self.blind,
        )


class Beat(msgspec.Struct, frozen=True, tag_field="f", tag="beat", omit_defaults=True):
    """A heartbeat.

    Args:
        round: the round whose workers run, 0 if none do.
        step: the newest step that every reporting worker has completed; None if none reports.
        absolute: that step counts from the start of the training.
        loss: the loss last reported by the lowest rank that reports one.
        about: what else has changed.
        own_s: seconds of own work in a step, of the slowest rank, on average since the last heartbeat; None: not known.
        whole_s: seconds that those steps took.
        stands: ranks that complete no step; None: as was said before.
        net: what the kernel says of their connections; None: as was said before.
    """

    round: int
    step: int | None = None
    absolute: bool = False
    loss: float | None = None
    about: NodeInfo | None = None
    own_s: float | None = None
    whole_s: float | None = None
    stands: tuple[Stand, ...] | None = None
    net: Net | None = None


class Welcome(msgspec.Struct, frozen=True, tag_field="f", tag="welcome"):
    """The master takes the agent on.

    Args:
        term: its term.
        acked: the agent's facts up to this number are in the log.
        mark: the log's identity and its end, durable: what the agent keeps on disk is kept under the identity.
    """

    term: Term
    acked: int
    mark: Mark


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
        release: the run that it is of has ended without it, or it is kept out: it leaves with this.
    """

    reason: str
    rejoin: bool
    release: ReleaseNode | None = None


class Parked(msgspec.Struct, frozen=True, tag_field="f", tag="parked"):
    """Nobody takes part for now: an operator has to decide first. Workers are left as they are; call again.

    Args:
        reason: why, and what the operator can do.
    """

    reason: str


class Ack(msgspec.Struct, frozen=True, tag_field="f", tag="ack"):
    """Facts up to this number are durable. Sent again now and then as the master's sign of life.

    Args:
        n: the number.
        mark: the end of the log, if it is told.
    """

    n: int
    mark: Mark | None = None


class Orders(msgspec.Struct, frozen=True, tag_field="f", tag="orders"):
    """Things to do, oldest first.

    Args:
        orders: what to do.
        acked: as in ``Ack``, which this saves.
        mark: as in ``Ack``.
    """

    orders: tuple[Order, ...]
    acked: int = 0
    mark: Mark | None = None


class HostStandby(msgspec.Struct, frozen=True, tag_field="f", tag="host_standby"):
    """This node is to run a standby for the master role."""


class Command(msgspec.Struct, frozen=True, tag_field="f", tag="command"):
    """An operator's command: the only word of its stream.

    Args:
        job: the job.
        command: one of ``engine/operator_requests.py``.
        who: who asks.
        why: the reason given.
        exit_code: for ``stop``.
        node: for ``drain``, ``evict`` and ``admit``.
        protocol: ``PROTOCOL`` of the sender.
    """

    job: str
    command: str
    who: str
    why: str
    exit_code: int
    node: str = ""
    protocol: int = PROTOCOL


class CommandReply(msgspec.Struct, frozen=True, tag_field="f", tag="reply"):
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


class Inquiry(msgspec.Struct, frozen=True, tag_field="f", tag="inquiry"):
    """An operator's tool asks what the heartbeats tell: the only word of its stream; nothing is recorded.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        job: the job.
        after: nodes behind this name are wanted.
    """

    protocol: int
    job: str
    after: str = ""


class Standby(msgspec.Struct, frozen=True, tag_field="f", tag="standby"):
    """A candidate that waits for the role tells where it serves: the only word of its stream.

    The answer is ``Candidates``.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        job: the job.
        address: gRPC target at which it serves.
    """

    protocol: int
    job: str
    address: str


class Candidates(msgspec.Struct, frozen=True, tag_field="f", tag="candidates"):
    """Where to ask who leads, when neither this master nor the log's store answers.

    Args:
        addresses: gRPC targets of the standbys.
    """

    addresses: tuple[str, ...]


class NodeSeen(msgspec.Struct, frozen=True):
    """A node as its heartbeats tell it.

    Args:
        node: its name.
        heard_s: seconds since its last frame.
        beat: its last heartbeat.
        about: what it said of itself.
    """

    node: str
    heard_s: float
    beat: Beat | None
    about: NodeInfo


class NodesSeen(msgspec.Struct, frozen=True, tag_field="f", tag="nodes"):
    """Connected nodes, by name.

    Args:
        nodes: at most ``NODES_MAX`` of them.
        more: there are others behind the last one.
        leading: the master leads; another one knows nothing.
    """

    nodes: tuple[NodeSeen, ...]
    more: bool
    leading: bool = True


FromAgent: TypeAlias = Hello | Facts | Beat | Command | Inquiry | Standby | AuthRequest | AuthProof | AuthReject
FromMaster: TypeAlias = (
    Welcome
    | NotMaster
    | Refused
    | Parked
    | Ack
    | Orders
    | HostStandby
    | Candidates
    | Challenge
    | CommandReply
    | NodesSeen
)

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What a decoder raises for bytes that are no frame; the last one for brackets that are nested too deeply."""

encode = msgspec.json.Encoder().encode
decode_from_agent = msgspec.json.Decoder(FromAgent).decode
decode_proof = msgspec.json.Decoder(AuthProof | AuthReject).decode
decode_from_master = msgspec.json.Decoder(FromMaster).decode

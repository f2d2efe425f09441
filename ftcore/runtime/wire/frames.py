"""Frames between agents, operators and masters: JSON, one frame per gRPC message.

Each agent has one bidirectional stream. After the handshake (``handshake.py``) the agent sends ``Hello``. A leading
master answers ``Welcome`` and then sends acknowledgements and orders; otherwise the answer is ``NotMaster`` or
``JoinRefused``, and the stream is closed. An operator's stream has one ``Command`` and its answer. Any frame counts as
a heartbeat. All facts that were queued since the last write go into one frame. Acknowledgements are cumulative. Nothing
is unpickled; a frame larger than ``FRAME_BYTES_MAX`` ends the stream.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from ftcore.commands import ReleaseNode
from ftcore.engine.master import DurableMark
from ftcore.engine.orders import Order
from ftcore.engine.stragglers import RankBlocks
from ftcore.events.codec import digest_of
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyLoaded
from ftcore.events.worker import RankState
from ftcore.faults.cuts import Net
from ftcore.ids import Term
from ftcore.policies.file.config import default_chain
from ftcore.runtime.wire.queue_news import QueueNews
from ftcore.version import __version__

PROTOCOL = 2
"""Protocol version; increased by an incompatible change of a frame."""


def same_release(first: str, second: str) -> bool:
    """Whether two versions of ftcore can work on one job: major and minor version are equal.

    Only patch releases add no events and no orders; a master cannot fold a fact of an unknown type.
    """
    return first.split(".")[:2] == second.split(".")[:2]


FRAME_BYTES_MAX = 4 << 20
"""Limit of a frame; a frame of facts has up to 256 KiB, an order a few hundred bytes."""

NODES_MAX = 500
"""Limit of nodes in one answer to an inquiry."""

PACK_BYTES_MAX = 256 << 10
"""Limit of the facts that an agent packs into one frame."""


class Submission(msgspec.Struct, frozen=True):
    """The job that ``ftrun`` was asked to run; sent by every agent, used by the master if there is no run to join.

    Args:
        spec: the job.
        digest: hex digest of the spec.
        policy: the policy chain.
        command: the command line, for operators.
        versions: of ftcore and Python.
        user: the user that submits, as ``user@host``.
        launch: id of the call that started this and other nodes, so that a late node of it does not begin another run;
            empty: none.
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
        policy: the policy chain; None: the default chain.
        command: the command line, for operators.
        versions: further versions to record beside ftcore's.
        user: the user that submits, as ``user@host``.
        launch: id of the call that started this and other nodes; empty: none.
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
    """The first frame of a caller with a token: requests a challenge.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        version: the sender's version of ftcore.
        job: the job.
        nonce: prevents a replay of the master's proof.
        name: the node or operator, for the record.
    """

    protocol: int
    version: str
    job: str
    nonce: str
    name: str = ""


class Challenge(msgspec.Struct, frozen=True, tag_field="f", tag="challenge"):
    """The master's proof that it knows the token, and its challenge to the caller.

    Args:
        nonce: prevents a replay of the caller's proof.
        proof: HMAC with the token over both nonces.
    """

    nonce: str
    proof: str


class AuthProof(msgspec.Struct, frozen=True, tag_field="f", tag="sealed"):
    """The caller's first request, with the proof that the caller knows the token.

    Args:
        nonce: the nonce of the challenge.
        proof: HMAC with the token over both nonces and the body.
        body: an encoded ``Hello``, ``Command``, ``Inquiry`` or ``Standby``.
    """

    nonce: str
    proof: str
    body: msgspec.Raw


class AuthReject(msgspec.Struct, frozen=True, tag_field="f", tag="distrust"):
    """The caller's last frame: its token differs from the master's."""


class Hello(msgspec.Struct, frozen=True, tag_field="f", tag="hello"):
    """The first frame of an agent.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        version: the sender's version of ftcore.
        job: the job to join.
        node: the agent's node.
        incarnation: the agent's incarnation.
        submission: the job that the agent was asked to run.
        acked: the agent's facts up to this number were acknowledged; above 0 the log contains the incarnation.
        again: the node was a member before, in an earlier incarnation.
        mark: the last point up to which the agent knows the log to be durable; None: it has not joined yet.
    """

    protocol: int
    version: str
    job: str
    node: str
    incarnation: str
    submission: Submission
    acked: int = 0
    again: bool = False
    mark: DurableMark | None = None


class Facts(msgspec.Struct, frozen=True, tag_field="f", tag="facts"):
    """Facts, oldest first, in the JSON of the event codec."""

    facts: tuple[msgspec.Raw, ...]


SEEING = "-"
"""Value of ``NodeInfo.blind`` that clears an earlier reason, once there are gauges."""


class Gauge(msgspec.Struct, frozen=True, omit_defaults=True):
    """Readings of one accelerator, from its driver.

    Args:
        celsius: temperature in steps of 5 degrees; None: unknown (as for the other readings).
        sm_mhz: clock of the multiprocessors in steps of 50 MHz.
        used_mib: memory in use in steps of 256 MiB.
        trouble: memory errors, throttling, or no answer; empty: none.
    """

    celsius: int | None = None
    sm_mhz: int | None = None
    used_mib: int | None = None
    trouble: str = ""


class NodeInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node's description of itself; a heartbeat has only the changes, the master all of it.

    Args:
        host: name of its host.
        address: address for other nodes.
        pod: name of the node at its platform, if any.
        devices: models of its accelerators, from the driver.
        net: by interface: bytes received, bytes sent, errors and drops, since the host started.
        hits: by fault class: matched lines of the workers' output and the kernel log.
        phase: ``standby``, ``checking``, ``starting``, ``running``, ``parked`` or ``leaving``.
        gauges: by index of the accelerator.
        blind: why there are no gauges; ``SEEING``: there are gauges.
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
        """A copy with the changes of a heartbeat."""
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
        round: the round of the running workers; 0: none run.
        step: the newest step that every reporting worker has completed; None: no worker reports.
        absolute: ``step`` counts from the start of the training.
        loss: the last loss of the lowest rank that reports one.
        about: changes of the node's description.
        own_s: seconds of own work per step of the slowest rank, averaged since the last heartbeat; None: unknown.
        whole_s: seconds per step, likewise.
        stands: ranks that complete no step; None: unchanged.
        net: the kernel's view of their connections; None: unchanged.
        ranks: times of the phases of steps by rank, as far as there are new ones.
        reporting: number of ranks that report a loss.
    """

    round: int
    step: int | None = None
    absolute: bool = False
    loss: float | None = None
    about: NodeInfo | None = None
    own_s: float | None = None
    whole_s: float | None = None
    stands: tuple[RankState, ...] | None = None
    net: Net | None = None
    ranks: tuple[RankBlocks, ...] = ()
    reporting: int = 0


class Welcome(msgspec.Struct, frozen=True, tag_field="f", tag="welcome"):
    """The master admits the agent.

    Args:
        term: the master's term.
        acked: the agent's facts up to this number are in the log.
        mark: the log's identity and durable end; the agent names its files on disk by the identity.
    """

    term: Term
    acked: int
    mark: DurableMark


class NotMaster(msgspec.Struct, frozen=True, tag_field="f", tag="not_master"):
    """The addressed process does not lead.

    Args:
        hint: address of the leader, if known.
    """

    hint: str


class JoinRefused(msgspec.Struct, frozen=True, tag_field="f", tag="refused"):
    """The agent is refused.

    Args:
        reason: why, and what to do.
        rejoin: a new incarnation may join after the workers of this one have ended.
        release: the order with which the agent leaves: its run has ended without it, or it is excluded.
    """

    reason: str
    rejoin: bool
    release: ReleaseNode | None = None


class Parked(msgspec.Struct, frozen=True, tag_field="f", tag="parked"):
    """No agent is admitted until an operator decides. The agent leaves its workers running and connects again.

    Args:
        reason: why, and what the operator can do.
    """

    reason: str


class Ack(msgspec.Struct, frozen=True, tag_field="f", tag="ack"):
    """Acknowledgement of durable facts; also the master's keep-alive.

    Args:
        n: the agent's facts up to this number are durable.
        mark: the end of the durable log, if included.
    """

    n: int
    mark: DurableMark | None = None


class Orders(msgspec.Struct, frozen=True, tag_field="f", tag="orders"):
    """Orders, oldest first.

    Args:
        orders: the orders.
        acked: as ``Ack.n``; replaces a separate ``Ack``.
        mark: as in ``Ack``.
    """

    orders: tuple[Order, ...]
    acked: int = 0
    mark: DurableMark | None = None


class HostStandby(msgspec.Struct, frozen=True, tag_field="f", tag="host_standby"):
    """Order to run a standby of the master on this node."""


class Command(msgspec.Struct, frozen=True, tag_field="f", tag="command"):
    """An operator's command: the only request of its stream.

    Args:
        job: the job.
        command: a command of ``engine/operator_requests.py``.
        who: the operator.
        why: the operator's reason; of a note its text.
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
    """The answer to a command.

    Args:
        accepted: the command is recorded, or its goal is reached already.
        message: for the operator.
        seq: sequence number in the log; 0: nothing had to be recorded.
        outcome: the immediate effect; see ``immediate_effect``.
        unknown: refused because the command names an object that does not exist.
    """

    accepted: bool
    message: str
    seq: int = 0
    outcome: str = ""
    unknown: bool = False


class Inquiry(msgspec.Struct, frozen=True, tag_field="f", tag="inquiry"):
    """A request for the connected nodes and their heartbeats: the only request of its stream; not recorded.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        job: the job.
        after: the answer begins after this node.
    """

    protocol: int
    job: str
    after: str = ""


class Standby(msgspec.Struct, frozen=True, tag_field="f", tag="standby"):
    """A standby announces its address: the only request of its stream. The answer is ``Candidates``.

    Args:
        protocol: ``PROTOCOL`` of the sender.
        job: the job.
        address: gRPC target of the standby.
    """

    protocol: int
    job: str
    address: str


class Candidates(msgspec.Struct, frozen=True, tag_field="f", tag="candidates"):
    """Addresses to ask for the leader if neither this master nor the log's store answers.

    Args:
        addresses: gRPC targets of the standbys.
    """

    addresses: tuple[str, ...]


class NodeSeen(msgspec.Struct, frozen=True):
    """A connected node.

    Args:
        node: the node's name.
        heard_s: seconds since its last frame.
        beat: its last heartbeat.
        about: its description of itself.
        step_s, own_s: ``whole_s`` and ``own_s`` of the last heartbeat of its round that had them; None: none had.
        slow: its slow ranks and their phases, as text; empty: it has none.
    """

    node: str
    heard_s: float
    beat: Beat | None
    about: NodeInfo
    step_s: float | None = None
    own_s: float | None = None
    slow: str = ""


class NodesSeen(msgspec.Struct, frozen=True, tag_field="f", tag="nodes"):
    """Connected nodes, by name.

    Args:
        nodes: at most ``NODES_MAX`` of them.
        more: there are further nodes after the last one.
        leading: the answering master leads; otherwise ``nodes`` is empty.
        waiting: facts that are not in the log yet.
        wait_s: seconds for which the oldest of them has waited.
    """

    nodes: tuple[NodeSeen, ...]
    more: bool
    leading: bool = True
    waiting: int = 0
    wait_s: float = 0.0


FromAgent: TypeAlias = Hello | Facts | Beat | Command | Inquiry | Standby | AuthRequest | AuthProof | AuthReject
FromMaster: TypeAlias = (
    Welcome
    | NotMaster
    | JoinRefused
    | Parked
    | Ack
    | Orders
    | QueueNews
    | HostStandby
    | Candidates
    | Challenge
    | CommandReply
    | NodesSeen
)

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of the decoders for an invalid frame; ``RecursionError`` for deeply nested brackets."""

encode = msgspec.json.Encoder().encode
decode_from_agent = msgspec.json.Decoder(FromAgent).decode
decode_proof = msgspec.json.Decoder(AuthProof | AuthReject).decode
decode_from_master = msgspec.json.Decoder(FromMaster).decode

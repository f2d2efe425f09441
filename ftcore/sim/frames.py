"""What agents and masters say to each other in a simulation: the frames of ``runtime/wire``, without their bytes.

Facts stay encoded, so that what the engine gets has been through the codec.
"""

import attrs

from ftcore.commands import ReleaseNode
from ftcore.engine.agent import Pulse
from ftcore.engine.orders import Order
from ftcore.events.worker import Stand
from ftcore.faults.cuts import Net


@attrs.frozen
class Hello:
    """An agent's first frame."""

    node: str
    incarnation: str
    digest: str
    acked: int
    again: bool


@attrs.frozen
class Facts:
    """Facts, encoded, oldest first."""

    bodies: tuple[bytes, ...]


@attrs.frozen
class Beat:
    """A heartbeat; and what workers do that complete no step, where that changed."""

    pulse: Pulse
    stands: tuple[Stand, ...] | None = None
    net: Net | None = None


@attrs.frozen
class Welcome:
    """The master takes the agent on."""

    term: int
    acked: int


@attrs.frozen
class NotMaster:
    """Somebody else leads, if known at this address."""

    hint: str


@attrs.frozen
class Refused:
    """The agent cannot take part."""

    reason: str
    rejoin: bool
    release: ReleaseNode | None


@attrs.frozen
class Ack:
    """Facts up to this number are durable; also a sign of life."""

    n: int


@attrs.frozen
class Orders:
    """Things to do, oldest first; and what else ``Ack`` would say."""

    orders: tuple[Order, ...]
    acked: int


@attrs.frozen
class HostStandby:
    """This node is to run a standby."""

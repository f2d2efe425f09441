"""Events of refused connections to the master."""

from ftcore.events.payload import Payload
from ftcore.events.registry import fact


@fact("caller.refused", ignorable=True)
class CallerRefused(Payload, frozen=True, kw_only=True):
    """The master refused agents or operators. Repeated refusals are counted in one event.

    Args:
        kind: ``token``, ``replay``, ``version``, ``job``, ``spec``, ``name`` or ``unreadable``.
        reason: the reason sent with the last refusal.
        name: the name of the node or user that the last caller stated.
        peer: the address of the last caller.
        version: the ftcore version that the last caller stated.
        count: refusals since the last event of this kind.
        peers: number of addresses that they came from, at most 64.
    """

    kind: str
    reason: str
    name: str
    peer: str
    version: str
    count: int = 1
    peers: int = 1

"""Events of those who call a master and are not let in."""

import attrs

from ftcore.events.registry import fact


@fact("caller.refused", ignorable=True)
@attrs.frozen(kw_only=True)
class CallerRefused:
    """Agents or operators were turned away. Repeated ones are counted, not told one by one.

    Args:
        kind: ``token``, ``replay``, ``version``, ``job``, ``spec``, ``name`` or ``unreadable``.
        reason: what the last one was told.
        name: the node or person that it said it is.
        peer: the address that it called from.
        version: the ftcore that it said it has.
        count: how many since the last event of this kind.
        peers: from how many addresses, up to 64.
    """

    kind: str
    reason: str
    name: str
    peer: str
    version: str
    count: int = 1
    peers: int = 1

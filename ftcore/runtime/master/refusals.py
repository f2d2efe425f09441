"""Callers that were turned away, as bounded facts: the first of a kind at once, what follows as a count now and then.

Somebody who knocks a thousand times a second must not fill the log: a kind is told again after 10 s, then after twice
as long each time, up to an hour; after two quiet hours it begins anew.
"""

from collections.abc import Callable
from typing import Final

import attrs

from ftcore.events.caller import CallerRefused
from ftcore.ids import seconds
from ftcore.runtime.wire.opening import Turned

PAUSE_S: Final = (10.0, 3600.0)
"""Shortest and longest time between two facts of one kind."""

PEERS_MAX: Final = 64
"""Addresses of one kind that are told apart."""


@attrs.define
class _Kind:
    told: int
    pause_s: float = PAUSE_S[0]
    count: int = 0
    last: CallerRefused | None = None
    peers: set[str] = attrs.field(factory=set)


class Refusals:
    """The refusals of one master.

    Args:
        tell: takes the facts.
    """

    def __init__(self, tell: Callable[[CallerRefused], object]) -> None:
        self._tell = tell
        self._kinds: dict[str, _Kind] = {}

    def add(self, turned: Turned, peer: str, now: int) -> None:
        """Somebody was turned away.

        Args:
            turned: why.
            peer: its address, without the port.
            now: monotonic nanoseconds.
        """
        kind = self._kinds.get(turned.kind)
        if kind is None:
            kind = self._kinds[turned.kind] = _Kind(told=now - 2 * seconds(PAUSE_S[1]))
        kind.count += 1
        if len(kind.peers) < PEERS_MAX:
            kind.peers.add(peer)
        kind.last = CallerRefused(
            kind=turned.kind, reason=turned.reason, name=turned.name, peer=peer, version=turned.version
        )
        self.look(now)

    def look(self, now: int) -> None:
        """Tell what has waited long enough."""
        for kind in self._kinds.values():
            quiet = now - kind.told
            if not kind.count or kind.last is None or quiet < seconds(kind.pause_s):
                continue
            again = quiet < 2 * seconds(PAUSE_S[1])
            kind.pause_s = min(2 * kind.pause_s, PAUSE_S[1]) if again else PAUSE_S[0]
            self._tell(attrs.evolve(kind.last, count=kind.count, peers=len(kind.peers)))
            kind.told, kind.count = now, 0
            kind.peers.clear()

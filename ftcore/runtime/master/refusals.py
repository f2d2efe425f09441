"""Records refused callers at a limited rate: the first of a kind at once, later ones as a count.

A caller that retries a thousand times a second must not fill the log. So a kind is recorded again after 10 s, then
after twice the previous pause, up to one hour; after two hours without a refusal the pause starts again at 10 s.
"""

from collections.abc import Callable
from typing import Final

import attrs
import msgspec

from ftcore.events.caller import CallerRefused
from ftcore.ids import seconds
from ftcore.runtime.wire.handshake import Rejection

PAUSE_S: Final = (10.0, 3600.0)
"""Shortest and longest time between two facts of one kind."""

PEERS_MAX: Final = 64
"""Limit of distinct addresses counted per kind."""


@attrs.define
class _RefusalCount:
    recorded_at: int
    pause_s: float = PAUSE_S[0]
    count: int = 0
    last: CallerRefused | None = None
    peers: set[str] = attrs.field(factory=set)


class Refusals:
    """The refusals of one master.

    Args:
        record: submits a fact.
    """

    def __init__(self, record: Callable[[CallerRefused], object]) -> None:
        self._record = record
        self._kinds: dict[str, _RefusalCount] = {}

    def add(self, rejection: Rejection, peer: str, now: int) -> None:
        """Count a refused caller.

        Args:
            rejection: the refusal.
            peer: the caller's address, without the port.
            now: monotonic nanoseconds.
        """
        kind = self._kinds.get(rejection.kind)
        if kind is None:
            kind = self._kinds[rejection.kind] = _RefusalCount(recorded_at=now - 2 * seconds(PAUSE_S[1]))
        kind.count += 1
        if len(kind.peers) < PEERS_MAX:
            kind.peers.add(peer)
        kind.last = CallerRefused(
            kind=rejection.kind, reason=rejection.reason, name=rejection.name, peer=peer, version=rejection.version
        )
        self.flush(now)

    def flush(self, now: int) -> None:
        """Record the kinds that are due.

        Args:
            now: monotonic nanoseconds.
        """
        for kind in self._kinds.values():
            quiet = now - kind.recorded_at
            if not kind.count or kind.last is None or quiet < seconds(kind.pause_s):
                continue
            again = quiet < 2 * seconds(PAUSE_S[1])
            kind.pause_s = min(2 * kind.pause_s, PAUSE_S[1]) if again else PAUSE_S[0]
            self._record(msgspec.structs.replace(kind.last, count=kind.count, peers=len(kind.peers)))
            kind.recorded_at, kind.count = now, 0
            kind.peers.clear()

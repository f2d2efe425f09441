"""Detects connections of a node's workers whose peer no longer answers.

The kernel reports how long it has been retransmitting a segment (``sockets.py``), in steps that double; between two
samples this module extrapolates. The master interprets the result (``faults/cuts.py``).
"""

import ipaddress
from collections.abc import Iterable, Mapping

from ftcore.faults.cuts import RETRIES_MIN, UNANSWERED_MAX, Net, Unanswered
from ftcore.runtime.agent.telemetry.sockets import Connection


class UnansweredWatch:
    """Tracks since when connections get no answer."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, int], float] = {}

    def net(self, found: Iterable[Connection], ranks: Mapping[int, int], now: float) -> Net:
        """Addresses of the workers' connections, and the peers that do not answer.

        Args:
            found: connections of this host.
            ranks: global ranks of the workers, by inode of their sockets.
            now: monotonic seconds.
        """
        own = [each for each in found if each.inode in ranks and not ipaddress.ip_address(each.local[0]).is_loopback]
        lost = {(each.inode, each.acked): each for each in own if each.retries >= RETRIES_MIN}
        self._since = {key: min(self._since.get(key, now), now - each.lost_s) for key, each in lost.items()}
        by_address: dict[str, list[tuple[Connection, float]]] = {}
        for key, each in lost.items():
            silent_s = min(each.heard_s, now - self._since[key])
            by_address.setdefault(each.remote[0], []).append((each, silent_s))
        return Net(
            addresses=tuple(sorted({each.local[0] for each in own})),
            unanswered=tuple(
                Unanswered(
                    address=address,
                    connections=len(silent),
                    silent_s=round(max(silent_s for _, silent_s in silent), 1),
                    retries=max(each.retries for each, _ in silent),
                    ranks=tuple(sorted({ranks[each.inode] for each, _ in silent})),
                )
                for address, silent in sorted(by_address.items())[:UNANSWERED_MAX]
            ),
        )

"""Connections of a node's workers on which the other end does not answer any more.

The kernel tells how long it has been sending a segment again (``sockets.py``), in steps that double; between two
samples this watch counts on. What it all means is decided by the master (``faults/cuts.py``).
"""

import ipaddress
from collections.abc import Iterable, Mapping

from ftcore.faults.cuts import RETRIES_MIN, UNANSWERED_MAX, Net, Unanswered
from ftcore.runtime.agent.sockets import Connection


class UnansweredWatch:
    """Remembers since when connections get no answer."""

    def __init__(self) -> None:
        self._since: dict[tuple[int, int], float] = {}

    def net(self, found: Iterable[Connection], ranks: Mapping[int, int], now: float) -> Net:
        """What the connections of the workers say.

        Args:
            found: connections of this host.
            ranks: global rank of the worker that has a socket, by the socket's inode.
            now: monotonic seconds.
        """
        own = [one for one in found if one.inode in ranks and not ipaddress.ip_address(one.local[0]).is_loopback]
        lost = {(one.inode, one.acked): one for one in own if one.retries >= RETRIES_MIN}
        self._since = {key: min(self._since.get(key, now), now - one.lost_s) for key, one in lost.items()}
        by_address: dict[str, list[tuple[Connection, float]]] = {}
        for key, one in lost.items():
            silent_s = min(one.heard_s, now - self._since[key])
            by_address.setdefault(one.remote[0], []).append((one, silent_s))
        return Net(
            addresses=tuple(sorted({one.local[0] for one in own})),
            unanswered=tuple(
                Unanswered(
                    address=address,
                    connections=len(those),
                    silent_s=round(max(silent_s for _, silent_s in those), 1),
                    retries=max(one.retries for one, _ in those),
                    ranks=tuple(sorted({ranks[one.inode] for one, _ in those})),
                )
                for address, those in sorted(by_address.items())[:UNANSWERED_MAX]
            ),
        )

"""A node's description in its heartbeats: identity, phase, network counters, gauges of accelerators, matched lines.

A field is sent when it has changed since the last heartbeat, and the counters at most every ``COUNTERS_S``; so most
heartbeats have none of it. It is not written to the log: the master keeps it in memory for ``ftctl status --nodes``.

House rule: unreadable values are omitted; they are never an error.
"""

import os
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from ftcore.ports import Host
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.wire import frames

COUNTERS_S: Final = 10.0
"""Interval of reading the network counters, in seconds."""

POD_ENV: Final = ("POD_NAME", "SLURM_JOB_ID")
"""Variables with the platform's name of this node."""

CLASSES_MAX: Final = 50


class NodeInfoWatch:
    """Collects the description of one node.

    Args:
        address: address of the node for other nodes.
        host: the node's machine.
    """

    def __init__(self, address: str, host: Host = THIS_HOST) -> None:
        self._host = host
        self._about = frames.NodeInfo(
            host=host.name,
            address=address,
            pod=next((os.environ[name] for name in POD_ENV if os.environ.get(name)), ""),
            devices=host.devices(),
        )
        self._hits: Counter[str] = Counter()
        self._gauges: dict[str, frames.Gauge] = {}
        self._blind = ""
        self.forget()

    def forget(self) -> None:
        """Send everything again, to a new master."""
        self._whole = True
        self._sent_net: dict[str, tuple[int, int, int]] = {}
        self._sent_hits: dict[str, int] = {}
        self._sent_gauges: dict[str, frames.Gauge] = {}
        self._sent = ("", "")
        self._counters_read_at = -COUNTERS_S

    def matched(self, cls: str, count: int) -> None:
        """Count lines that matched a rule."""
        if cls in self._hits or len(self._hits) < CLASSES_MAX:
            self._hits[cls] += count

    def gauged(self, gauges: Mapping[str, frames.Gauge], blind: str = "") -> None:
        """Store the gauges of the accelerators, or the reason why there are none."""
        self._gauges, self._blind = dict(gauges), blind or frames.SEEING

    def changes(self, now: float, phase: str = "") -> frames.NodeInfo | None:
        """The changes for the next heartbeat; None: no changes.

        Args:
            now: monotonic seconds.
            phase: the node's current phase; see ``frames.NodeInfo``.
        """
        net: dict[str, tuple[int, int, int]] = {}
        if now - self._counters_read_at >= COUNTERS_S:
            self._counters_read_at = now
            read = self._host.interfaces()
            net = {name: counts for name, counts in read.items() if self._sent_net.get(name) != counts}
            self._sent_net.update(net)
        hits = {cls: count for cls, count in self._hits.items() if self._sent_hits.get(cls) != count}
        self._sent_hits.update(hits)
        gauges = {index: gauge for index, gauge in self._gauges.items() if self._sent_gauges.get(index) != gauge}
        self._sent_gauges.update(gauges)
        current = (phase, self._blind)
        phase, blind = (new if new != sent else "" for new, sent in zip(current, self._sent, strict=True))
        self._sent = current
        if not (self._whole or net or hits or gauges or phase or blind):
            return None
        about, self._whole = (self._about if self._whole else frames.NodeInfo()), False
        changed = msgspec.structs.replace(about, net=net, hits=hits, phase=phase, gauges=gauges, blind=blind)
        return changed if changed != frames.NodeInfo() else None

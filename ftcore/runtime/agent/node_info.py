"""What a node says of itself in its heartbeats, beside step and loss: who it is, what it does, its network's counters,
its accelerators' gauges, known lines.

A field travels when it has changed since a master was last told, and the counters at most every ``LOOK_S``; so most
heartbeats carry nothing of it. None of it enters the log: it lives in the master's memory, for ``ftctl status
--nodes``.

House rule: what cannot be read is left out, and never an error.
"""

import os
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from ftcore.ports import Host
from ftcore.runtime.host import HERE
from ftcore.runtime.wire import frames

LOOK_S: Final = 10.0
"""How often the counters are read."""

POD_ENV: Final = ("POD_NAME", "SLURM_JOB_ID")
"""Where the name of what the platform runs is found."""

CLASSES_MAX: Final = 50


class NodeInfoWatch:
    """Of one node.

    Args:
        address: at which other nodes reach it.
        host: the machine that it is on.
    """

    def __init__(self, address: str, host: Host = HERE) -> None:
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
        """Another master listens: it is told everything."""
        self._whole = True
        self._told_net: dict[str, tuple[int, int, int]] = {}
        self._told_hits: dict[str, int] = {}
        self._told_gauges: dict[str, frames.Gauge] = {}
        self._told = ("", "")
        self._looked = -LOOK_S

    def matched(self, cls: str, count: int) -> None:
        """A rule knew lines that a worker printed."""
        if cls in self._hits or len(self._hits) < CLASSES_MAX:
            self._hits[cls] += count

    def gauged(self, gauges: Mapping[str, frames.Gauge], blind: str = "") -> None:
        """The accelerators were looked at, or why they cannot be."""
        self._gauges, self._blind = dict(gauges), blind or frames.SEEING

    def changes(self, now: float, phase: str = "") -> frames.NodeInfo | None:
        """What the next heartbeat tells; None: nothing is new.

        Args:
            now: monotonic seconds.
            phase: what the node does.
        """
        net: dict[str, tuple[int, int, int]] = {}
        if now - self._looked >= LOOK_S:
            self._looked = now
            read = self._host.interfaces()
            net = {name: counts for name, counts in read.items() if self._told_net.get(name) != counts}
            self._told_net.update(net)
        hits = {cls: count for cls, count in self._hits.items() if self._told_hits.get(cls) != count}
        self._told_hits.update(hits)
        gauges = {index: gauge for index, gauge in self._gauges.items() if self._told_gauges.get(index) != gauge}
        self._told_gauges.update(gauges)
        news = (phase, self._blind)
        phase, blind = (new if new != told else "" for new, told in zip(news, self._told, strict=True))
        self._told = news
        about, self._whole = (self._about if self._whole else frames.NodeInfo()), False
        told = msgspec.structs.replace(about, net=net, hits=hits, phase=phase, gauges=gauges, blind=blind)
        return told if told != frames.NodeInfo() else None

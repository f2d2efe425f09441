"""What a node says of itself in its heartbeats, beside step and loss: who it is, what it does, its network's counters,
its accelerators' gauges, known lines.

A field travels when it has changed since a master was last told, and the counters at most every ``LOOK_S``; so most
heartbeats carry nothing of it. None of it enters the log: it lives in the master's memory, for ``ftctl status
--nodes``.

House rule: what cannot be read is left out, and never an error.
"""

import contextlib
import glob
import os
import socket
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

from ftcore.runtime.wire import frames

LOOK_S: Final = 10.0
"""How often the counters are read."""

POD_ENV: Final = ("POD_NAME", "SLURM_JOB_ID")
"""Where the name of what the platform runs is found."""

CLASSES_MAX: Final = 50


class Particulars:
    """Of one node.

    Args:
        address: at which other nodes reach it.
        net_dev: the kernel's counters.
        gpus: the driver's descriptions of devices.
    """

    def __init__(
        self,
        address: str,
        *,
        net_dev: str = "/proc/net/dev",
        gpus: str = "/proc/driver/nvidia/gpus/*/information",
    ) -> None:
        self._net_dev = net_dev
        self._about = frames.Particulars(
            host=socket.gethostname(),
            address=address,
            pod=next((os.environ[name] for name in POD_ENV if os.environ.get(name)), ""),
            devices=tuple(_model(path) for path in sorted(glob.glob(gpus))),
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

    def changes(self, now: float, phase: str = "") -> frames.Particulars | None:
        """What the next heartbeat tells; None: nothing is new.

        Args:
            now: monotonic seconds.
            phase: what the node does.
        """
        net: dict[str, tuple[int, int, int]] = {}
        if now - self._looked >= LOOK_S:
            self._looked = now
            read = interfaces(self._net_dev)
            net = {name: counts for name, counts in read.items() if self._told_net.get(name) != counts}
            self._told_net.update(net)
        hits = {cls: count for cls, count in self._hits.items() if self._told_hits.get(cls) != count}
        self._told_hits.update(hits)
        gauges = {index: gauge for index, gauge in self._gauges.items() if self._told_gauges.get(index) != gauge}
        self._told_gauges.update(gauges)
        news = (phase, self._blind)
        phase, blind = (new if new != told else "" for new, told in zip(news, self._told, strict=True))
        self._told = news
        about, self._whole = (self._about if self._whole else frames.Particulars()), False
        told = msgspec.structs.replace(about, net=net, hits=hits, phase=phase, gauges=gauges, blind=blind)
        return told if told != frames.Particulars() else None


def interfaces(path: str) -> dict[str, tuple[int, int, int]]:
    """By interface that was ever used, loopback excepted: bytes received and sent, errors and drops of both ways."""
    found: dict[str, tuple[int, int, int]] = {}
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(path, encoding="ascii", errors="replace") as file:
            lines = file.readlines()[2:]
        for line in lines[:64]:
            name, _, rest = line.partition(":")
            counts = [int(word) for word in rest.split()]
            if name.strip() != "lo" and (counts[0] or counts[8]):
                found[name.strip()] = (counts[0], counts[8], sum(counts[2:4]) + sum(counts[10:12]))
    return found


def _model(path: str) -> str:
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return "unknown"

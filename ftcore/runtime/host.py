"""The machine that this process runs on; see ``ports.Host``."""

import contextlib
import os
import random
import socket
import time
import uuid
from functools import cached_property
from pathlib import Path

from ftcore.ids import Nanoseconds

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NET_DEV = Path("/proc/net/dev")
GPUS = Path("/proc/driver/nvidia/gpus")

INTERFACES_MAX = 64


class SystemHost:
    """This machine.

    Args:
        net_dev: file with the kernel's counters of network interfaces.
        gpus: directory of the driver, with one subdirectory per device.
    """

    def __init__(self, *, net_dev: Path = NET_DEV, gpus: Path = GPUS) -> None:
        self._net_dev = net_dev
        self._gpus = gpus

    @cached_property
    def name(self) -> str:
        """See ``ports.Host``."""
        return socket.gethostname()

    @property
    def pid(self) -> int:
        """See ``ports.Host``."""
        return os.getpid()

    @cached_property
    def boot(self) -> str:
        """See ``ports.Host``."""
        try:
            return BOOT_ID.read_text().strip()
        except OSError:
            return ""

    def wall(self) -> Nanoseconds:
        """See ``ports.Host``."""
        return Nanoseconds(time.time_ns())

    def mono(self) -> Nanoseconds:
        """See ``ports.Host``."""
        return Nanoseconds(time.monotonic_ns())

    def uniform(self, low: float, high: float) -> float:
        """See ``ports.Host``."""
        return random.uniform(low, high)

    def unique(self) -> str:
        """See ``ports.Host``."""
        return uuid.uuid4().hex

    def can_open(self, count: int) -> bool:
        """See ``ports.Host``."""
        probes: list[int] = []
        try:
            for _ in range(count):
                probes.append(os.dup(0))
        except OSError:
            return False
        finally:
            for fd in probes:
                os.close(fd)
        return True

    def devices(self) -> tuple[str, ...]:
        """See ``ports.Host``."""
        return tuple(_model(path) for path in sorted(self._gpus.glob("*/information")))

    def interfaces(self) -> dict[str, tuple[int, int, int]]:
        """See ``ports.Host``; without loopback and unused interfaces."""
        found: dict[str, tuple[int, int, int]] = {}
        with contextlib.suppress(OSError, ValueError, IndexError):
            with self._net_dev.open(encoding="ascii", errors="replace") as file:
                lines = file.readlines()[2:]
            for line in lines[:INTERFACES_MAX]:
                name, _, rest = line.partition(":")
                counts = [int(count) for count in rest.split()]
                if name.strip() != "lo" and (counts[0] or counts[8]):
                    found[name.strip()] = (counts[0], counts[8], sum(counts[2:4]) + sum(counts[10:12]))
        return found


THIS_HOST = SystemHost()
"""The default machine."""


def _model(path: Path) -> str:
    with contextlib.suppress(OSError), path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return "unknown"

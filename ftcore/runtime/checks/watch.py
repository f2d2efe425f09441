"""Watches the devices of a node while it trains: gauges at intervals, Xids as they occur. A long-lived process.

The driver of a failing device may block for minutes; the agent must not wait for it, so a separate process queries the
driver. The process creates no context on a device, so it uses no device memory.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.faults.scan import Hit, Scanner
from ftcore.runtime.checks import nvml, xid
from ftcore.runtime.checks.protocol import DEVICES, CheckReport

GAUGE_S: Final = 10.0
"""Interval of reading gauges, unless an Xid occurs earlier."""


def watch(emit: Callable[[CheckReport], None]) -> None:
    """Report gauges and Xids; returns only if neither can be read, after one report of the reason."""
    lib, detail = nvml.load()
    source = _source(lib)
    if lib is None and source is None:
        emit(CheckReport(name=DEVICES, verdict="unavailable", detail=detail))
        return
    scanner = Scanner()
    hits: tuple[Hit, ...] = ()
    while True:
        emit(CheckReport(name=DEVICES, detail=detail, gauges=nvml.gauges(lib) if lib is not None else {}, hits=hits))
        lines = source.wait(GAUGE_S) if source is not None else _pause()
        now = time.monotonic_ns()
        new = [hit for line in lines for hit in scanner.feed(f"{line}\n".encode(), now)]
        hits = (*new, *scanner.flush(now))


def _pause() -> list[str]:
    time.sleep(GAUGE_S)
    return []


def _source(lib: Any) -> xid.KernelLog | xid.Events | None:
    try:
        return xid.KernelLog(past=False)
    except OSError:
        pass
    try:
        return xid.Events(lib) if lib is not None else None
    except Exception:
        return None

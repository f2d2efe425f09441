"""The devices of a node while it trains: gauges every few seconds, Xids as they come. A process of its own, for long.

The driver of a device that dies may answer nobody for minutes; the agent, who must not wait, hears from this process,
or no more. It makes no context on a device, so it takes no memory of theirs.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from ftcore.faults.scan import Hit, Scanner
from ftcore.runtime.checks import nvml, xid
from ftcore.runtime.checks.protocol import DEVICES, Said

GAUGE_S: Final = 10.0
"""How often gauges are read, if nothing happens."""


def watch(say: Callable[[Said], None]) -> None:
    """Tell until there is nothing to tell; what cannot be read is said once."""
    lib, detail = nvml.load()
    source = _source(lib)
    if lib is None and source is None:
        say(Said(name=DEVICES, verdict="unavailable", detail=detail))
        return
    scanner = Scanner()
    hits: tuple[Hit, ...] = ()
    while True:
        say(Said(name=DEVICES, detail=detail, gauges=nvml.gauges(lib) if lib is not None else {}, hits=hits))
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

"""URL options of the local platform: ``local:?capacity=1&delay=5s&preempt=node1@30s``.

| option | meaning | default |
|---|---|---|
| ``capacity`` | number of spare machines | no limit |
| ``delay`` | time from the request of a machine until its agent starts | 0 |
| ``repair`` | time after which a lost or cordoned machine is spare again | never |
| ``fill`` | ``yes``: a place whose agent ended is filled at once; ``no``: only when the master requests it | ``yes`` |
| ``preempt`` | ``NODE@TIME``, comma-separated: preempt that node this long after the first round began | none |
| ``grace`` | time between the notice of a preemption and the end of the node | 10 s |
| ``maintain`` | ``NODE@TIME/LENGTH``, comma-separated: announce maintenance of that node, and its end later | none |

Durations are seconds, or have a unit: ``500ms``, ``30s``, ``5m``, ``1h``, ``1d``.
"""

import difflib
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs

from ftcore.errors import UsageError
from ftcore.policies.file.durations import duration


@attrs.frozen(kw_only=True)
class LocalOptions:
    """See the module's table.

    Args:
        path: path of the platform's socket; empty if the URL has none.
        capacity: spare machines; None: no limit.
        delay_s: seconds until the agent of a new machine starts.
        repair_s: seconds until a machine is spare again; None: never.
        fill: fill places without a request.
        preempt: names of nodes and the seconds after the first world at which the notice is sent.
        grace_s: seconds between notice and end.
        maintain: names of nodes, the seconds after the first world at which maintenance is announced, and its length
            in seconds.
    """

    path: str = ""
    capacity: int | None = None
    delay_s: float = 0.0
    repair_s: float | None = None
    fill: bool = True
    preempt: tuple[tuple[str, float], ...] = ()
    grace_s: float = 10.0
    maintain: tuple[tuple[str, float, float], ...] = ()

    @property
    def ever_free(self) -> bool:
        """Whether a replacement machine is, or can become, available."""
        return self.capacity is None or self.capacity > 0 or self.repair_s is not None


def parse(url: str) -> LocalOptions:
    """The options of a ``local:`` URL.

    Raises:
        UsageError: an unknown option or invalid value; the message has the accepted ones.
    """
    parts = urlsplit(url)
    if parts.netloc or parts.fragment:
        raise UsageError(f"{url!r}: a local platform has no host; write local:?OPTIONS")
    found = LocalOptions(path=parts.path)
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise UsageError(f"{url!r}: expected OPTION=VALUE&OPTION=VALUE: {error}") from None
    for name, text in pairs:
        if name not in _READERS:
            near = difflib.get_close_matches(name, _READERS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"accepted: {', '.join(_READERS)}"
            raise UsageError(f"{url!r}: no option {name!r} of the local platform; {hint}")
        read, expected = _READERS[name]
        try:
            found = attrs.evolve(found, **read(text))
        except ValueError:
            raise UsageError(f"{url!r}: {name}: found {text!r}; expected {expected}") from None
    return found


def seconds_of(text: str) -> float:
    """Parse a duration: seconds, or a number with a unit. Raises ``ValueError``."""
    found = duration(text.strip())
    if found is None:
        raise ValueError(text)
    return found


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(text)
    return int(text)


def _switch(text: str) -> bool:
    if text not in ("yes", "no"):
        raise ValueError(text)
    return text == "yes"


def _preempt(text: str) -> tuple[tuple[str, float], ...]:
    found = []
    for part in text.split(","):
        node, at, when = part.partition("@")
        if not node or not at:
            raise ValueError(text)
        found.append((node, seconds_of(when)))
    return tuple(found)


def _maintain(text: str) -> tuple[tuple[str, float, float], ...]:
    found = []
    for part in text.split(","):
        node, _, times = part.partition("@")
        when, slash, length = times.partition("/")
        if not node or not slash:
            raise ValueError(text)
        found.append((node, seconds_of(when), seconds_of(length)))
    return tuple(found)


_READERS: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "capacity": (lambda text: {"capacity": _count(text)}, "a number of machines"),
    "delay": (lambda text: {"delay_s": seconds_of(text)}, "a time such as 5s"),
    "repair": (lambda text: {"repair_s": seconds_of(text)}, "a time such as 1m"),
    "fill": (lambda text: {"fill": _switch(text)}, "yes or no"),
    "preempt": (lambda text: {"preempt": _preempt(text)}, "NODE@TIME, comma-separated, such as node1@30s"),
    "grace": (lambda text: {"grace_s": seconds_of(text)}, "a time such as 10s"),
    "maintain": (lambda text: {"maintain": _maintain(text)}, "NODE@TIME/LENGTH, comma-separated, such as node1@30s/1m"),
}

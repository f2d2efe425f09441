"""The options of the local platform, as its URL has them: ``local:?capacity=1&delay=5s&preempt=node1@30s``.

| option | meaning | default |
|---|---|---|
| ``capacity`` | spare machines: so many nodes can get another machine | as many as are asked for |
| ``delay`` | time from the order for a machine until its agent is started | 0 |
| ``repair`` | time after which a lost or cordoned machine is a spare one again | never |
| ``fill`` | ``yes``: a place whose agent ended is filled at once; ``no``: only by the master's order | ``yes`` |
| ``preempt`` | ``NODE@TIME``, by commas: that node's machine is taken away so long after the first round began | none |
| ``grace`` | time between the notice of a preemption and its end | 10 s |

Durations are numbers of seconds, or have a unit: ``500ms``, ``30s``, ``5m``, ``1h``, ``1d``.
"""

import difflib
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import attrs

from ftcore.errors import UsageError
from ftcore.policies.values import duration


@attrs.frozen(kw_only=True)
class LocalOptions:
    """See the module's table.

    Args:
        path: of the socket at which the platform is reached; empty where it is only described.
        capacity: spare machines; None: no bound.
        delay_s: seconds until a machine is there.
        repair_s: seconds until a machine is a spare one again; None: never.
        fill: places are filled without an order.
        preempt: names of nodes and the second, from the first world on, at which each is told.
        grace_s: seconds between the notice and the end.
    """

    path: str = ""
    capacity: int | None = None
    delay_s: float = 0.0
    repair_s: float | None = None
    fill: bool = True
    preempt: tuple[tuple[str, float], ...] = ()
    grace_s: float = 10.0

    @property
    def ever_free(self) -> bool:
        """There is, or will be, a machine for a node that is given up."""
        return self.capacity is None or self.capacity > 0 or self.repair_s is not None


def parse(url: str) -> LocalOptions:
    """The options of a ``local:`` URL.

    Raises:
        UsageError: it names an option that there is not, or a value that cannot be; says what was expected.
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
            hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(_READERS)}"
            raise UsageError(f"{url!r}: no option {name!r} of the local platform; {hint}")
        read, expected = _READERS[name]
        try:
            found = attrs.evolve(found, **read(text))
        except ValueError:
            raise UsageError(f"{url!r}: {name}: found {text!r}; expected {expected}") from None
    return found


def seconds_of(text: str) -> float:
    """A duration as a number of seconds or with a unit. Raises ``ValueError``."""
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


_READERS: dict[str, tuple[Callable[[str], dict[str, Any]], str]] = {
    "capacity": (lambda text: {"capacity": _count(text)}, "a number of machines"),
    "delay": (lambda text: {"delay_s": seconds_of(text)}, "a time such as 5s"),
    "repair": (lambda text: {"repair_s": seconds_of(text)}, "a time such as 1m"),
    "fill": (lambda text: {"fill": _switch(text)}, "yes or no"),
    "preempt": (lambda text: {"preempt": _preempt(text)}, "NODE@TIME, by commas, such as node1@30s"),
    "grace": (lambda text: {"grace_s": seconds_of(text)}, "a time such as 10s"),
}

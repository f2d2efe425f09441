"""The durations of an incident's phases; ``explain.py`` defines the phases."""

import attrs

from ftcore.events.envelope import Event
from ftcore.events.worker import WorkersStood
from ftcore.ids import SECOND


@attrs.frozen(kw_only=True)
class Phases:
    """Duration of each phase in seconds; None if not known. See the table in ``explain.py``."""

    detect: float | None = None
    decide: float | None = None
    wait: float | None = None
    stop: float | None = None
    rendezvous: float | None = None
    start: float | None = None
    first_step: float | None = None
    total: float | None = None


def between(first: Event | None, second: Event | None) -> float | None:
    """Seconds between two facts by the master's clock; None if one is missing."""
    return None if first is None or second is None else (second.time - first.time) / SECOND


def detect_s(root: Event | None, opening: Event) -> float | None:
    """Seconds from the fault to the fact that opened the incident; None if not known.

    A standstill begins with the last completed step. Any other fault begins when its source saw it, by the source's
    clock; the opening has the master's clock.
    """
    if isinstance(opening.data, WorkersStood):
        stands, cuts = opening.data.stands, opening.data.cuts
        silent = [stand.silent_s for stand in stands if stand.silent_s is not None]
        return max(silent or [*(stand.still_s for stand in stands), *(cut.silent_s for cut in cuts)], default=None)
    if root is None or root.at is None or opening.time < root.at.wall:
        return None
    return (opening.time - root.at.wall) / SECOND

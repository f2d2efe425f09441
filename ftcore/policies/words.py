"""Durations and numbers as people are told them: in reasons of policies, in messages, in tables."""

import math

from ftcore.events.health import HealthJudged

NAMES_SHOWN = 6
"""Names in a line; after them only how many more."""

_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
_YEAR_S = 365 * 86400
_COUNT_MAX = 999
"""More of a unit than this is told in larger ones."""


def lasting(seconds: float) -> str:
    """A duration as a policy file has it: ``90s``, ``5m``, ``25h``, ``30d``; whole years as ``1 year``.

    Args:
        seconds: below 1000 s with its fraction, else whole; what is no round number of anything is told in the two
            largest units, as ``23h 59m``, which leaves less than a hundredth out.
    """
    if seconds < 1 or (seconds <= _COUNT_MAX and seconds != int(seconds)):
        return f"{seconds:.4g}s"
    whole = int(seconds)
    if whole % _YEAR_S == 0:
        return plural(whole // _YEAR_S, "year")
    unit, size = next((unit, size) for unit, size in _UNITS if whole % size == 0)
    if whole // size <= _COUNT_MAX:
        return f"{whole // size}{unit}"
    place = next(place for place, (_, size) in enumerate(_UNITS) if whole >= size)
    (unit, size), (below, below_size) = _UNITS[place], _UNITS[place + 1]
    rest = whole % size // below_size
    return f"{whole // size}{unit}" + (f" {rest}{below}" if rest else "")


def plural(count: int, noun: str, many: str = "") -> str:
    """A number with its noun, as ``1 event`` or ``2,000 events``.

    Args:
        count: how many.
        noun: for one.
        many: for several, where an s does not make it.
    """
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"


def clean(text: str) -> str:
    """One line without control characters: what a worker wrote must not steer the terminal."""
    return "".join(char if char.isprintable() else " " for char in text.replace("\r\n", "\n").replace("\n", " | "))


def duration(value: float | None) -> str:
    """Seconds for people; a dash for what is not known. Half a unit is rounded up."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{_rounded(value * 1000)} ms"
    if value < 119.95:
        return f"{_rounded(value * 10) / 10:.1f} s"
    minutes, rest = divmod(_rounded(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m{rest:02d}s" if hours else f"{minutes}m{rest:02d}s"


def _rounded(value: float) -> int:
    """To whole numbers; two sums of the same parts agree, whatever their last binary digits."""
    return math.floor(round(value, 4) + 0.5)


def judged(data: HealthJudged) -> str:
    """Who is not healthy and why, links at fault, and what differs."""
    said = [f"{each.node} is {each.verdict}: {each.reason}" for each in data.ill[:NAMES_SHOWN]]
    said += [f"{len(data.ill) - NAMES_SHOWN} more are not plainly healthy"] if len(data.ill) > NAMES_SHOWN else []
    said += [f"the link {'-'.join(link.nodes)} is at fault: {link.reason}" for link in data.links[:NAMES_SHOWN]]
    said += [
        f"{group.label}: its {len(group.nodes) + group.others} nodes fail all together, though not in pairs: "
        f"{group.reason}"
        for group in data.apart[:NAMES_SHOWN]
    ]
    said += [f"nodes differ in {text}" for text in data.differing]
    said += [data.note] if data.note else []
    stages = plural(data.stages, "stage")
    return f"{plural(data.nodes, 'node')} in {stages}: {'; '.join(said) or 'all healthy'}"

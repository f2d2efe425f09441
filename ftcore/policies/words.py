"""Durations and numbers as people are told them: in reasons of policies, in messages, in tables."""

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

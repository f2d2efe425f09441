"""Durations as text: ``300``, ``90s``, ``1.5h``, ``1h30m``.

House rule: imports the standard library alone, because the command lines parse their arguments with it.
"""

import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)?")
_IN_PARTS = re.compile(r"(?=[0-9])(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")


def duration(text: str) -> float | None:
    """Parse a duration to seconds: ``300``, ``90s``, ``1.5h``, ``1h30m``, largest unit first; None if it is invalid."""
    single = _DURATION.fullmatch(text)
    if single is not None:
        return float(single[1]) * UNITS[single[2] or "s"]
    parts = _IN_PARTS.fullmatch(text)
    if parts is None:
        return None
    return sum(float(count) * UNITS[unit] for unit, count in zip("dhms", parts.groups(), strict=True) if count)

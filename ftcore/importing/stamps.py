"""Time stamps at the head of a line.

| format | example | written by |
|---|---|---|
| RFC 3339, ISO 8601 | ``2026-11-25T22:14:02.745Z``, ``2026-11-25 22:14:02,745`` | kubectl, Python's logging, Slurm |
| glog | ``W1125 22:14:02.745000`` | torchrun, NCCL's watchdog |
| syslog | ``Nov 25 22:14:02`` | slurmd, the kernel |
| seconds since the epoch | ``[1795644842.014]`` | UCX, scripts |

Pure: the year of a time stamp without one is an argument; a stamp without time zone is read as UTC and marked.
"""

import calendar
import re

from ftcore.ids import SECOND
from ftcore.importing.model import SourceTime

HEAD_CHARS = 160
"""A line's time stamp is at its start, perhaps after a host, a rank or a level."""

_ISO = re.compile(
    r"(?<![\d.])(\d{4})[-/](\d\d)[-/](\d\d)[T _](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)?(?![\d])"
)
_GLOG = re.compile(r"(?:^|[\s\]:])[IWEFDC](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})\b")
_SYSLOG = re.compile(r"(?:^|\s|\[)([A-Z][a-z]{2}) {1,2}(\d{1,2}) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\b")
_EPOCH = re.compile(r"^\[?(\d{10})\.(\d{1,9})\]?(?=[\s\]:]|$)")
_MONTHS = {name: number for number, name in enumerate(calendar.month_abbr) if name}


def stamp_of(line: str, year: int) -> SourceTime | None:
    """The time stamp of a line; None: it has none.

    Args:
        line: the line.
        year: for a stamp without one.
    """
    head = line[:HEAD_CHARS]
    if ":" in head:
        if (found := _ISO.search(head)) is not None:
            return iso_moment(found)
        if (found := _GLOG.search(head)) is not None:
            month, day, hour, minute, second, part = found.groups()
            return _moment((year, int(month), int(day), int(hour), int(minute), int(second)), part, yearless=True)
        if (found := _SYSLOG.search(head)) is not None and found[1] in _MONTHS:
            _, day, hour, minute, second, part = found.groups()
            whole = (year, _MONTHS[found[1]], int(day), int(hour), int(minute), int(second))
            return _moment(whole, part, yearless=True)
    if (found := _EPOCH.search(head)) is not None:
        return SourceTime(ns=int(found[1]) * SECOND + _fraction(found[2]), error_s=10.0 ** -len(found[2]), basis="line")
    return None


def read_time(text: str) -> SourceTime | None:
    """The time in a field of a record; None: it is not a time of ISO 8601."""
    found = _ISO.search(text[:HEAD_CHARS])
    return iso_moment(found, "field") if found is not None else None


def iso_moment(found: "re.Match[str]", basis: str = "line") -> SourceTime | None:
    """The moment of a match of the ISO pattern; None: there is no such day or hour."""
    year, month, day, hour, minute, second = (int(text) for text in found.groups()[:6])
    return _moment((year, month, day, hour, minute, second), found[7], zone=found[8], basis=basis)


def _moment(
    whole: tuple[int, int, int, int, int, int],
    part: str | None,
    *,
    zone: str | None = None,
    yearless: bool = False,
    basis: str = "line",
) -> SourceTime | None:
    year, month, day, hour, minute, second = whole
    if not (1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    if day > calendar.monthrange(year, month)[1]:
        return None
    ns = calendar.timegm((year, month, day, hour, minute, second)) * SECOND + _fraction(part)
    if zone and zone != "Z":
        sign = 1 if zone[0] == "-" else -1
        digits = zone[1:].replace(":", "")
        ns += sign * (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * SECOND
    error_s = 10.0 ** -min(len(part), 6) if part else 1.0
    return SourceTime(ns=ns, error_s=error_s, basis=basis, local=not zone, yearless=yearless)


def _fraction(part: str | None) -> int:
    return int(part.ljust(9, "0")[:9]) if part else 0

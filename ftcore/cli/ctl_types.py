"""Types of arguments; errors have the form ``found X; expected Y``."""

import argparse
import datetime
import math

from ftcore.ids import SECOND, seconds
from ftcore.policies.file.durations import duration
from ftcore.replay.bounds import Bound

BOUND_HELP = "an event number, a time such as 2025-03-01T22:13:20 (UTC), or how long ago: 90s, 15m, 2h, 3d"


LINES_MAX = 1_000_000
"""Most lines of a file that can be asked for."""

DURATION_MAX_S = 1e11
"""Longest accepted duration: about three thousand years."""


def _wrong(text: str, expected: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"found {text!r}; expected {expected}")


def bound(text: str) -> Bound:
    """A position in a log, for ``--since`` and ``--until``.

    Raises:
        argparse.ArgumentTypeError: the text is not a position.
    """
    if text.isdecimal():
        return Bound(seq=int(text))
    ago = duration(text)
    if ago is not None and text[-1].isalpha():
        return Bound(ago=seconds(ago))
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise _wrong(text, BOUND_HELP) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    since_epoch = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return Bound(time=(since_epoch.days * 86400 + since_epoch.seconds) * SECOND + since_epoch.microseconds * 1000)


def position(text: str) -> int:
    """A seq."""
    if not text.isdecimal():
        raise _wrong(text, "an event number: a whole number from 0")
    return int(text)


def whole(text: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise _wrong(text, "a whole number") from None


def count(text: str) -> int:
    """A whole number over 0."""
    if not text.isdecimal() or not int(text):
        raise _wrong(text, "a whole number over 0")
    return int(text)


def line_count(text: str) -> int:
    """A number of lines."""
    if not text.isdecimal() or len(text) > len(str(LINES_MAX)) or not 0 < int(text) <= LINES_MAX:
        raise _wrong(text, f"a whole number from 1 to {LINES_MAX}")
    return int(text)


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise _wrong(text, "a number") from None


def positive(text: str) -> float:
    """A number over 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise _wrong(text, "a number over 0")
    return value


def duration_s(text: str) -> float:
    """A duration as in policy files, in seconds: ``300``, ``90s``, ``5m``, ``2h``, ``1d``."""
    found = duration(text)
    if found is None or found > DURATION_MAX_S:
        raise _wrong(text, "a duration such as 300, 90s, 5m or 1h30m")
    return found


def duration_over_0(text: str) -> float:
    """A duration that is not 0."""
    value = duration_s(text)
    if value <= 0:
        raise _wrong(text, "a duration over 0, such as 300, 90s, 5m or 2h")
    return value

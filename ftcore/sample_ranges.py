"""Places of samples in the order of a data set, as ranges: those that are trained on, and those that are left out.

All epochs are one stream of places: place ``size`` is the first of the second epoch. For the loader in the worker, and
for the ledger that is read from the log. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

SampleRange: TypeAlias = tuple[int, int]
"""The first place, and the place after the last one."""


def merged(ranges: Iterable[SampleRange]) -> list[SampleRange]:
    """Return ranges in order, without overlap."""
    made: list[SampleRange] = []
    for first, after in sorted(ranges):
        if made and first <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], after))
        else:
            made.append((first, after))
    return made


def taken(position: int, count: int, skipped: Sequence[SampleRange]) -> list[SampleRange]:
    """Return the places of the next samples.

    Args:
        position: where to begin.
        count: how many samples.
        skipped: places to leave out, in order, without overlap.
    """
    found: list[SampleRange] = []
    at = position
    for first, after in skipped:
        if count and at < first:
            part = min(count, first - at)
            found.append((at, at + part))
            count, at = count - part, at + part
        if count:
            at = max(at, after)
    if count:
        found.append((at, at + count))
    return found


def without(ranges: Iterable[SampleRange], others: Sequence[SampleRange]) -> list[SampleRange]:
    """Return the places of ranges that are in none of the others, which are in order and without overlap."""
    left: list[SampleRange] = []
    for first, after in ranges:
        at = first
        for begin, end in others:
            if end > at and begin < after:
                if begin > at:
                    left.append((at, begin))
                at = max(at, end)
        if at < after:
            left.append((at, after))
    return left

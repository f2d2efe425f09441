"""Identifiers and units: plain values that appear in events, orders and messages.

They are ``NewType`` aliases: without cost at run time, and a type checker rejects a round passed as a rank.
Times are integers in nanoseconds unless a name ends in ``_s``.
"""

from typing import NewType

JobName = NewType("JobName", str)
"""A job: one event log, one leader."""

Round = NewType("Round", int)
"""One attempt to train with a fixed world, from 1; the fencing token of workers."""

Term = NewType("Term", int)
"""One period of leadership of a master, increasing; the fencing token of masters."""

Seq = NewType("Seq", int)
"""Position of an event in its log, from 1, without gaps; 0 means before the first."""

EffectId = NewType("EffectId", str)
"""Identity of an ordered effect: the same on every delivery, retry and replay."""

IncidentId = NewType("IncidentId", str)
"""Identity of an incident inside its job."""

Nanoseconds = NewType("Nanoseconds", int)
"""A time since the epoch or a duration, in nanoseconds."""

SECOND = Nanoseconds(1_000_000_000)
"""One second in nanoseconds."""


def seconds(value: float) -> Nanoseconds:
    """Convert seconds to whole nanoseconds."""
    return Nanoseconds(round(value * SECOND))

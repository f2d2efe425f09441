"""Names of things: plain values that appear in events, orders and messages.

They are ``NewType`` aliases, so they cost nothing at run time and keep a round from being passed as a rank.
Times are integers in nanoseconds unless a name ends in ``_s``.
"""

from typing import NewType

JobName = NewType("JobName", str)
"""A job: one event log, one master role."""

NodeId = NewType("NodeId", str)
"""A place in the cluster that runs one agent at a time."""

Incarnation = NewType("Incarnation", str)
"""One life of a process (an agent, a master): new with every start."""

Rank = NewType("Rank", int)
"""Global rank of a worker in a round, from 0."""

Round = NewType("Round", int)
"""One attempt to train with a fixed world, from 1; the fencing number of workers."""

Term = NewType("Term", int)
"""One period of leadership of a master, growing; the fencing number of masters."""

Seq = NewType("Seq", int)
"""Position of an event in its log, dense from 1; 0 means before the first."""

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

"""Evidence of faults: what facts reported, and how often the same fault came. Data alone."""

import attrs

from ftcore.states.disruption import DisruptionState

HITS_MAX = 32
"""Lines of output that matched a rule, kept as evidence for the next fault."""

REPORTS_MAX = 64
"""Reports kept to find the root of an incident; later ones do not change it."""

TAIL_BYTES_MAX = 2048
"""Bytes of output kept per report; the event holds more, the log files on the node hold all."""


@attrs.frozen(kw_only=True)
class Report:
    """Raw evidence of a fault from one fact; it is classified again for each decision.

    Args:
        seq: the fact.
        type: its event type.
        node, rank: the node or worker at fault; rank -1 for a whole node.
        round: the round that was hit.
        time: the master's nanoseconds.
        mono, boot: the source's monotonic nanoseconds and the boot that they belong to; 0 and empty if unknown.
        exitcode: exit code of the worker, negative for a signal; None if no process ended.
        message: of the exception, the platform or the operator.
        tail: the last lines of the worker's output.
        step, absolute: the last completed step.
        source, kind: of a ``fault.observed``: the observer and the kind of fault.
        values: measured values, by name.
    """

    seq: int
    type: str
    node: str
    rank: int
    round: int
    time: int
    mono: int
    boot: str
    exitcode: int | None
    message: str
    tail: str
    step: int | None
    absolute: bool
    source: str = ""
    kind: str = ""
    values: dict[str, float] = attrs.field(factory=dict)


@attrs.define(kw_only=True)
class Repeat:
    """How often the same fault occurred at the same step, in consecutive incidents or attempts.

    Args:
        key: class, message without its numbers, and last completed step.
        count: how often in a row, the newest time included.
        before: key and count of the fault before, which a new reading is compared with.
    """

    key: str = ""
    count: int = 0
    before: tuple[str, int] = ("", 0)


@attrs.define(kw_only=True)
class EvidenceState:
    """Evidence of faults.

    Args:
        reports: facts about the present fault, in order of arrival.
        hits: lines of output that matched a rule, newest last: evidence for the next fault.
        node_faults: times of the newest faults by the node at fault.
        other_faults: times of the newest faults of no node.
        repeat: how often the same fault came in a row.
        disruptions: observations that last until a fact ends them, by kind, with the node if it is about one.
    """

    reports: list[Report] = attrs.field(factory=list)
    hits: list[Report] = attrs.field(factory=list)
    node_faults: dict[str, list[int]] = attrs.field(factory=dict)
    other_faults: list[int] = attrs.field(factory=list)
    repeat: Repeat = attrs.field(factory=Repeat)
    disruptions: dict[str, DisruptionState] = attrs.field(factory=dict)

"""Correlation: the reports of one moment -> one fault, with its root first.

Reports of one round belong together. The root is chosen by what it is before when it came, because a victim's report
may well arrive first: a death by signal or a lost node, then an exception of its own, then an exit without a word, then
what says by itself that it is collateral. Among equals the earliest wins: by the monotonic clock where the reports come
from one boot, else by the master's clock.
"""

from collections.abc import Sequence

from ftcore.events.incident import Fault
from ftcore.faults.classify import Reading, classify
from ftcore.states.model import Report

_FAULT_ORDER = {"root": 0, "unknown": 1, "collateral": 2}
_NAMED_MAX = 16
"""Nodes and ranks named in a fault; the log holds the rest."""


def correlate(reports: Sequence[Report]) -> Fault:
    """One fault out of the reports of the newest round among them.

    Args:
        reports: at least one report.
    """
    newest = max(report.round for report in reports)
    readings = [classify(report) for report in reports if report.round == newest]
    one_boot = len({reading.report.boot for reading in readings}) == 1 and readings[0].report.boot != ""
    ordered = sorted(readings, key=lambda reading: _rank(reading, one_boot))
    root, rest = ordered[0], ordered[1:]
    return Fault(
        cls=str(root.cls),
        detail=root.detail,
        nodes=_unique([reading.report.node for reading in ordered]),
        ranks=tuple(reading.report.rank for reading in ordered if reading.report.rank >= 0)[:_NAMED_MAX],
        root=root.report.seq,
        collateral=tuple(sorted(reading.report.seq for reading in rest))[:_NAMED_MAX],
        step=root.report.step,
        absolute=root.report.absolute,
        summary=root.summary,
    )


def _rank(reading: Reading, one_boot: bool) -> tuple[int, int, int, int]:
    report = reading.report
    signalled = 0 if report.exitcode is None or report.exitcode < 0 else 1
    return _FAULT_ORDER[reading.role], signalled, report.mono if one_boot else report.time, report.seq


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:_NAMED_MAX]

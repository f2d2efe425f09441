"""Correlation: combines the reports of one round into one fault and finds its root cause.

A victim's report may arrive first, so the kind of a report counts more than its time. The order is: a hardware error,
the end by a signal or a lost node, an exception, an inconclusive report (an exit without a message, a timeout), and
last a report that is collateral. Of equals the earliest is the root: by the monotonic clock if all reports come from
one boot, else by the master's clock. A line about a memory error that hit one process only comes last if a worker on
that node reports the error itself: both are of one fault, and the worker says that its device works.

If all reports are from victims, the suspect is the rank that most of them name, or the rank that is behind the others
in the order of collectives. It is put first among the ranks, and its node first among the nodes if the world is known.
Lines of output that matched rules (hits) shortly before count as reports: an Xid explains the CUDA error that follows.
"""

import re
from collections.abc import Mapping, Sequence, Set

from ftcore.events.incident import Fault
from ftcore.faults.classify import DECISIVE, Reading, classify
from ftcore.faults.codes import XIDS, XidKind
from ftcore.faults.rule import COLLATERAL, ROOT, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass
from ftcore.ids import SECOND
from ftcore.states.evidence import Report

HITS_WINDOW_NS = 120 * SECOND
"""A hit that is older than this at the first report is unrelated: training continued after it."""

HARDWARE = 95
"""Least weight of a device's report that it is broken."""

_MEMORY_ERROR = ("fault.observed", "uce")
_CONTAINED = frozenset(f"xid-{xid.name}" for xid in XIDS if xid.kind is XidKind.CONTAINED)
_FAULT_ORDER = {ROOT: 0, UNSURE: 1, COLLATERAL: 2}
_NAMED_MAX = 16
"""Most nodes and ranks named in a fault; the log has the rest."""
_WAITS = (FaultClass.NCCL_TIMEOUT, FaultClass.HANG, FaultClass.COLLATERAL, FaultClass.NCCL_REMOTE_ERROR)
_PLACE = (re.compile(r"last completed (?:NCCL )?work: (\d{1,18})"), re.compile(r"SeqNum=(\d{1,18})"))


def correlate(
    reports: Sequence[Report],
    hits: Sequence[Report] = (),
    extra: tuple[Rule, ...] = (),
    node_of: Mapping[int, str] | None = None,
    *,
    worker_precedes: bool = True,
) -> Fault:
    """Combine the reports of the newest round into one fault.

    Args:
        reports: at least one report.
        hits: ``log.matched`` reports: lines of workers' output and of the kernel log that matched rules.
        extra: the job's custom rules.
        node_of: the node of each rank, to name the node of a suspect that sent no report.
        worker_precedes: false: a worker's report of a memory error does not precede the driver's line about it.
    """
    newest = max(report.round for report in reports)
    readings = [classify(report, extra) for report in reports if report.round == newest]
    readings += _explaining(hits, [reading.report for reading in readings], extra)
    one_boot = len({reading.report.boot for reading in readings}) == 1 and readings[0].report.boot != ""
    damaged = (reading for reading in readings if (reading.report.type, reading.detail) == _MEMORY_ERROR)
    observed = {reading.report.node for reading in damaged} if worker_precedes else set()
    ordered = sorted(readings, key=lambda reading: (_repeats(reading, observed), _rank(reading, one_boot)))
    ordered, suspect = _with_suspect(ordered)
    root, rest = ordered[0], ordered[1:]
    ranks = [reading.report.rank for reading in ordered if reading.report.rank >= 0]
    nodes = [reading.report.node for reading in ordered]
    summary = root.summary
    if suspect is not None:
        ranks.insert(0, suspect)
        nodes = [node_of[suspect], *nodes] if node_of is not None and suspect in node_of else nodes
        summary += f"; the others wait for rank {suspect}"
    return Fault(
        cls=str(root.cls),
        detail=root.detail,
        nodes=_unique(nodes),
        ranks=tuple(dict.fromkeys(ranks))[:_NAMED_MAX],
        root=root.report.seq,
        collateral=tuple(sorted(reading.report.seq for reading in rest))[:_NAMED_MAX],
        step=root.report.step,
        absolute=root.report.absolute,
        summary=summary,
    )


def _explaining(hits: Sequence[Report], reports: Sequence[Report], extra: tuple[Rule, ...]) -> list[Reading]:
    """Return the hits that may explain the reports: shortly before, on a reporting node, and clearly a root cause."""
    first = min(report.time for report in reports)
    nodes = {report.node for report in reports}
    readings = [
        classify(hit, extra)
        for hit in hits
        if hit.node in nodes and hit.round == reports[0].round and hit.time >= first - HITS_WINDOW_NS
    ]
    return [reading for reading in readings if reading.role == ROOT and reading.weight >= DECISIVE]


def _repeats(reading: Reading, observed: Set[str]) -> bool:
    """Whether a line repeats what a worker has observed; ``observed``: the nodes of such workers."""
    return reading.report.type == "log.matched" and reading.detail in _CONTAINED and reading.report.node in observed


def _rank(reading: Reading, one_boot: bool) -> tuple[int, int, int, int, int]:
    report = reading.report
    hardware = 0 if reading.weight >= HARDWARE else 1
    signalled = 0 if (report.exitcode is None and report.type != "log.matched") or (report.exitcode or 0) < 0 else 1
    return _FAULT_ORDER[reading.role], hardware, signalled, report.mono if one_boot else report.time, report.seq


def _with_suspect(ordered: list[Reading]) -> tuple[list[Reading], int | None]:
    """If no report is a root: put the suspect's report first, or return the suspect's rank if it sent no report."""
    if ordered[0].role == ROOT or ordered[0].cls not in _WAITS:
        return ordered, None
    suspect = _suspect(ordered)
    if suspect is None:
        return ordered, None
    own = [reading for reading in ordered if reading.report.rank == suspect]
    if own:
        return [*own, *(reading for reading in ordered if reading.report.rank != suspect)], None
    return ordered, suspect


def _suspect(readings: Sequence[Reading]) -> int | None:
    """Return the rank that most readings blame, or the rank that is behind the others in the order of collectives."""
    ranks = [int(reading.blamed) for reading in readings if reading.blamed.isdecimal()]
    if ranks:
        return max(dict.fromkeys(ranks), key=ranks.count)
    for pattern in _PLACE:
        places: dict[int, int] = {}
        for reading in readings:
            number = pattern.search(reading.report.message) or pattern.search(reading.report.tail)
            if number is not None and reading.report.rank >= 0:
                places[reading.report.rank] = int(number[1])
        if len(set(places.values())) > 1:
            return min(places, key=lambda rank: places[rank])
    return None


def _unique(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))[:_NAMED_MAX]

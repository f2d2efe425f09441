"""Correlation: the reports of one moment -> one fault, with its root first.

Reports of one round belong together. The root is chosen by what it is before when it came, because a victim's report
may well arrive first: hardware that says so, then a death by signal or a lost node, then an exception of its own, then
what cannot tell (an exit without a word, a wait that ran out), then what says by itself that it is collateral. Among
equals the earliest wins: by the monotonic clock where the reports come from one boot, else by the master's clock.

Where all who report are victims, the culprit is whom they name, who is behind them in the order of collectives, or
the one rank that others speak of and that said nothing itself: it stands first among the ranks, and its node first
among the nodes if the world is known. Lines of output that rules knew (hits) count as reports of their own if they came
close before: a kernel's Xid explains the CUDA error that follows it.
"""

import re
from collections.abc import Mapping, Sequence

from ftcore.events.incident import Fault
from ftcore.faults.classify import LOUD, Reading, classify
from ftcore.faults.rule import COLLATERAL, ROOT, UNSURE, Rule
from ftcore.faults.taxonomy import FaultClass
from ftcore.ids import SECOND
from ftcore.states.model import Report

HITS_WINDOW_NS = 120 * SECOND
"""A line that came longer before the first report than this is of another matter: the training went on after it."""

HARDWARE = 95
"""Weight from which on a device says of itself that it is broken."""

_FAULT_ORDER = {ROOT: 0, UNSURE: 1, COLLATERAL: 2}
_NAMED_MAX = 16
"""Nodes and ranks named in a fault; the log holds the rest."""
_WAITS = (FaultClass.NCCL_TIMEOUT, FaultClass.HANG, FaultClass.COLLATERAL, FaultClass.NCCL_REMOTE_ERROR)
_PLACE = (re.compile(r"last completed (?:NCCL )?work: (\d{1,18})"), re.compile(r"SeqNum=(\d{1,18})"))


def correlate(
    reports: Sequence[Report],
    hits: Sequence[Report] = (),
    extra: tuple[Rule, ...] = (),
    node_of: Mapping[int, str] | None = None,
) -> Fault:
    """One fault out of the reports of the newest round among them.

    Args:
        reports: at least one report.
        hits: ``log.matched`` reports: lines of output and of the kernel that rules knew.
        extra: the job's own rules.
        node_of: the node of each rank, to name the node of a culprit that could not report.
    """
    newest = max(report.round for report in reports)
    readings = [classify(report, extra) for report in reports if report.round == newest]
    readings += _explaining(hits, [reading.report for reading in readings], extra)
    one_boot = len({reading.report.boot for reading in readings}) == 1 and readings[0].report.boot != ""
    ordered = sorted(readings, key=lambda reading: _rank(reading, one_boot))
    ordered, suspect = _with_suspect(ordered)
    root, rest = ordered[0], ordered[1:]
    ranks = [reading.report.rank for reading in ordered if reading.report.rank >= 0]
    nodes = [reading.report.node for reading in ordered]
    summary = root.summary
    if suspect is not None:
        ranks.insert(0, suspect)
        nodes = [node_of[suspect], *nodes] if node_of is not None and suspect in node_of else nodes
        summary += f"; they wait for rank {suspect}"
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
    """The hits that may explain the reports: close before, loud, of a node that reports, and a cause by themselves."""
    first = min(report.time for report in reports)
    nodes = {report.node for report in reports}
    readings = [
        classify(hit, extra)
        for hit in hits
        if hit.node in nodes and hit.round == reports[0].round and hit.time >= first - HITS_WINDOW_NS
    ]
    return [reading for reading in readings if reading.role == ROOT and reading.weight >= LOUD]


def _rank(reading: Reading, one_boot: bool) -> tuple[int, int, int, int, int]:
    report = reading.report
    hardware = 0 if reading.weight >= HARDWARE else 1
    signalled = 0 if (report.exitcode is None and report.type != "log.matched") or (report.exitcode or 0) < 0 else 1
    return _FAULT_ORDER[reading.role], hardware, signalled, report.mono if one_boot else report.time, report.seq


def _with_suspect(ordered: list[Reading]) -> tuple[list[Reading], int | None]:
    """Where nobody is the root by itself: the culprit's own report first, or the rank of one that sent none."""
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
    """The rank that most of them name, or the one that is behind the others in the order of collectives."""
    blamed = [int(reading.names) for reading in readings if reading.names.isdecimal()]
    if blamed:
        return max(dict.fromkeys(blamed), key=blamed.count)
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

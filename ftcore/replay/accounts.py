"""The use of a job's time by job, incident, cause and node, from its spans and the stays of its nodes."""

import bisect
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final

import attrs

from ftcore.ids import SECOND
from ftcore.replay.explain import Incident
from ftcore.replay.presence import Stay
from ftcore.replay.spans import PRODUCTIVE, USES, Span
from ftcore.wording import timestamp_fields

HOUR_S: Final = 3600.0
LOST: Final = ("detect", "decide", "stop", "rendezvous", "start", "load", "recompute", "idle", "paused")
"""Uses whose time is counted as the cost of the incident that they are due to."""

UNTIMED: Final = "the imported files have no line of a step with a time (ftctl import --steps names its pattern)"
"""Why the goodput of an import may be unknown."""

Seconds = dict[str, float]
"""Seconds by use."""


@attrs.frozen(kw_only=True)
class IncidentCost:
    """What an incident cost.

    Args:
        id: the incident.
        cls: its class; empty: the incident is not kept.
        kind: its kind.
        seconds: seconds by use.
        total_s: all of them.
        gpu_s: seconds times the workers that were there.
        steps_lost: completed steps that had to be computed again; None: not known.
    """

    id: str
    cls: str
    kind: str
    seconds: Seconds
    total_s: float
    gpu_s: float
    steps_lost: int | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``class`` instead of ``cls``."""
        return _renamed(self)


@attrs.frozen(kw_only=True)
class CauseCost:
    """What all incidents of one class cost.

    Args:
        cause: the class; empty: no incident, such as the start of a run.
        incident_count: how many.
        seconds: seconds by use.
        total_s: all of them.
        gpu_s: seconds times the workers that were there.
    """

    cause: str
    incident_count: int
    seconds: Seconds
    total_s: float
    gpu_s: float


@attrs.frozen(kw_only=True)
class NodeUse:
    """What a node's time was used for.

    Args:
        node: the node.
        slots: its workers, the newest number.
        seconds: seconds by use; ``idle``: also while it was in no world.
        total_s: all of them.
        fault_count: faults that began at it.
    """

    node: str
    slots: int
    seconds: Seconds
    total_s: float
    fault_count: int


@attrs.frozen(kw_only=True)
class GoodputReport:
    """What the time of a job was used for.

    Args:
        begin: the first event, nanoseconds since the epoch.
        end: the last event, likewise.
        nanoseconds: by use; they add up to ``end - begin``.
        gpu_s: GPU-seconds by use, of the nodes that were there; a worker counts as a GPU.
        incidents: those that cost time, in order.
        causes: classes of incidents, the most expensive first.
        nodes: in order of name.
        repeats_known: whether the script reports absolute steps. Otherwise repeated steps count as productive.
        mtbf_s: training time per fault; None: there was none, or the time of no step is known.
        mttr_s: mean time from a fault to the next step, of faults that were resolved; None likewise.
        spans: the time of the job in order.
        timed: the time of at least one step is known. False only for a log made of files: then nothing tells training
            from other uses of time.
    """

    begin: int
    end: int
    nanoseconds: dict[str, int]
    gpu_s: Seconds
    incidents: tuple[IncidentCost, ...]
    causes: tuple[CauseCost, ...]
    nodes: tuple[NodeUse, ...]
    repeats_known: bool
    mtbf_s: float | None
    mttr_s: float | None
    spans: tuple[Span, ...]
    timed: bool = True

    @property
    def seconds(self) -> Seconds:
        """Seconds by use."""
        return {use: spent / SECOND for use, spent in self.nanoseconds.items()}

    @property
    def wall_s(self) -> float:
        """Seconds from the first to the last event."""
        return (self.end - self.begin) / SECOND

    @property
    def goodput(self) -> float | None:
        """The productive part of the wall time, 0 to 1; None: ``unknown`` says why it is not known."""
        return None if self.unknown else self.nanoseconds[PRODUCTIVE] / (self.end - self.begin)

    @property
    def unknown(self) -> str:
        """Why the goodput is not known; empty if it is."""
        if self.end <= self.begin:
            return "no time has passed in this log"
        return "" if self.timed else UNTIMED

    def cost_of(self, incident: str) -> IncidentCost | None:
        """What an incident cost; None: nothing."""
        return next((cost for cost in self.incidents if cost.id == incident), None)

    def to_json(self, price: float | None = None) -> dict[str, Any]:
        """The JSON of ``ftctl goodput``.

        Args:
            price: money per GPU-hour; adds ``cost`` to everything that has ``gpu_s``.
        """

        def priced(fields: dict[str, Any], gpu_s: float) -> dict[str, Any]:
            return fields if price is None else {**fields, "cost": round(gpu_s / HOUR_S * price, 2)}

        ends = timestamp_fields("begin", self.begin) | timestamp_fields("end", self.end)
        total = sum(self.gpu_s.values())
        job: dict[str, Any] = {
            **ends,
            "wall_s": self.wall_s,
            "goodput": self.goodput,
            "seconds_by_use": self.seconds,
            "gpu_s_by_use": {use: round(spent, 3) for use, spent in self.gpu_s.items()},
            "repeats_known": self.repeats_known,
            "steps_timed": self.timed,
            "mtbf_s": self.mtbf_s,
            "mttr_s": self.mttr_s,
        }
        if price is not None:
            cost = {use: round(spent / HOUR_S * price, 2) for use, spent in self.gpu_s.items()}
            job |= {"price_per_gpu_hour": price, "cost": round(total / HOUR_S * price, 2), "cost_by_use": cost}
        job["incidents"] = [priced(_renamed(each), each.gpu_s) for each in self.incidents]
        job["causes"] = [priced(_renamed(each), each.gpu_s) for each in self.causes]
        job["nodes"] = [priced(_renamed(each), each.total_s * each.slots) for each in self.nodes]
        return job


def _renamed(entry: IncidentCost | CauseCost | NodeUse) -> dict[str, Any]:
    names = {"cls": "class", "cause": "class", "seconds": "seconds_by_use"}
    return {names.get(key, key): value for key, value in attrs.asdict(entry).items()}


def account(
    spans: Sequence[Span],
    stays: Sequence[Stay],
    incidents: Sequence[Incident],
    *,
    begin: int,
    end: int,
    repeats_known: bool,
    timed: bool = True,
) -> GoodputReport:
    """Add up spans.

    Args:
        spans: the job's time in order, without gap.
        stays: the stays of its nodes.
        incidents: its incidents.
        begin: nanoseconds since the epoch.
        end: likewise.
        repeats_known, timed: as in ``GoodputReport``.
    """
    slots = _SlotCurve(stays)
    job = dict.fromkeys(USES, 0)
    by_incident: dict[str | None, dict[str, int]] = {}
    gpu: dict[str | None, float] = {}
    for span in spans:
        length = span.end - span.begin
        job[span.use] += length
        if span.use in LOST:
            uses = by_incident.setdefault(span.incident, {})
            uses[span.use] = uses.get(span.use, 0) + length
            gpu[span.incident] = gpu.get(span.incident, 0.0) + slots.between(span.begin, span.end)
    known = {incident.id: incident for incident in incidents}
    costs = [_cost(name, uses, gpu[name], known.get(name)) for name, uses in by_incident.items() if name is not None]
    rest = (by_incident.get(None, {}), gpu.get(None, 0.0))
    nodes = _nodes(spans, stays, incidents)
    faults = [incident for incident in incidents if incident.kind == "fault"]
    repaired = [each.phases.total for each in faults if each.phases.total is not None and each.resolved_by is not None]
    trained = job[PRODUCTIVE] + job["recompute"] + job["checkpoint"]
    return GoodputReport(
        begin=begin,
        end=end,
        nanoseconds=job,
        gpu_s=_gpu_by_use(nodes),
        incidents=tuple(costs),
        causes=_causes(costs, rest),
        nodes=nodes,
        repeats_known=repeats_known,
        mtbf_s=trained / SECOND / len(faults) if faults and timed else None,
        mttr_s=sum(repaired) / len(repaired) if repaired and timed else None,
        spans=tuple(spans),
        timed=timed,
    )


def _cost(name: str, uses: dict[str, int], gpu_s: float, incident: Incident | None) -> IncidentCost:
    return IncidentCost(
        id=name,
        cls=incident.cls if incident is not None else "",
        kind=incident.kind if incident is not None else "",
        seconds=_seconds(uses),
        total_s=sum(uses.values()) / SECOND,
        gpu_s=round(gpu_s, 3),
        steps_lost=incident.steps_lost if incident is not None else None,
    )


def _seconds(uses: dict[str, int]) -> Seconds:
    return {use: uses[use] / SECOND for use in USES if use in uses}


def _causes(costs: Iterable[IncidentCost], rest: tuple[dict[str, int], float]) -> tuple[CauseCost, ...]:
    groups: dict[str, list[IncidentCost]] = {}
    for cost in costs:
        groups.setdefault(cost.cls, []).append(cost)
    found = []
    for cls, several in groups.items():
        spent: Seconds = {}
        for cost in several:
            for use, seconds in cost.seconds.items():
                spent[use] = spent.get(use, 0.0) + seconds
        found.append(
            CauseCost(
                cause=cls,
                incident_count=len(several),
                seconds=spent,
                total_s=sum(cost.total_s for cost in several),
                gpu_s=round(sum(cost.gpu_s for cost in several), 3),
            )
        )
    uses, gpu_s = rest
    if uses:
        alone = CauseCost(
            cause="",
            incident_count=0,
            seconds=_seconds(uses),
            total_s=sum(uses.values()) / SECOND,
            gpu_s=round(gpu_s, 3),
        )
        found.append(alone)
    return tuple(sorted(found, key=lambda each: -each.total_s))


def _nodes(spans: Sequence[Span], stays: Sequence[Stay], incidents: Sequence[Incident]) -> tuple[NodeUse, ...]:
    curve = _UseCurve(spans)
    spent: dict[str, dict[str, int]] = {}
    slots: dict[str, int] = {}
    for stay in stays:
        uses = spent.setdefault(stay.node, dict.fromkeys(USES, 0))
        slots[stay.node] = stay.slots
        if stay.member:
            for use, length in zip(USES, curve.between(stay.begin, stay.end), strict=True):
                uses[use] += length
        else:
            uses["idle"] += stay.end - stay.begin
    roots: dict[str | None, int] = {}
    for incident in incidents:
        if incident.kind == "fault":
            roots[incident.root.node] = roots.get(incident.root.node, 0) + 1
    return tuple(
        NodeUse(
            node=node,
            slots=slots[node],
            seconds=_seconds(uses),
            total_s=sum(uses.values()) / SECOND,
            fault_count=roots.get(node, 0),
        )
        for node, uses in sorted(spent.items())
    )


def _gpu_by_use(nodes: Iterable[NodeUse]) -> Seconds:
    total = dict.fromkeys(USES, 0.0)
    for node in nodes:
        for use, seconds in node.seconds.items():
            total[use] += seconds * node.slots
    return total


class _SlotCurve:
    """How many workers' places were there, over time."""

    def __init__(self, stays: Sequence[Stay]) -> None:
        steps: dict[int, int] = {}
        for stay in stays:
            steps[stay.begin] = steps.get(stay.begin, 0) + stay.slots
            steps[stay.end] = steps.get(stay.end, 0) - stay.slots
        self._times = sorted(steps)
        self._slots = list(accumulate(steps[time] for time in self._times))
        lengths = [level * (b - a) for level, (a, b) in zip(self._slots, pairwise(self._times), strict=False)]
        self._sums = [0, *accumulate(lengths)]

    def between(self, begin: int, end: int) -> float:
        """GPU-seconds between two times in nanoseconds."""
        return (self._until(end) - self._until(begin)) / SECOND

    def _until(self, time: int) -> int:
        index = bisect.bisect_right(self._times, time) - 1
        if index < 0:
            return 0
        return self._sums[index] + self._slots[index] * (time - self._times[index])


class _UseCurve:
    """Nanoseconds of each use up to a time."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._begins = [span.begin for span in spans]
        place = {use: index for index, use in enumerate(USES)}
        self._place = place
        sums = [0] * len(USES)
        self._sums = [tuple(sums)]
        for span in spans:
            sums[place[span.use]] += span.end - span.begin
            self._sums.append(tuple(sums))

    def between(self, begin: int, end: int) -> list[int]:
        """Nanoseconds by use, in the order of ``USES``."""
        return [b - a for a, b in zip(self._until(begin), self._until(end), strict=True)]

    def _until(self, time: int) -> list[int]:
        index = bisect.bisect_right(self._begins, time) - 1
        if index < 0:
            return list(self._sums[0])
        span = self._spans[index]
        sums = list(self._sums[index])
        sums[self._place[span.use]] += min(time, span.end) - span.begin
        return sums

"""Prices of plans: what each chain cost, or is expected to cost, in an incident; see ``compare.py`` for the rules.

House rule: every price names its sources, and a figure that this log holds is never taken from elsewhere.
"""

import statistics
from collections.abc import Iterable
from typing import Any

import attrs

from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.ids import SECOND
from ftcore.policies.base import PlanKind
from ftcore.sim.cost import Costs
from ftcore.wording import NOBODY

SAMPLES_MIN = 3
"""From so many cases on, what a policy did in this log counts for more than an assumption."""

NEEDS_NODE = (0.33, "default")
"""Share of a machine's faults that another process does not cure, where a log does not tell: middle of the sources."""


@attrs.frozen(kw_only=True)
class Option:
    """A plan of the other chain.

    Args:
        policy: who took it.
        plan: its kind.
        keeps: it starts again on the same machines.
        parks: the workers that live wait with their state.
        launches: another machine has to come.
        saves: it saves the present step.
        ends: the job ends with it, or nobody took the incident.
        wait_s: back-off.
    """

    policy: str
    plan: str
    keeps: bool = False
    parks: bool = False
    launches: bool = False
    saves: bool = False
    ends: bool = False
    wait_s: float = 0.0

    def is_like(self, other: "Option") -> bool:
        """Whether both do the same; how long they wait before it may differ."""
        return attrs.evolve(self, wait_s=0.0) == attrs.evolve(other, wait_s=0.0)


@attrs.define(kw_only=True)
class Stage:
    """A plan that was carried out, as recorded.

    Args:
        option: what was planned.
        began: nanoseconds.
        ended: nanoseconds; 0 while it is under way.
        result: ``resolved``, ``failed``, ``continued``, ``ended``, or empty while it is under way.
        marks: when the round was planned, formed and started, nanoseconds.
    """

    option: Option
    began: int
    ended: int = 0
    result: str = ""
    marks: dict[str, int] = attrs.field(factory=dict)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended - self.began) / SECOND


@attrs.define(kw_only=True)
class Case:
    """An incident of the log.

    Args:
        id: its identity.
        kind: its kind.
        cls: class of its fault.
        opened: nanoseconds.
        before_s: from the fault until it was opened.
        behind: steps completed since the newest checkpoint; None if not known.
        stages: what the recorded chain did, without plans that a better reading of the evidence took the place of.
        asked: policies of the other chain that were asked in this reading.
        wait_more_s: how much longer the other chain waits before the plans that both take.
        parted: stages after which the other chain does something else; None: it does the same.
        parted_at: when that was, nanoseconds.
        path: what it would do from there on.
        steps_lost: as recorded.
        ended: nanoseconds; for a job that ended and was started again, its first step after that; None: never.
    """

    id: str
    kind: str
    cls: str
    opened: int
    before_s: float
    behind: int | None
    stages: list[Stage] = attrs.field(factory=list)
    asked: list[str] = attrs.field(factory=list)
    wait_more_s: float = 0.0
    parted: int | None = None
    parted_at: int = 0
    path: list[Option] = attrs.field(factory=list)
    steps_lost: int | None = None
    ended: int | None = None
    finished: bool = False

    @property
    def under_way(self) -> Stage | None:
        """The stage that has no result yet."""
        return self.stages[-1] if self.stages and not self.stages[-1].result else None


@attrs.frozen(kw_only=True)
class Price:
    """What one chain costs in one incident.

    Args:
        policies: taken in order, with the chance (0 to 1) that it comes so far.
        seconds: until training went on.
        steps_lost: steps to do again.
        total: both, in seconds.
        source: where the figures come from.
    """

    policies: tuple[tuple[str, float], ...]
    seconds: float
    steps_lost: float
    total: float
    source: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        chances = [{"policy": policy, "chance": chance} for policy, chance in self.policies]
        figures = {"seconds": self.seconds, "steps_lost": self.steps_lost, "total": self.total}
        return {"chances": chances, **figures, "source": self.source}


class Prices:
    """Prices of plans: measured in the cases where they can be, else composed."""

    def __init__(self, cases: list[Case], costs: Costs, paces: list[float], needs_node: tuple[float, str]) -> None:
        self._needs_node = needs_node
        self._costs = _measured(cases, costs)
        self._step_s = statistics.median(paces) if paces else costs["step"]
        self._step_source = "this log" if paces else costs.source("step")
        self._cases = cases
        self._worked: dict[str, list[bool]] = {}
        self._took: dict[tuple[str, str], list[float]] = {}
        for case in cases:
            for stage in case.stages:
                if stage.result in ("resolved", "failed"):
                    self._worked.setdefault(stage.option.policy, []).append(stage.result == "resolved")
                if stage.ended:
                    self._took.setdefault((stage.option.policy, stage.result), []).append(stage.seconds)
        gaps = [
            (case.ended - case.stages[-1].began) / SECOND
            for case in cases
            if case.finished and case.ended is not None and case.stages
        ]
        self._gap = statistics.median(gaps) if gaps else None
        losses = [case.steps_lost for case in cases if case.steps_lost is not None and case.kind == "fault"]
        self._lost = statistics.mean(losses) if losses else 0.0

    def recorded(self, case: Case) -> Price:
        """What happened."""
        sources = ["this log"]
        if case.ended is not None:
            seconds = case.before_s + (case.ended - case.opened) / SECOND
        else:
            gap, source = self._end()
            sources.append(source)
            last = case.stages[-1].began if case.stages else case.opened
            seconds = case.before_s + (last - case.opened) / SECOND + gap
        lost = float(case.steps_lost or 0)
        if lost:
            sources.append(self._step_source)
        return Price(
            policies=tuple((stage.option.policy, 1.0) for stage in case.stages),
            seconds=round(seconds, 3),
            steps_lost=lost,
            total=round(seconds + lost * self._step_s, 3),
            source=_sources(sources),
        )

    def other(self, case: Case) -> Price:
        """What the other chain is expected to cost."""
        if case.parted is None:
            same = self.recorded(case)
            more = max(case.wait_more_s, -same.seconds)
            return attrs.evolve(same, seconds=round(same.seconds + more, 3), total=round(same.total + more, 3))
        shared = case.stages[: case.parted]
        chance, seconds, lost = 1.0, case.before_s + (case.parted_at - case.opened) / SECOND, 0.0
        seconds = max(0.0, seconds + case.wait_more_s)
        taken = [(stage.option.policy, 1.0) for stage in shared]
        sources: list[str] = []
        seen = {name: sum(stage.option.policy == name for stage in shared) for name, _ in taken}
        bad = any(stage.option.keeps and stage.result == "failed" for stage in shared)
        saved = any(stage.option.saves for stage in shared)
        behind = float(case.behind if case.behind is not None else case.steps_lost or self._lost)
        for option in case.path:
            if chance < 1e-6:
                break
            taken.append((option.policy or NOBODY, round(chance, 4)))
            if option.ends:
                cost, source = self._end()
                seconds, lost = seconds + chance * cost, lost + chance * (0.0 if saved else behind)
                sources.append(source)
                chance = 0.0
                break
            stage = _nth(case, option.policy, seen)
            if option.plan == PlanKind.TELL or option.saves:
                cost, source = (stage.seconds, "this log") if stage is not None else self._of(option, "continued")
                seconds, saved = seconds + chance * cost, saved or option.saves
                sources.append(source)
                continue
            works, known = self._works(case, option, stage, bad)
            bad = bad or option.keeps
            cost, source = self._success(option, stage)
            spent, spent_source = self._failure(option, stage)
            in_memory = option.parks or option.plan == PlanKind.IN_PLACE or saved
            seconds += chance * (works * cost + (1 - works) * spent)
            lost += chance * works * (0.0 if in_memory else behind)
            sources += [known, source if works > 0 else spent_source]
            chance *= 1 - works
        return Price(
            policies=tuple(taken),
            seconds=round(seconds, 3),
            steps_lost=round(lost, 3),
            total=round(seconds + lost * self._step_s, 3),
            source=_sources([*sources, self._step_source] if lost else sources),
        )

    def _end(self) -> tuple[float, str]:
        """The job ends and is started again."""
        if self._gap is not None:
            return self._gap, "this log"
        costs = self._costs
        parts = ("stop", "resubmit", "start", "load", "warm_up", "step")
        return costs["poll"] / 2 + sum(costs[name] for name in parts), costs.source("resubmit")

    def _works(self, case: Case, option: Option, stage: Stage | None, bad: bool) -> tuple[float, str]:
        """The chance that a plan brings its outcome."""
        if stage is not None and stage.result in ("resolved", "failed"):
            return float(stage.result == "resolved"), "this log"
        if option.keeps:
            if bad:
                return 0.0, "this log"
            alike = [other.result for other in case.stages if other.option.keeps]
            if "failed" in alike or "resolved" in alike:
                return float(alike[0] == "resolved"), "this log"
        known = self._worked.get(option.policy, [])
        if len(known) >= SAMPLES_MIN:
            return sum(known) / len(known), "this log"
        if option.keeps and CLASSES[FaultClass(case.cls)].at_fault == "node":
            return 1 - self._needs_node[0], self._needs_node[1]
        return 1.0, "default"

    def _success(self, option: Option, stage: Stage | None) -> tuple[float, str]:
        if stage is not None and stage.result == "resolved":
            return stage.seconds, "this log"
        return self._of(option, "resolved")

    def _failure(self, option: Option, stage: Stage | None) -> tuple[float, str]:
        if stage is not None and stage.result == "failed":
            return stage.seconds, "this log"
        return self._of(option, "failed")

    def _of(self, option: Option, result: str) -> tuple[float, str]:
        """A plan's duration: this log's median, else composed."""
        known = self._took.get((option.policy, result), [])
        if known:
            return statistics.median(known), "this log"
        names = _parts(option, result)
        costs = self._costs
        return option.wait_s + sum(costs[name] for name in names), _sources([costs.source(name) for name in names])


def _parts(option: Option, result: str) -> tuple[str, ...]:
    """The figures that a plan's duration is composed of."""
    if option.saves:
        return ("save",)
    if option.plan == PlanKind.TELL:
        return ()
    if option.plan == PlanKind.IN_PLACE:
        return ("in_place", "step") if result == "resolved" else ("in_place",)
    stop, start, load = ("park", "start_parked", "load_memory") if option.parks else ("stop", "start", "load")
    way = (stop, *(("replace",) if option.launches else ()), start)
    return (*way, load, "warm_up", "step") if result == "resolved" else (*way, "detect_crash")


def _measured(cases: Iterable[Case], costs: Costs) -> Costs:
    """The table with this log's own phases of plain restarts where it has any."""
    phases: dict[str, list[float]] = {"stop": [], "start": [], "load": []}
    for case in cases:
        for stage in case.stages:
            marks = stage.marks
            if stage.result != "resolved" or stage.option.parks or len(marks) < 3:
                continue
            phases["stop"].append((marks["RoundPlanned"] - stage.began) / SECOND)
            phases["start"].append((marks["RoundStarted"] - marks["WorldFormed"]) / SECOND)
            phases["load"].append((stage.ended - marks["RoundStarted"]) / SECOND)
    found = {name: statistics.median(values) for name, values in phases.items() if values}
    if "load" in found:  # measured to the end of the first step
        costs = costs.changed({"warm_up": 0.0, "step": 0.0}, "this log")
    return costs.changed(found, "this log")


def _nth(case: Case, policy: str, seen: dict[str, int]) -> Stage | None:
    """The recorded stage of a policy that corresponds to its next one."""
    same = [stage for stage in case.stages if stage.option.policy == policy]
    place = seen.get(policy, 0)
    seen[policy] = place + 1
    return same[place] if place < len(same) else None


def _sources(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(part for name in names for part in name.split(", ") if part)) or "this log"

"""Prices of plans: the recorded or expected cost of each chain in an incident; see ``compare.py`` for the rules.

Every price names its sources; figures of this log take precedence.
"""

import statistics
from collections.abc import Iterable
from typing import Any

import attrs

from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.ids import SECOND
from ftcore.policies.base import PlanKind
from ftcore.sim.cost import Costs
from ftcore.wording import NO_POLICY

SAMPLES_MIN = 3
"""Fewest cases in this log from which a policy's success rate is taken."""

NEEDS_NODE = (0.33, "default")
"""Share of machine faults that a restarted process does not cure, if the log does not tell: middle of the sources."""


@attrs.frozen(kw_only=True)
class PlanOption:
    """A plan of a chain.

    Args:
        policy: the policy; empty: no policy took the incident.
        plan: kind of the plan.
        keeps: restart on the same machines.
        parks: surviving workers are parked.
        starts: at least one process is started; not if all are parked.
        launches: needs another machine.
        saves: saves a checkpoint of the current step.
        ends: ends the job, or no policy took the incident.
        wait_s: back-off in seconds.
    """

    policy: str
    plan: str
    keeps: bool = False
    parks: bool = False
    starts: bool = True
    launches: bool = False
    saves: bool = False
    ends: bool = False
    wait_s: float = 0.0

    def is_like(self, other: "PlanOption") -> bool:
        """Whether two plans are equal, apart from the back-off."""
        return attrs.evolve(self, wait_s=0.0) == attrs.evolve(other, wait_s=0.0)


@attrs.define(kw_only=True)
class RecordedPlan:
    """A recorded execution of a plan.

    Args:
        option: the plan.
        began: nanoseconds.
        ended: nanoseconds; 0: not yet.
        result: ``resolved``, ``failed``, ``continued``, ``ended``; empty: not yet known.
        marks: when the round was planned, formed and started, in nanoseconds.
    """

    option: PlanOption
    began: int
    ended: int = 0
    result: str = ""
    marks: dict[str, int] = attrs.field(factory=dict)

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return (self.ended - self.began) / SECOND


@attrs.define(kw_only=True)
class IncidentCase:
    """An incident of the log.

    Args:
        id: its ID.
        kind: its kind.
        cls: class of the fault.
        opened: nanoseconds.
        before_s: seconds from the fault until it was opened.
        unsaved: steps completed since the newest checkpoint; None: unknown.
        stages: executed plans of the recorded chain, without those superseded by a new revision before they were tried.
        asked: policies of the other chain asked in this revision.
        wait_more_s: additional back-off of the other chain in the common plans, in seconds.
        parted: number of stages after which the chains part; None: they do not.
        parted_at: when they part, nanoseconds.
        path: plans of the other chain from there on.
        steps_lost: as recorded.
        ended: nanoseconds; if the job ended and was resubmitted: its first step after that; None: never.
    """

    id: str
    kind: str
    cls: str
    opened: int
    before_s: float
    unsaved: int | None
    stages: list[RecordedPlan] = attrs.field(factory=list)
    asked: list[str] = attrs.field(factory=list)
    wait_more_s: float = 0.0
    parted: int | None = None
    parted_at: int = 0
    path: list[PlanOption] = attrs.field(factory=list)
    steps_lost: int | None = None
    ended: int | None = None
    finished: bool = False

    @property
    def under_way(self) -> RecordedPlan | None:
        """The stage without a result."""
        return self.stages[-1] if self.stages and not self.stages[-1].result else None


@attrs.frozen(kw_only=True)
class Price:
    """The cost of one chain in one incident.

    Args:
        policies: policies in order, each with the probability (0 to 1) that it is reached.
        seconds: seconds until training resumed.
        steps_lost: steps to repeat.
        total: both, in seconds.
        source: sources of the figures.
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
    """Computes prices: measured if possible, else composed from the table of costs."""

    def __init__(
        self, cases: list[IncidentCase], costs: Costs, paces: list[float], needs_node: tuple[float, str]
    ) -> None:
        self._needs_node = needs_node
        self._costs = _measured(cases, costs)
        self._step_s = statistics.median(paces) if paces else costs["step"]
        self._step_source = "this log" if paces else costs.source("step")
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

    def recorded(self, case: IncidentCase) -> Price:
        """The recorded cost."""
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

    def other(self, case: IncidentCase) -> Price:
        """The expected cost of the other chain."""
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
        unsaved = float(case.unsaved if case.unsaved is not None else case.steps_lost or self._lost)
        for option in case.path:
            if chance < 1e-6:
                break
            taken.append((option.policy or NO_POLICY, round(chance, 4)))
            if option.ends:
                cost, source = self._end()
                seconds, lost = seconds + chance * cost, lost + chance * (0.0 if saved else unsaved)
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
            lost += chance * works * (0.0 if in_memory else unsaved)
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
        """Seconds from the job's end until it trains again after a resubmission, and their source."""
        if self._gap is not None:
            return self._gap, "this log"
        costs = self._costs
        parts = ("stop", "resubmit", "start", "load", "warm_up", "step")
        return costs["poll"] / 2 + sum(costs[name] for name in parts), costs.source("resubmit")

    def _works(
        self, case: IncidentCase, option: PlanOption, stage: RecordedPlan | None, bad: bool
    ) -> tuple[float, str]:
        """The probability that a plan succeeds, and its source."""
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

    def _success(self, option: PlanOption, stage: RecordedPlan | None) -> tuple[float, str]:
        if stage is not None and stage.result == "resolved":
            return stage.seconds, "this log"
        return self._of(option, "resolved")

    def _failure(self, option: PlanOption, stage: RecordedPlan | None) -> tuple[float, str]:
        if stage is not None and stage.result == "failed":
            return stage.seconds, "this log"
        return self._of(option, "failed")

    def _of(self, option: PlanOption, result: str) -> tuple[float, str]:
        """A plan's duration: this log's median, else composed; and its source."""
        known = self._took.get((option.policy, result), [])
        if known:
            return statistics.median(known), "this log"
        names = _parts(option, result)
        costs = self._costs
        return option.wait_s + sum(costs[name] for name in names), _sources([costs.source(name) for name in names])


def _parts(option: PlanOption, result: str) -> tuple[str, ...]:
    """Names of the figures whose sum is a plan's duration."""
    if option.saves:
        return ("save",)
    if option.plan == PlanKind.TELL:
        return ()
    if option.plan == PlanKind.IN_PLACE:
        return ("in_place", "step") if result == "resolved" else ("in_place",)
    stop, load = ("park", "load_memory") if option.parks else ("stop", "load")
    start, warm_up = ("start", ("warm_up",)) if option.starts else ("start_parked", ())
    way = (stop, *(("replace",) if option.launches else ()), start)
    return (*way, load, *warm_up, "step") if result == "resolved" else (*way, "detect_crash")


def _measured(cases: Iterable[IncidentCase], costs: Costs) -> Costs:
    """The table of costs with this log's measured phases of plain restarts."""
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


def _nth(case: IncidentCase, policy: str, seen: dict[str, int]) -> RecordedPlan | None:
    """The recorded stage that corresponds to the policy's next occurrence in the path."""
    same = [stage for stage in case.stages if stage.option.policy == policy]
    place = seen.get(policy, 0)
    seen[policy] = place + 1
    return same[place] if place < len(same) else None


def _sources(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(part for name in names for part in name.split(", ") if part)) or "this log"

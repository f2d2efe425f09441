"""What another policy would have cost: the incidents of a log, decided again under another chain.

The log is folded; where an incident was opened, the other chain is put in place of the recorded one, and the production
``consult`` is asked what it takes, then what it would take if that failed, and so on to the end of the job: the *path*.
Behind the last event every path is priced:

- a policy that the recorded chain took as well, in the same incident, does what it did then, and takes as long;
- another one works as often as it did elsewhere in this log (three times or more), else as the table of costs assumes;
- a plan that keeps the same machines is known to fail if in this very incident another such plan did, and to work if
  another such plan did;
- durations are medians of this log where it holds any, else composed of its phases and the table of costs.

Every figure says where it comes from: ``this log``, a profile's name, ``default`` or ``given``. The result is an
expectation: a plan that works two times out of three counts with two thirds of its price and one third of what follows
its failure.

House rules: nothing is simulated here and nothing drawn by chance. The evidence is that of the moment at which the
incident was opened, or read anew before a plan was begun; what the other chain would have seen later than that, in
rounds that never were, is assumed to be the same fault again. Budgets are counted for the other chain on its own.
"""

import statistics
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.events.incident import (
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import CheckpointCommitted, JobFinished, JobProgressed
from ftcore.events.policy import PolicyConsidered, PolicyLoaded
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed
from ftcore.faults.taxonomy import CLASSES, FaultClass
from ftcore.ids import SECOND
from ftcore.policies.base import PlanKind, Take
from ftcore.policies.chain import consult
from ftcore.replay.reading import fold_recorded
from ftcore.sim.cost import Costs
from ftcore.states.model import IncidentState, JobState

PATH_MAX = 64
"""Plans followed for one incident; a chain that tries more has spent its budgets long before."""

SAMPLES_MIN = 3
"""From so many cases on, what a policy did in this log counts for more than an assumption."""

NEEDS_NODE = 0.33
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
        path: what the other chain would do.
        stages: what the recorded one did.
        steps_lost: as recorded.
        ended: nanoseconds; for a job that ended and was started again, its first step after that; None: never.
    """

    id: str
    kind: str
    cls: str
    opened: int
    before_s: float
    behind: int | None
    path: list[Option] = attrs.field(factory=list)
    stages: list[Stage] = attrs.field(factory=list)
    steps_lost: int | None = None
    ended: int | None = None
    finished: bool = False


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


@attrs.frozen(kw_only=True)
class Compared:
    """An incident under both chains."""

    id: str
    kind: str
    cls: str
    recorded: Price
    other: Price

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``class`` instead of ``cls``."""
        return {("class" if key == "cls" else key): value for key, value in attrs.asdict(self).items()}


class WhatIf:
    """A reader (see ``replay``) that asks another chain about every incident; ``compared`` once all was fed.

    Args:
        other: the other chain.
        costs: for what the log does not tell.
    """

    def __init__(self, other: PolicyLoaded, costs: Costs | None = None) -> None:
        self._other = other
        self._costs = costs or Costs()
        self._state = JobState()
        self._cases: list[Case] = []
        self._open: Case | None = None
        self._down: Case | None = None
        self._attempts: dict[str, list[int]] = {}
        self._paces: list[float] = []
        self._pace_from: tuple[int, int, int] | None = None
        self._fact: Event | None = None

    def feed(self, event: Event) -> None:
        """See ``replay.Reader``."""
        state = self._state
        fold_recorded(state, event)
        data = event.data
        if isinstance(data, JobProgressed | CheckpointCommitted):
            self._pace(event, data)
        if self._down is not None and state.world is not None and state.world.stepped == len(state.world.members) > 0:
            self._down.ended, self._down = event.time, None
        if event.cause is None:
            self._fact = event
            return
        if isinstance(data, IncidentOpened):
            self._begin(event, data)
        elif isinstance(data, JobFinished):
            if self._cases and self._open is None and self._cases[-1].finished:
                self._down = self._cases[-1]
        elif self._open is not None:
            self._go_on(event, data, self._open)

    def _pace(self, event: Event, data: JobProgressed | CheckpointCommitted) -> None:
        """Seconds a step, from two samples of one round between which nothing else happened."""
        last = self._pace_from
        if last is not None and last[0] == data.round and data.step > last[1] and self._state.incident is None:
            self._paces.append((event.time - last[2]) / SECOND / (data.step - last[1]))
            del self._paces[:-10_000]
        self._pace_from = (data.round, data.step, event.time) if self._state.incident is None else None

    def _begin(self, event: Event, data: IncidentOpened) -> None:
        state, fact = self._state, self._fact
        assert state.incident is not None
        happened = fact.at.wall if fact is not None and fact.at is not None else event.time
        behind = None
        if state.step is not None and state.step_absolute and state.checkpoints:
            behind = max(0, state.step - state.checkpoints[-1])
        case = Case(
            id=state.incident.id,
            kind=data.kind,
            cls=data.fault.cls,
            opened=event.time,
            before_s=max(0, event.time - happened) / SECOND,
            behind=behind,
        )
        case.path = self._ask(state.incident)
        self._cases.append(case)
        self._open = case

    def _go_on(self, event: Event, data: Any, case: Case) -> None:
        stage = case.stages[-1] if case.stages and not case.stages[-1].result else None
        if isinstance(data, IncidentRediagnosed):
            case.cls = data.fault.cls
            if stage is not None and data.revision > 1 and self._state.incident is not None:
                if self._state.incident.taken == "":
                    stage.result, stage.ended = "failed", event.time
            elif not case.stages and self._state.incident is not None:
                case.path = self._ask(self._state.incident)
        elif isinstance(data, PolicyConsidered) and data.verdict == "take":
            case.stages.append(Stage(option=_recorded(data), began=event.time))
        elif isinstance(data, RoundPlanned | WorldFormed | RoundStarted):
            if stage is not None:
                stage.marks[type(data).__name__] = event.time
        elif isinstance(data, IncidentContinued | IncidentEscalated) and stage is not None:
            stage.result = "continued" if isinstance(data, IncidentContinued) else "failed"
            stage.ended = event.time
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            self._close(event, data, case, stage)

    def _close(self, event: Event, data: IncidentResolved | IncidentExhausted, case: Case, stage: Stage | None) -> None:
        self._open = None
        ended = isinstance(data, IncidentExhausted) or data.outcome == "ended"
        case.finished = ended and case.kind == "fault"
        case.steps_lost = data.steps_lost if isinstance(data, IncidentResolved) else None
        if case.finished:
            case.steps_lost = case.behind
        else:
            case.ended = event.time
        if stage is not None:
            stage.result, stage.ended = "ended" if ended else "resolved", event.time

    # -- the other chain

    def _ask(self, incident: IncidentState) -> list[Option]:
        """What the other chain takes if whatever it takes fails."""
        state = self._state
        kept = (state.chain, state.attempts, state.repeat, state.node_faults, state.streak, state.incident)
        asked = attrs.evolve(incident, asked=[], tried=[], taken="", plan="", saved=False)
        state.chain, state.incident = self._other.chain, asked
        state.attempts = {name: list(times) for name, times in self._attempts.items()}
        state.repeat = attrs.evolve(state.repeat)
        state.node_faults = {name: list(times) for name, times in state.node_faults.items()}
        try:
            path = list(self._follow(asked))
        finally:
            state.chain, state.attempts, state.repeat, state.node_faults, state.streak, state.incident = kept
        if path and not path[0].ends:
            self._attempts.setdefault(path[0].policy, []).append(state.time)
        return path

    def _follow(self, incident: IncidentState) -> Iterator[Option]:
        state = self._state
        for _ in range(PATH_MAX):
            verdict, policy = None, ""
            for answer in consult(state.chain, incident, state):
                incident.asked.append(answer.policy)
                verdict, policy = answer.verdict, answer.policy
            if not isinstance(verdict, Take):
                if incident.kind == "fault":
                    yield Option(policy="", plan="end", ends=True)
                return
            option = _planned(policy, verdict)
            yield option
            if option.ends:
                return
            state.attempts.setdefault(policy, []).append(state.time)
            if verdict.plan is PlanKind.TELL or verdict.terms.then == "continue":
                incident.saved = incident.saved or option.saves
                continue
            incident.tried.append(policy)
            if verdict.plan is PlanKind.RESTART:
                state.streak += 1
            if option.keeps and incident.kind == "fault":  # the same fault comes again, in the next round
                incident.asked, incident.saved = [], False
                state.repeat.count += 1
                for node in incident.fault.nodes[:1]:
                    state.node_faults.setdefault(node, []).append(state.time)

    # -- prices

    def compared(self) -> list[Compared]:
        """Every incident that ended, under both chains.

        Raises:
            UsageError: the log holds none.
        """
        cases = [case for case in self._cases if case.ended is not None or case.finished]
        if not cases:
            raise UsageError("the log holds no incident that ended: there is nothing to compare")
        prices = _Prices(cases, self._costs, self._paces)
        return [
            Compared(id=case.id, kind=case.kind, cls=case.cls, recorded=prices.recorded(case), other=prices.other(case))
            for case in cases
        ]


def _planned(policy: str, take: Take) -> Option:
    terms = take.terms
    return _option(policy, str(take.plan), take.wait_s, terms)


def _recorded(data: PolicyConsidered) -> Option:
    return _option(data.policy, data.plan, data.wait_s, data.terms)


def _option(policy: str, plan: str, wait_s: float, terms: Any) -> Option:
    restart = plan == PlanKind.RESTART
    moves = terms is not None and bool(terms.replace or terms.exclude or terms.want)
    command = terms.command if terms is not None else None
    return Option(
        policy=policy,
        plan=plan,
        keeps=restart and not moves,
        parks=terms is not None and terms.survivors == "park",
        launches=terms is not None and bool(terms.replace),
        saves=command is not None and type(command).__name__ == "SaveCheckpoint",
        ends=plan == PlanKind.END,
        wait_s=wait_s,
    )


class _Prices:
    """Prices of plans: measured in the cases where they can be, else composed."""

    def __init__(self, cases: list[Case], costs: Costs, paces: list[float]) -> None:
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
        if [option.policy for option in case.path[:1]] == [stage.option.policy for stage in case.stages[:1]] and (
            len(case.stages) <= 1
        ):
            return self.recorded(case)  # also if neither took it
        chance, seconds, lost = 1.0, case.before_s, 0.0
        taken: list[tuple[str, float]] = []
        sources: list[str] = []
        seen: dict[str, int] = {}
        bad, saved = False, False
        behind = float(case.behind if case.behind is not None else case.steps_lost or self._lost)
        for option in case.path:
            if chance < 1e-6:
                break
            taken.append((option.policy or "exhausted", round(chance, 4)))
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
            return 1 - NEEDS_NODE, "default"
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

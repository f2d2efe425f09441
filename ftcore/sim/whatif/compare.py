"""Comparison of policies: decides the incidents of a log again with another chain and estimates its costs.

The log is folded. Wherever the recorded chain took an incident or was exhausted, the production ``consult`` is called
with the other chain. As long as the other chain takes the same plans, its cost is what happened. Where it takes another
plan, the chains *part*; the other chain is then asked for its next plan in case that one fails, and so on to the end of
the job: the *path*. At the end of the log, every path is priced:

- a policy that the recorded chain took in the same incident has the recorded result and duration;
- the success rate of another policy is its rate in this log (from three cases on), else that of the table of costs;
- a plan that keeps the same machines fails if another such plan failed in this incident, and works if another worked;
- durations are medians of this log if it has any, else sums of its phases and of the table of costs.

A new revision before a plan was tried (the victim was reported before the culprit) is not a failure of the plan: it
occurs with any chain, and both chains start again with it.

Every figure has a source: ``this log``, a profile's name, ``default`` or ``given``. The result is an expected value: a
plan with a success rate of two thirds counts with two thirds of its cost and one third of what follows its failure.

Nothing is simulated or random. The recorded chain, compared with its own log, gives exactly the recorded values. In
rounds after the chains part, the same fault is assumed to recur, and budgets are counted separately for the other
chain. The job has the abilities declared in the log and the other file (``policies/abilities.py``), and those assumed.
External policies are not run: one that answered in the same incident repeats its answer, others are assumed to pass and
are listed. An ability that was declared during an incident, while an external policy was asked, counts from its
beginning.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from ftcore.commands import AskPolicy
from ftcore.engine.plans import REVISIONS_MAX
from ftcore.errors import UsageError
from ftcore.events.action import ActionOrdered
from ftcore.events.checkpoint import CheckpointCommitted
from ftcore.events.envelope import Event
from ftcore.events.incident import (
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import JobFinished, JobProgressed, JobSubmitted
from ftcore.events.node import NodeGaveUp
from ftcore.events.policy import AbilityDeclared, PolicyConsidered, PolicyLoaded
from ftcore.events.registry import Kind
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed
from ftcore.ids import SECOND
from ftcore.policies.abilities import usable_abilities
from ftcore.policies.base import Ask, PlanKind, Take
from ftcore.policies.chain import consult
from ftcore.policies.file.feasible import unable
from ftcore.replay.reading import fold_recorded
from ftcore.sim.cost import Costs
from ftcore.sim.whatif.prices import NEEDS_NODE, IncidentCase, PlanOption, Price, Prices, RecordedPlan
from ftcore.states.fold.incidents import was_tried
from ftcore.states.model import IncidentState, JobState

_REPLACED_FIELDS = ("policy", "abilities", "history", "evidence", "incident")
"""Parts of the state that are replaced for the other chain."""

PATH_MAX = 256
"""Most plans of a path; the budgets of a chain end earlier."""


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
        prices = {"recorded": self.recorded.to_json(), "other": self.other.to_json()}
        return {"id": self.id, "kind": self.kind, "class": self.cls, **prices}


class WhatIf:
    """A reader (see ``replay``) that asks another chain about every incident; call ``compared`` after the last event.

    Args:
        other: the other chain.
        costs: durations that are not in the log.
        needs_node: share of machine faults that only another machine cures, and its source.
        assumed: additional abilities of the job.

    Attributes:
        recorded_source: source of the recorded chain.
        not_asked: external policies of the other chain without recorded answers.
    """

    def __init__(
        self,
        other: PolicyLoaded,
        costs: Costs | None = None,
        needs_node: tuple[float, str] = NEEDS_NODE,
        assumed: tuple[str, ...] = (),
    ) -> None:
        self._other = other
        self._assumed = usable_abilities((), assumed)
        self._needs_node = needs_node
        self._costs = costs or Costs()
        self._state = JobState()
        self._cases: list[IncidentCase] = []
        self._open: IncidentCase | None = None
        self._down: tuple[IncidentCase, int] | None = None
        self._attempts: dict[str, list[int]] | None = None
        self._paces: list[float] = []
        self._pace_from: tuple[int, int, int] | None = None
        self._fact: Event | None = None
        self._recorded: set[str] = set()
        self._declared: set[str] = set()
        self.recorded_source = ""

    @property
    def not_asked(self) -> tuple[str, ...]:
        """See the class."""
        external = (entry.policy for entry in self._other.chain if entry.external)
        return tuple(name for name in dict.fromkeys(external) if name not in self._recorded)

    @property
    def unable(self) -> str:
        """Entries of the other chain that the job lacks the abilities for; empty if none."""
        return unable(self._other, self._declared, self._assumed)

    def feed(self, event: Event) -> None:
        """See ``replay.Reader``."""
        state, data = self._state, event.data
        if self._open is not None and event.kind is not Kind.FACT:
            self._before(event, data, self._open)
        fold_recorded(state, event)
        if isinstance(data, JobProgressed | CheckpointCommitted):
            self._pace(event, data)
        if self._down is not None and state.run > self._down[1] and _is_stepping(state):
            self._down[0].ended, self._down = event.time, None
        if event.kind is Kind.FACT:
            self._fact = event
            self._read_fact(data)
        elif isinstance(data, IncidentOpened):
            self._begin(event, data)
        elif isinstance(data, JobFinished):
            if self._cases and self._open is None and self._cases[-1].finished:
                self._down = (self._cases[-1], state.run)
        elif self._open is not None:
            self._continue(event, data, self._open)

    def _read_fact(self, data: Any) -> None:
        if isinstance(data, PolicyLoaded):
            self.recorded_source = data.source
            self._recorded |= {entry.policy for entry in data.chain if entry.external}
        elif isinstance(data, AbilityDeclared):
            self._declared |= set(data.abilities)
        elif isinstance(data, JobSubmitted):
            self._attempts = None

    def _pace(self, event: Event, data: JobProgressed | CheckpointCommitted) -> None:
        """Sample seconds per step, from two progress events of a round without an incident between them."""
        last = self._pace_from
        if last is not None and last[0] == data.round and data.step > last[1] and self._state.incident is None:
            self._paces.append((event.time - last[2]) / SECOND / (data.step - last[1]))
            del self._paces[:-10_000]
        self._pace_from = (data.round, data.step, event.time) if self._state.incident is None else None

    def _begin(self, event: Event, data: IncidentOpened) -> None:
        state, fact = self._state, self._fact
        assert state.incident is not None
        happened = fact.at.wall if fact is not None and fact.at is not None else event.time
        unsaved = None
        if state.training.step is not None and state.training.step_absolute and state.training.checkpoints:
            unsaved = max(0, state.training.step - state.training.checkpoints[-1])
        case = IncidentCase(
            id=state.incident.id,
            kind=data.kind,
            cls=data.fault.cls,
            opened=event.time,
            before_s=max(0, event.time - happened) / SECOND,
            unsaved=unsaved,
        )
        self._cases.append(case)
        self._open = case

    def _before(self, event: Event, data: Any, case: IncidentCase) -> None:
        """Handle an event before it is folded, in the state in which the recorded chain decided."""
        known = self._state.incident
        if known is None:
            return
        if isinstance(data, IncidentRediagnosed) and data.revision > known.revision:
            self._restart_chain(event, case, tried=was_tried(self._state, known))
        elif isinstance(data, IncidentExhausted):
            if self._fact is not None and isinstance(self._fact.data, NodeGaveUp):
                return  # no plan can change it
            if known.revision <= REVISIONS_MAX + (
                len(self._state.rounds.world.members) if self._state.rounds.world else 0
            ):
                self._ask(event, case, known, None)
        elif isinstance(data, PolicyConsidered) and data.verdict == "take":
            self._ask(event, case, known, _recorded(data))
        elif isinstance(data, ActionOrdered) and isinstance(data.command, AskPolicy):
            self._pause(case, known)

    def _pause(self, case: IncidentCase, incident: IncidentState) -> None:
        """Keep what both chains were asked before the answer of a policy of another package was awaited.

        The state may change until then, but a policy is asked once.
        """
        recorded = self._state.policy.chain
        same = {entry.policy for entry in recorded if entry in self._other.chain}
        case.asked += [name for name in incident.asked if name in same and name not in case.asked]

    def _restart_chain(self, event: Event, case: IncidentCase, *, tried: bool) -> None:
        """Start the chain again after a failed plan, or after a new revision before the plan was tried."""
        case.asked = []
        stage = case.under_way
        if stage is None:
            return
        if tried:
            stage.result, stage.ended = "failed", event.time
            return
        case.stages.pop()
        mine = case.path[0] if case.parted == len(case.stages) and case.path else stage.option
        if case.parted == len(case.stages):
            case.parted, case.path = None, []
        if case.parted is None and self._attempts is not None and mine.policy and not mine.ends:
            self._attempts[mine.policy].pop()

    def _continue(self, event: Event, data: Any, case: IncidentCase) -> None:
        stage = case.under_way
        if isinstance(data, IncidentRediagnosed):
            case.cls, case.kind = data.fault.cls, data.kind
        elif isinstance(data, PolicyConsidered) and data.verdict == "take":
            case.stages.append(RecordedPlan(option=_recorded(data), began=event.time))
        elif isinstance(data, RoundPlanned | WorldFormed | RoundStarted):
            if stage is not None:
                stage.marks[type(data).__name__] = event.time
        elif isinstance(data, IncidentContinued | IncidentEscalated) and stage is not None:
            stage.result = "continued" if isinstance(data, IncidentContinued) else "failed"
            stage.ended = event.time
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            self._close(event, data, case, stage)

    def _close(
        self, event: Event, data: IncidentResolved | IncidentExhausted, case: IncidentCase, stage: RecordedPlan | None
    ) -> None:
        self._open = None
        ended = isinstance(data, IncidentExhausted) or data.outcome == "ended"
        case.finished = ended and case.kind == "fault"
        case.steps_lost = data.steps_lost if isinstance(data, IncidentResolved) else None
        if case.finished:
            case.steps_lost = case.unsaved
        else:
            case.ended = event.time
        if stage is not None:
            stage.result, stage.ended = "ended" if ended else "resolved", event.time

    # -- the other chain

    def _ask(self, event: Event, case: IncidentCase, incident: IncidentState, taken: PlanOption | None) -> None:
        """Ask the other chain at a decision of the recorded chain.

        Args:
            event: the recorded decision.
            case: the incident so far.
            incident: its state before the decision.
            taken: the recorded plan; None: no policy took the incident.
        """
        if case.parted is not None:
            return
        path = self._path(case, incident)
        first = path[0] if path and path[0].policy else None
        if first is not None and taken is not None and first.is_like(taken):
            case.wait_more_s += first.wait_s - taken.wait_s
            if self._attempts is not None and not first.ends:
                self._attempts.setdefault(first.policy, []).append(event.time)
        elif first is not None or taken is not None:
            case.parted, case.parted_at, case.path = len(case.stages), event.time, path
            if self._attempts is None:
                self._attempts = {name: list(times) for name, times in self._state.history.attempts.items()}
            if first is not None and not first.ends:
                self._attempts.setdefault(first.policy, []).append(event.time)

    def _path(self, case: IncidentCase, incident: IncidentState) -> list[PlanOption]:
        """The plans of the other chain, each in case the previous one fails."""
        state, other = self._state, self._other
        kept = {name: getattr(state, name) for name in _REPLACED_FIELDS}
        asked = attrs.evolve(incident, asked=list(case.asked), tried=list(incident.tried), plan=None)
        attempts = state.history.attempts if self._attempts is None else self._attempts
        state.incident = asked
        state.policy = attrs.evolve(state.policy, chain=other.chain, declared=other.declared)
        abilities = {**state.abilities.declared, "file": other.declared.abilities, "assumed": self._assumed}
        state.abilities = attrs.evolve(state.abilities, declared=abilities)
        state.history = attrs.evolve(state.history, attempts={name: list(times) for name, times in attempts.items()})
        state.evidence = attrs.evolve(
            state.evidence,
            repeat=attrs.evolve(state.evidence.repeat),
            node_faults={name: list(times) for name, times in state.evidence.node_faults.items()},
            other_faults=list(state.evidence.other_faults),
        )
        try:
            path: list[PlanOption] = []
            for option in self._follow(asked):
                if not path:
                    case.asked = list(asked.asked)
                path.append(option)
            return path
        finally:
            for name, value in kept.items():
                setattr(state, name, value)

    def _follow(self, incident: IncidentState) -> Iterator[PlanOption]:
        state, readings = self._state, 1
        for _ in range(PATH_MAX):
            verdict, policy = _consulted(incident, state)
            if verdict is None:
                if incident.kind == "fault":
                    yield PlanOption(policy="", plan="end", ends=True)
                return
            option = _planned(policy, verdict)
            yield option
            if option.ends:
                return
            state.history.attempts.setdefault(policy, []).append(state.time)
            if verdict.plan is PlanKind.TELL or verdict.terms.then == "continue":
                incident.saved = incident.saved or option.saves
                continue
            incident.tried.append(policy)
            if verdict.plan is PlanKind.RESTART and not option.parks:
                state.history.streak += 1
            if option.keeps and incident.kind == "fault":  # assume that the fault recurs in the next round
                readings += 1
                if readings > REVISIONS_MAX:
                    yield PlanOption(policy="", plan="end", ends=True)
                    return
                incident.asked, incident.saved = [], False
                state.evidence.repeat.count += 1
                for node in incident.fault.nodes[:1]:
                    state.evidence.node_faults.setdefault(node, []).append(state.time)

    # -- prices

    def compared(self) -> list[Compared]:
        """All ended incidents under both chains.

        Raises:
            UsageError: there are none.
        """
        cases = [case for case in self._cases if case.ended is not None or case.finished]
        if not cases:
            raise UsageError("nothing to compare: the log has no incident that ended")
        prices = Prices(cases, self._costs, self._paces, self._needs_node)
        return [
            Compared(id=case.id, kind=case.kind, cls=case.cls, recorded=prices.recorded(case), other=prices.other(case))
            for case in cases
        ]


def _consulted(incident: IncidentState, state: JobState) -> tuple[Take | None, str]:
    """The verdict and policy that takes the incident; external policies without a recorded answer pass."""
    asking = True
    while asking:
        asking = False
        for answer in consult(state.policy.chain, incident, state):
            incident.asked.append(answer.policy)
            if isinstance(answer.verdict, Take):
                return answer.verdict, answer.policy
            asking = isinstance(answer.verdict, Ask)
    return None, ""


def _is_stepping(state: JobState) -> bool:
    """Whether every member of the world has completed a step."""
    return state.rounds.world is not None and state.rounds.world.stepped == len(state.rounds.world.members) > 0


def _planned(policy: str, take: Take) -> PlanOption:
    terms = take.terms
    return _option(policy, str(take.plan), take.wait_s, terms)


def _recorded(data: PolicyConsidered) -> PlanOption:
    return _option(data.policy, data.plan, data.wait_s, data.terms)


def _option(policy: str, plan: str, wait_s: float, terms: Any) -> PlanOption:
    restart = plan == PlanKind.RESTART
    moves = terms is not None and bool(terms.replace or terms.exclude or terms.want)
    command = terms.command if terms is not None else None
    return PlanOption(
        policy=policy,
        plan=plan,
        keeps=restart and not moves,
        parks=terms is not None and terms.survivors == "park",
        starts=terms is None or terms.survivors != "park" or terms.patience_s is not None,
        launches=terms is not None and bool(terms.replace),
        saves=command is not None and type(command).__name__ == "SaveCheckpoint",
        ends=plan == PlanKind.END,
        wait_s=wait_s,
    )

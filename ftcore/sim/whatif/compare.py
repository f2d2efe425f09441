"""What another policy would have cost: the incidents of a log, decided again under another chain.

The log is folded. Where the recorded chain took an incident or gave it up, the other chain is put in its place and the
production ``consult`` is asked. As long as the other chain takes the same plans, what happened is what it would have
cost. Where it takes another one, the two *part*, and the other chain is asked what it would take if that failed, and so
on to the end of the job: the *path*. Behind the last event every path is priced:

- a policy that the recorded chain took as well, in the same incident, does what it did then, and takes as long;
- another one works as often as it did elsewhere in this log (three times or more), else as the table of costs assumes;
- a plan that keeps the same machines is known to fail if in this very incident another such plan did, and to work if
  another such plan did;
- durations are medians of this log where it holds any, else composed of its phases and the table of costs.

A better reading of the evidence that comes before a plan was tried (the victim was reported before the culprit) is no
failure of that plan: it comes whatever the chain is, and both chains begin anew with it.

Every figure says where it comes from: ``this log``, a profile's name, ``default`` or ``given``. The result is an
expectation: a plan that works two times out of three counts with two thirds of its price and one third of what follows
its failure.

House rules: nothing is simulated here and nothing drawn by chance. The chain that was used, asked about its own log,
gives what the log holds, to the nanosecond. What the other chain would have seen after they part, in rounds that never
were, is assumed to be the same fault again. Budgets are counted for the other chain on its own from there on. The job
is able to do what the log and the other file declare (``policies/abilities.py``) and what is assumed besides. Policies
that are not ftcore's are asked by a master alone: one that answered in this very incident says here what it said then,
others are taken to pass, and named.
"""

from collections.abc import Iterator
from typing import Any

import attrs

from ftcore.engine.plans import REVISIONS_MAX
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
from ftcore.events.job import CheckpointCommitted, JobFinished, JobProgressed, JobSubmitted
from ftcore.events.node import NodeGaveUp
from ftcore.events.policy import AbilityDeclared, PolicyConsidered, PolicyLoaded
from ftcore.events.registry import Kind
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed
from ftcore.ids import SECOND
from ftcore.policies.abilities import counted
from ftcore.policies.base import Ask, PlanKind, Take
from ftcore.policies.chain import consult
from ftcore.policies.feasible import unable
from ftcore.replay.reading import fold_recorded
from ftcore.sim.cost import Costs
from ftcore.sim.whatif.prices import NEEDS_NODE, Case, Option, Price, Prices, Stage
from ftcore.states.fold.incidents import was_tried
from ftcore.states.model import IncidentState, JobState

_ASKED_WITH = ("chain", "attempts", "repeat", "node_faults", "streak", "incident", "abilities", "declared")
"""Parts of the state that the other chain sees as its own."""

PATH_MAX = 256
"""Plans followed for one incident; a chain that tries more has spent its budgets long before."""


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
    """A reader (see ``replay``) that asks another chain about every incident; ``compared`` once all was fed.

    Args:
        other: the other chain.
        costs: for what the log does not tell.
        needs_node: share of a machine's faults that only another machine cures, and where that comes from.
        assumed: abilities that the job is taken to have besides.

    Attributes:
        recorded_source: where the recorded chain came from.
        not_asked: policies of the other chain that are not ftcore's and were not asked by the recorded one.
    """

    def __init__(
        self,
        other: PolicyLoaded,
        costs: Costs | None = None,
        needs_node: tuple[float, str] = NEEDS_NODE,
        assumed: tuple[str, ...] = (),
    ) -> None:
        self._other = other
        self._assumed = counted((), assumed)
        self._needs_node = needs_node
        self._costs = costs or Costs()
        self._state = JobState()
        self._cases: list[Case] = []
        self._open: Case | None = None
        self._down: tuple[Case, int] | None = None
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
        """What the other chain passes over because the job is not able to do it; empty if nothing."""
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
            self._go_on(event, data, self._open)

    def _read_fact(self, data: Any) -> None:
        if isinstance(data, PolicyLoaded):
            self.recorded_source = data.source
            self._recorded |= {entry.policy for entry in data.chain if entry.external}
        elif isinstance(data, AbilityDeclared):
            self._declared |= set(data.abilities)
        elif isinstance(data, JobSubmitted):
            self._attempts = None

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
        self._cases.append(case)
        self._open = case

    def _before(self, event: Event, data: Any, case: Case) -> None:
        """What has to be looked at in the state in which the recorded chain decided."""
        known = self._state.incident
        if known is None:
            return
        if isinstance(data, IncidentRediagnosed) and data.revision > known.revision:
            self._read_anew(event, case, tried=was_tried(self._state, known))
        elif isinstance(data, IncidentExhausted):
            if self._fact is not None and isinstance(self._fact.data, NodeGaveUp):
                return  # no plan can overrule it
            if known.revision <= REVISIONS_MAX + (len(self._state.world.members) if self._state.world else 0):
                self._ask(event, case, known, None)
        elif isinstance(data, PolicyConsidered) and data.verdict == "take":
            self._ask(event, case, known, _recorded(data))

    def _read_anew(self, event: Event, case: Case, *, tried: bool) -> None:
        """The chain starts again, because the plan failed, or because of what came to be known before it was tried."""
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

    def _go_on(self, event: Event, data: Any, case: Case) -> None:
        stage = case.under_way
        if isinstance(data, IncidentRediagnosed):
            case.cls, case.kind = data.fault.cls, data.kind
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

    def _ask(self, event: Event, case: Case, incident: IncidentState, taken: Option | None) -> None:
        """Ask the other chain where the recorded one took the incident, or gave it up.

        Args:
            event: the recorded decision.
            case: what is known of the incident so far.
            incident: as it is in the state before that decision.
            taken: what the recorded chain took; None: nobody took it.
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
                self._attempts = {name: list(times) for name, times in self._state.attempts.items()}
            if first is not None and not first.ends:
                self._attempts.setdefault(first.policy, []).append(event.time)

    def _path(self, case: Case, incident: IncidentState) -> list[Option]:
        """What the other chain takes, and what it takes if whatever it takes fails."""
        state, other = self._state, self._other
        kept = {name: getattr(state, name) for name in _ASKED_WITH}
        asked = attrs.evolve(incident, asked=list(case.asked), tried=list(incident.tried), taken="", plan="")
        attempts = state.attempts if self._attempts is None else self._attempts
        state.chain, state.incident, state.declared = other.chain, asked, other.declared
        state.abilities = {**state.abilities, "file": other.declared.abilities, "assumed": self._assumed}
        state.attempts = {name: list(times) for name, times in attempts.items()}
        state.repeat = attrs.evolve(state.repeat)
        state.node_faults = {name: list(times) for name, times in state.node_faults.items()}
        try:
            path: list[Option] = []
            for option in self._follow(asked):
                if not path:
                    case.asked = list(asked.asked)
                path.append(option)
            return path
        finally:
            for name, value in kept.items():
                setattr(state, name, value)

    def _follow(self, incident: IncidentState) -> Iterator[Option]:
        state, readings = self._state, 1
        for _ in range(PATH_MAX):
            verdict, policy = _consulted(incident, state)
            if verdict is None:
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
                readings += 1
                if readings > REVISIONS_MAX:
                    yield Option(policy="", plan="end", ends=True)
                    return
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
        prices = Prices(cases, self._costs, self._paces, self._needs_node)
        return [
            Compared(id=case.id, kind=case.kind, cls=case.cls, recorded=prices.recorded(case), other=prices.other(case))
            for case in cases
        ]


def _consulted(incident: IncidentState, state: JobState) -> tuple[Take | None, str]:
    """Which policy takes the incident, and how; who is not ftcore's and did not answer then is taken to pass."""
    asking = True
    while asking:
        asking = False
        for answer in consult(state.chain, incident, state):
            incident.asked.append(answer.policy)
            if isinstance(answer.verdict, Take):
                return answer.verdict, answer.policy
            asking = isinstance(answer.verdict, Ask)
    return None, ""


def _is_stepping(state: JobState) -> bool:
    """Every member of the world has completed a step."""
    return state.world is not None and state.world.stepped == len(state.world.members) > 0


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

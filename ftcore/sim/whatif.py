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
rounds that never were, is assumed to be the same fault again. Budgets are counted for the other chain on its own. What
the entries of its file need, job and platform are taken to be able to do. Policies that are not ftcore's are asked by a
master alone; here they are taken to pass, and named.
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
from ftcore.events.job import CheckpointCommitted, JobFinished, JobProgressed
from ftcore.events.policy import PolicyConsidered, PolicyLoaded
from ftcore.events.registry import Kind
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed
from ftcore.ids import SECOND
from ftcore.policies.base import PlanKind, Take
from ftcore.policies.chain import consult
from ftcore.replay.reading import fold_recorded
from ftcore.sim.abilities import needed_by
from ftcore.sim.cost import Costs
from ftcore.sim.whatif_prices import NEEDS_NODE, Case, Option, Price, Prices, Stage
from ftcore.states.model import IncidentState, JobState

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
        return {("class" if key == "cls" else key): value for key, value in attrs.asdict(self).items()}


class WhatIf:
    """A reader (see ``replay``) that asks another chain about every incident; ``compared`` once all was fed.

    Args:
        other: the other chain.
        costs: for what the log does not tell.
        needs_node: share of a machine's faults that only another machine cures, and where that comes from.

    Attributes:
        recorded_source: where the recorded chain came from.
        not_asked: policies of the other chain that are not ftcore's: they are taken to pass.
    """

    def __init__(
        self, other: PolicyLoaded, costs: Costs | None = None, needs_node: tuple[float, str] = NEEDS_NODE
    ) -> None:
        self._other = other
        self._chain = tuple(entry for entry in other.chain if not entry.external)
        self._needs_node = needs_node
        self._costs = costs or Costs()
        self._state = JobState()
        self._cases: list[Case] = []
        self._open: Case | None = None
        self._down: tuple[Case, int] | None = None
        self._attempts: dict[str, list[int]] = {}
        self._paces: list[float] = []
        self._pace_from: tuple[int, int, int] | None = None
        self._fact: Event | None = None
        self.recorded_source = ""
        self.not_asked = tuple(dict.fromkeys(entry.policy for entry in other.chain if entry.external))

    def feed(self, event: Event) -> None:
        """See ``replay.Reader``."""
        state = self._state
        fold_recorded(state, event)
        data = event.data
        if isinstance(data, JobProgressed | CheckpointCommitted):
            self._pace(event, data)
        if self._down is not None and state.run > self._down[1] and _is_stepping(state):
            self._down[0].ended, self._down = event.time, None
        if event.kind is Kind.FACT:
            self._fact = event
            if isinstance(data, PolicyLoaded):
                self.recorded_source = data.source
            return
        if isinstance(data, IncidentOpened):
            self._begin(event, data)
        elif isinstance(data, JobFinished):
            if self._cases and self._open is None and self._cases[-1].finished:
                self._down = (self._cases[-1], state.run)
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
        abilities = state.abilities
        state.abilities = {**abilities, "what if": needed_by(self._other)}
        asked = attrs.evolve(incident, asked=[], tried=[], taken="", plan="", saved=False)
        state.chain, state.incident = self._chain, asked
        state.attempts = {name: list(times) for name, times in self._attempts.items()}
        state.repeat = attrs.evolve(state.repeat)
        state.node_faults = {name: list(times) for name, times in state.node_faults.items()}
        try:
            path = list(self._follow(asked))
        finally:
            state.chain, state.attempts, state.repeat, state.node_faults, state.streak, state.incident = kept
            state.abilities = abilities
        if path and not path[0].ends:
            self._attempts.setdefault(path[0].policy, []).append(state.time)
        return path

    def _follow(self, incident: IncidentState) -> Iterator[Option]:
        state, readings = self._state, 1
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

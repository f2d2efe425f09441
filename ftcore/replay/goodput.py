"""Goodput: the use of a job's time, read from its event log; ``docs/explanation/goodput.md`` has the definition.

Every nanosecond between the first and the last event has exactly one use, so the uses add up to the wall time. The
clock is that of the masters (``Event.time``). What an event shows only later is corrected backwards: training that
turns out to have been the first seconds of a fault, a plan that failed, the time in which a state was loaded.
"""

from typing import Any, Final

import attrs
import msgspec

from ftcore.events.checkpoint import CheckpointCommitted, StateLoaded
from ftcore.events.envelope import Event
from ftcore.events.imported import LogImported, SourceCited
from ftcore.events.incident import (
    DepartureBegun,
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import JobFinished, JobProgressed, JobSubmitted
from ftcore.events.operator import OperatorNoted
from ftcore.events.policy import PlanApplied, PolicyConsidered
from ftcore.events.worker import WorkersStepped
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed
from ftcore.ids import SECOND
from ftcore.policies.base import PlanKind
from ftcore.replay.accounts import GoodputReport, account
from ftcore.replay.explain import Explainer, SavedExplainer, restore_explainer, save_explainer
from ftcore.replay.presence import Presence, SavedPresence
from ftcore.replay.spans import PRODUCTIVE, USES, Span, SpanRow
from ftcore.states.job import JobPhase
from ftcore.states.model import JobState

__all__ = ["USES", "GoodputLedger", "GoodputReport"]

TRAINING: Final = "training"
"""Use of time that is not divided yet into training, repeated training and checkpoints."""

RESPONSE: Final = ("decide", "stop", "rendezvous", "start", "load")
"""Uses of the response to an incident. If its plan fails, all of it becomes ``decide``."""

_ROUND: Final = frozenset({RoundPlanned, WorldFormed, RoundStarted})
_LASTING: Final = ("running", "recovering", "stuck")
_NO_TAKER: Final = ("deferred", "resolved", "exhausted")


@attrs.define(kw_only=True)
class OpenResponse:
    """The incident that is open, and what its response does now."""

    id: str | None
    kind: str
    opened: int
    use: str = "decide"


@attrs.define
class CutOff:
    """The end of the training that a fault cut off, since the last step that was known of then.

    Args:
        begin, end: nanoseconds.
        step: that step.
        done: the newest step that turned out to have been completed.
    """

    begin: int
    end: int
    step: int
    done: int

    def divide(self, row: SpanRow) -> None:
        """The steps that were completed are productive; only the unfinished one is computed again."""
        completed = self.done - self.step
        part = (self.end - self.begin) * completed // (completed + 1)
        row.change(self.begin, self.begin + part, ("recompute",), PRODUCTIVE, None)


class SavedLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A ``GoodputLedger``, field by field."""

    explainer: SavedExplainer
    spans: list[Span]
    presence: SavedPresence
    first: int | None
    now: int
    use: str
    due: str | None
    open: OpenResponse | None
    repeats: str | None
    pause: str | None
    since: int
    at: int | None
    best: int | None
    blocked: int
    reports: bool
    started: int
    loads: list[tuple[int, int]]
    cut: CutOff | None
    timed: bool
    bound: bool


_SAVED: Final = (
    *("first", "now", "use", "due", "open", "repeats", "pause", "since", "at", "best"),
    *("blocked", "reports", "started", "loads", "cut", "timed", "bound"),
)
"""Fields of ``SavedLedger`` that need no conversion."""


class GoodputLedger:
    """A reader that books the time between events.

    Args:
        keep: the newest incidents to keep, as ``Explainer``; the time of dropped ones is kept without their details.

    Attributes:
        explainer: the incidents, of the same pass.
    """

    def __init__(self, keep: int | None = None) -> None:
        self.explainer = Explainer(keep)
        self._row = SpanRow()
        self._presence = Presence()
        self._first: int | None = None
        self._now = 0
        self._use = "idle"
        self._due: str | None = None
        self._open: OpenResponse | None = None
        self._repeats: str | None = None
        self._pause: str | None = None
        self._since = 0
        self._at: int | None = None
        self._best: int | None = None
        self._blocked = 0
        self._reports = False
        self._started = 0
        self._loads: list[tuple[int, int]] = []
        self._cut: CutOff | None = None
        self._timed = True
        self._bound = False
        self._steady: int | None = None
        """The round of the newest event, if that was a sample of undisturbed training."""

    @property
    def state(self) -> JobState:
        """The folded state after the last event, not to be changed."""
        return self.explainer.state

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        data = event.data
        if type(data) is JobProgressed and (self._goes_on(data) or self._is_steady(data)):
            self._sampled(event, data)
            return
        self._steady = None
        if type(data) is OperatorNoted and self.state.ending is not None:
            self.explainer.feed(event)  # it may be written days after the end: that is no time of the job
            return
        if self._first is None:
            self._first = self._now = event.time
        self._row.add(self._now, event.time, self._use, self._due)
        self._now = max(self._now, event.time)
        self.explainer.feed(event)
        self._presence.feed(event, self.state)
        if type(data) is LogImported:
            self._timed = False
        elif type(data) is SourceCited:
            self._bound = data.basis == "bound"
        elif not self._timed and isinstance(data, JobProgressed | WorkersStepped):
            self._timed = not self._bound
        elif type(data) is JobSubmitted:
            self._submitted(data)
        elif type(data) is CheckpointCommitted:
            self._blocked += round(data.seconds * SECOND)
        elif type(data) is StateLoaded:
            self._loaded(event, data)
        elif type(data) is RoundStarted:
            self._started = event.time
        elif type(data) is JobFinished and data.outcome == "succeeded":
            self._best = None
        if event.incident is not None or type(data) in _ROUND:
            self._respond(event, data)
        self._turn(event)

    def report(self) -> GoodputReport:
        """What the time was used for, up to the last event."""
        row = SpanRow()
        for span in self._row.spans:
            use = PRODUCTIVE if span.use == TRAINING else span.use
            row.add(span.begin, span.end, use, span.incident)
        if self._cut is not None:
            self._cut.divide(row)
        return account(
            row.spans,
            self._presence.stays(self._now),
            self.explainer.incidents(),
            begin=self._first or 0,
            end=self._now,
            repeats_known=self.state.training.step_absolute or not self.state.training.reports_steps,
            timed=self._timed,
        )

    def _goes_on(self, data: JobProgressed) -> bool:
        """Whether a sample of which ``_is_steady`` was true came before, and this one is of the same round."""
        return data.round == self._steady and self._at is not None and data.step > self._at

    def _is_steady(self, data: JobProgressed) -> bool:
        """Whether a sample only prolongs the newest span: new steps in undisturbed training. Most events of a long log
        are such samples; the general way would book them alike, at several times the cost."""
        if self._use != TRAINING or self._open is not None or self._blocked or not self._row.spans:
            return False
        if not self._reports or not self._timed:
            return False
        state, at, last = self.explainer.state, self._at, self._row.spans[-1]
        world = state.rounds.world
        return (
            at is not None
            and at == state.training.step
            and data.step > at
            and (self._best is None or self._best <= at)
            and world is not None
            and world.round == data.round
            and not state.log.poisoned
            and self._since == self._now == last.end
            and last.use == PRODUCTIVE
            and last.incident is None
        )

    def _sampled(self, event: Event, data: JobProgressed) -> None:
        explainer = self.explainer
        explainer.feed(event)
        if event.time > self._now:
            self._row.spans[-1].end = self._now = self._since = event.time
        self._at, self._steady = data.step, data.round
        if explainer.state.training.step_absolute:
            self._best = data.step

    # -- the response to incidents

    def _respond(self, event: Event, data: Any) -> None:
        if type(data) is IncidentOpened:
            self._opened(event, data)
            return
        case = self._open
        if type(data) in _ROUND:
            use = "rendezvous" if type(data) is RoundPlanned else "start"
            if case is not None:
                case.use = use
                self._repeats = case.id
        elif case is None or event.incident != case.id:
            return
        elif type(data) is IncidentRediagnosed:
            case.kind = data.kind
            self._detected(event.time, case)
        elif type(data) is PolicyConsidered and data.verdict == "take":
            self._plan_failed(case)
            case.use = {PlanKind.RESTART: "stop", PlanKind.END: "stop", PlanKind.IN_PLACE: "start"}.get(
                PlanKind(data.plan), "decide"
            )
        elif isinstance(data, IncidentContinued | IncidentEscalated):
            self._plan_failed(case)
            case.use = "decide"
        elif type(data) is DepartureBegun:
            case.use = "stop"
        elif type(data) is PlanApplied:
            case.use = "start"
        elif isinstance(data, IncidentResolved | IncidentExhausted):
            self._pause = case.id if isinstance(data, IncidentResolved) and data.outcome == "paused" else self._pause
            self._open = None

    def _opened(self, event: Event, data: IncidentOpened) -> None:
        self._open = OpenResponse(id=event.incident, kind=data.kind, opened=event.time)
        self._detected(event.time, self._open)

    def _detected(self, now: int, case: OpenResponse) -> None:
        """Book the time from the fault until it was noticed, and the step that the fault cut off."""
        incident = self.explainer.newest()
        if case.kind != "fault" or incident is None:
            return
        hit = case.opened - round((incident.phases.detect or 0.0) * SECOND)
        self._row.change(hit, case.opened, (TRAINING, PRODUCTIVE), "detect", case.id)
        if self._use == TRAINING:
            self._settle(hit, case.id)

    def _plan_failed(self, case: OpenResponse) -> None:
        self._row.change(case.opened, self._now, RESPONSE, "decide", case.id)

    def _loaded(self, event: Event, data: StateLoaded) -> None:
        begin = event.time - round(data.seconds * SECOND)
        self._loads.append((begin, event.time))
        self._row.change(begin, event.time, ("start",), "load", self._due)

    # -- training

    def _submitted(self, data: JobSubmitted) -> None:
        self._open = self._repeats = self._pause = None
        self._reports = False

    def _turn(self, event: Event) -> None:
        """Find the use of the time after an event."""
        state = self.state
        use, due = self._use_of(state)
        if self._cut is not None:
            self._late_steps(self._cut, state, over=use == TRAINING or type(event.data) is WorldFormed)
        if self._use == TRAINING:
            if not self._reports and state.training.reports_steps:
                self._first_step(state)
            if use == TRAINING:
                self._confirm(state)
            else:
                self._settle(self._now, None)
        if use == TRAINING and self._use != TRAINING:
            self._since, self._at = event.time, state.training.step
            self._note_best(state)
        if self._use != use or self._due != due:
            self._loads = []
        self._use, self._due, self._reports = use, due, state.training.reports_steps

    def _use_of(self, state: JobState) -> tuple[str, str | None]:
        due = self._open.id if self._open is not None else None
        if not state.run or state.ending is not None:
            return "idle", None
        if state.phase is JobPhase.PAUSED:
            return "paused", due or self._pause
        if self._trains(state):
            return TRAINING, None
        if state.requests.held:
            return "paused", due
        if state.phase in (JobPhase.ASSEMBLING, JobPhase.STUCK):
            return "idle", due
        planned = state.rounds.planned
        if state.phase is JobPhase.FORMING and planned is not None and len(state.membership.places) < planned.want:
            return "idle", due
        if self._open is not None:
            return self._open.use, due
        return ("rendezvous" if state.phase is JobPhase.FORMING else "start"), due

    def _trains(self, state: JobState) -> bool:
        """Whether every member of the world has completed a step of its round, and nothing has ended it.

        A script that reports no steps trains once its workers run.
        """
        world, case, incident = state.rounds.world, self._open, state.incident
        if world is None or not world.started or str(state.phase) not in _LASTING:
            return False
        reports = state.training.reports_steps
        if case is not None and incident is not None:
            phase = str(incident.phase)
            if case.kind == "fault" and phase not in _NO_TAKER and (reports or phase != "verifying"):
                return False
            if case.kind != "fault" and case.use == "stop" and phase not in _NO_TAKER:
                return False
        return world.stepped >= len(world.members) or not reports

    def _first_step(self, state: JobState) -> None:
        """The script turned out to report steps: the time since its workers ran was no training yet."""
        self._row.change(self._started, self._now, (TRAINING,), "start", self._repeats)
        for begin, end in self._loads:
            self._row.change(max(begin, self._started), end, ("start",), "load", self._repeats)
        self._since, self._at = self._now, state.training.step
        self._note_best(state)

    def _confirm(self, state: JobState) -> None:
        """Divide the training up to a completed step into new steps, repeated steps and checkpoints."""
        training = state.training
        step, at = training.step, self._at
        if step is None or at is None or step <= at:
            return
        again = 0
        if training.step_absolute and self._best is not None:
            again = min(step - at, max(0, self._best - at))
        self._divide(again / (step - at))
        self._at = step
        self._note_best(state)

    def _divide(self, repeated: float) -> None:
        """Divide the training since the last division."""
        spent = self._row.length(self._since, TRAINING)
        blocked = min(spent, self._blocked)
        again = round((spent - blocked) * repeated)
        parts: list[tuple[int, str, str | None]] = [
            (again, "recompute", self._repeats),
            (spent - blocked - again, PRODUCTIVE, None),
        ]
        kept = [part for part in parts if part[0]]
        if blocked or not kept:
            kept.append((blocked, "checkpoint", None))
        self._row.divide(self._since, TRAINING, kept)
        self._blocked, self._since = 0, self._now

    def _settle(self, hit: int, fault: str | None) -> None:
        """Divide the end of the training that was left.

        Args:
            hit: when it ended, nanoseconds.
            fault: the fault that ended it: the unfinished step before it is computed again.
        """
        state = self.state
        if fault is not None:
            done = self._last_step_before(hit)
            if done is not None:
                self._row.change(done, hit, (TRAINING,), "recompute", fault)
        self._confirm(state)
        if self._row.length(self._since, TRAINING):
            if fault is not None and state.training.reports_steps and self._at is not None:
                self._row.change(self._since, hit, (TRAINING,), "recompute", fault)
                self._cut = CutOff(self._since, hit, self._at, self._at)
            else:
                self._divide(0.0)

    def _late_steps(self, cut: CutOff, state: JobState, *, over: bool) -> None:
        """Steps reported after a fault that were completed before it, for example by nodes that then save them."""
        if state.training.step_absolute and state.training.step is not None:
            cut.done = max(cut.done, state.training.step)
        if over:
            cut.divide(self._row)
            if state.training.step_absolute:
                self._best = max(self._best or 0, cut.done)
            self._cut = None

    def _last_step_before(self, hit: int) -> int | None:
        """When the last step before a fault was completed, if its fact tells it."""
        incident = self.explainer.newest()
        last = incident.failures[0].last if incident is not None and incident.failures else ()
        return max(self._since, hit - last[0].ago_ms * 1_000_000) if last else None

    def _note_best(self, state: JobState) -> None:
        if state.training.step is not None and state.training.step_absolute:
            self._best = max(self._best or 0, state.training.step)


def save_ledger(ledger: GoodputLedger) -> SavedLedger:
    """A ledger as a record, to continue from; only one that keeps all incidents can be saved."""
    return SavedLedger(
        explainer=save_explainer(ledger.explainer),
        spans=ledger._row.spans,
        presence=ledger._presence.saved(),
        **{name: getattr(ledger, f"_{name}") for name in _SAVED},
    )


def restore_ledger(saved: SavedLedger) -> GoodputLedger:
    """The ledger of a record; raises as ``restore_explainer`` does."""
    ledger = GoodputLedger()
    ledger.explainer = restore_explainer(saved.explainer)
    ledger._row.spans = saved.spans
    ledger._presence = Presence.restored(saved.presence)
    for name in _SAVED:
        setattr(ledger, f"_{name}", getattr(saved, name))
    return ledger

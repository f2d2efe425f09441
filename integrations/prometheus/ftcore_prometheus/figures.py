"""The figures of a job, folded from its log.

House rule: pure. The only input is events, the only time is theirs, so a running job's endpoint and a finished job's
log give the same figures. Their number is bounded by the classes of faults, the policies and the phases, not by the
nodes and not by the length of the log.
"""

from collections import Counter
from typing import Any, Final

import attrs

from ftcore import Event
from ftcore.replay import Explainer, Incident, JobState
from ftcore_prometheus.histogram import Durations
from ftcore_prometheus.ledger import TimeLedger

PHASES: Final = ("detect", "decide", "wait", "stop", "rendezvous", "start", "first_step", "total")
INCIDENTS_KEPT: Final = 4
"""A pause, an alert and the open incident may be read on; older ones are not."""


class JobFigures:
    """A reader of a log (``ftcore.replay.Reader``) that keeps figures.

    Attributes:
        ledger: the use of the job's time.
        events: number of events by type.
        incidents: number of ended incidents, by kind, class and outcome.
        resolved: number of incidents by the policy that resolved them.
        restarts: number of worlds that were formed to go on after an incident, by its class.
        recovery: durations of the phases of ended incidents, by phase.
        steps_lost: completed steps that had to be computed again.
        written: durations of the shards' writes to storage.
        staged: durations of the shards' copies to memory, of shards that were written.
        written_bytes: bytes of shards written to storage.
        loaded: durations of restoring state, by source.
        committed: time of the newest committed checkpoint, nanoseconds since the epoch; 0: none.
        committed_step: its step.
        stepped: time at which the newest completed step became known; 0: none.
        loss: the newest loss in the log.
    """

    def __init__(self) -> None:
        self._explainer = Explainer(keep=INCIDENTS_KEPT)
        self.ledger = TimeLedger()
        self.events: Counter[str] = Counter()
        self.incidents: Counter[tuple[str, str, str]] = Counter()
        self.resolved: Counter[str] = Counter()
        self.restarts: Counter[str] = Counter()
        self.recovery = {phase: Durations() for phase in PHASES}
        self.steps_lost = 0
        self.written, self.staged = Durations(), Durations()
        self.written_bytes = 0
        self.loaded: dict[str, Durations] = {}
        self.committed = 0
        self.committed_step = 0
        self.stepped = 0
        self.loss: float | None = None
        self._step: tuple[int | None, int] = (None, 0)

    @property
    def state(self) -> JobState:
        """The folded state, not to be changed."""
        return self._explainer.state

    def feed(self, event: Event) -> None:
        """Take the next event; the first one has seq 1.

        Raises:
            FtcoreError: the event is of a newer ftcore, or contradicts the events before it.
        """
        self._explainer.feed(event)
        incident = self._explainer.newest()
        self.events[event.type] += 1
        self.ledger.feed(event, self.state, incident)
        step = (self.state.training.step, self.state.training.step_round)
        if step != self._step:
            self._step = step
            if step[0] is not None and event.type != "job.rolled_back":
                self.stepped = event.time
        handle = _HANDLERS.get(event.type)
        if handle is not None:
            handle(self, event, event.data)
        if incident is not None and event.incident == incident.id and event.type in _ENDS:
            self._ended(incident)

    def _ended(self, incident: Incident) -> None:
        self.incidents[incident.kind, incident.cls, incident.outcome or ""] += 1
        if incident.resolved_by:
            self.resolved[incident.resolved_by] += 1
        self.steps_lost += incident.steps_lost or 0
        if incident.kind != "fault":
            return  # a request has phases, too, but nothing recovers
        for phase, seconds in attrs.asdict(incident.phases).items():
            if seconds is not None:
                self.recovery[phase].add(seconds)

    def _formed(self, event: Event, data: Any) -> None:
        if self.state.incident is not None:
            self.restarts[self.state.incident.fault.cls] += 1

    def _progressed(self, event: Event, data: Any) -> None:
        self.loss = data.loss

    def _persisted(self, event: Event, data: Any) -> None:
        self.written.add(data.seconds)
        self.staged.add(data.staged_s)
        self.written_bytes += data.bytes

    def _loaded(self, event: Event, data: Any) -> None:
        self.loaded.setdefault(data.source or "none", Durations()).add(data.seconds)

    def _committed(self, event: Event, data: Any) -> None:
        self.committed, self.committed_step = event.time, data.step


_ENDS: Final = ("incident.resolved", "incident.exhausted")

_HANDLERS: Final = {
    "world.formed": JobFigures._formed,
    "job.progressed": JobFigures._progressed,
    "shard.persisted": JobFigures._persisted,
    "state.loaded": JobFigures._loaded,
    "checkpoint.committed": JobFigures._committed,
}

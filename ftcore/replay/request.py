"""The progress of an operator's request, followed in the event log from its fact to its outcome.

House rules: only the log is read, so the result is the same for an old request. A request made during a fault waits
until the fault's incident is closed. A request is over when its own incident closes, when the job ends, or when a newer
request replaces it before an incident was opened for it.
"""

import attrs

from ftcore.events.envelope import Event
from ftcore.events.incident import (
    DepartureBegun,
    DepartureDeferred,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import JobFinished, JobUnparked
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import PolicyConsidered
from ftcore.policies.abilities import LACKS
from ftcore.replay.explain import Asked
from ftcore.wording import DONE, STAYS_PAUSED, deferred_departure, listed, sentence

_ADVICE = {
    "pause": "; workers report `pause` with the first completed step: see `abilities` in ftctl status",
    "checkpoint": "; the script must call `ftcore.worker.boundary` and set a function with `ftcore.worker.on_save`",
}
"""What an operator can do if a request is dropped because the job lacks an ability."""


@attrs.define(kw_only=True)
class RequestReader:
    """A reader that follows one request; feed it every event after the request's own.

    Args:
        seq: the ``operator.commanded`` event of the request.
        command: its command.
        node: the node, for ``drain``, ``evict`` and ``admit``.

    Attributes:
        outcome: ``done``, ``dropped`` (no policy could carry it out), ``overtaken`` (replaced by a newer request) or
            ``ended`` (the job ended first); empty while it is not over.
        reason: why, as a text for the operator.
        incident: id of its incident, once one was opened.
        policies: every answer to it, in order.
        waits: what it waits for after a policy took it; empty if nothing.
        paused: the job is paused; set it at the request, events update it.
    """

    seq: int
    command: str
    node: str = ""
    outcome: str = ""
    reason: str = ""
    incident: str | None = None
    policies: list[Asked] = attrs.field(factory=list)
    waits: str = ""
    paused: bool = False
    _current: bool = False

    def feed(self, event: Event) -> str:
        """Process the next event; return a line to print, empty if there is none."""
        if self.outcome or event.seq <= self.seq:
            return ""
        data = event.data
        if isinstance(data, IncidentResolved) and data.outcome in ("paused", "resumed"):
            self.paused = data.outcome == "paused"
        if isinstance(data, JobFinished):
            self.outcome = "done" if self.command == "stop" and data.outcome == "stopped" else "ended"
            self.reason = DONE["stop"] if self.outcome == "done" else f"the job has {data.outcome}: {data.reason}"
        elif isinstance(data, JobUnparked) and self.command == "resume":
            self.outcome, self.reason = "done", "ftcore makes decisions for the job again"
        elif isinstance(data, OperatorCommanded) and not self._current:
            self._check_replaced(event.seq, data)
        elif isinstance(data, IncidentOpened | IncidentRediagnosed):
            return self._on_diagnosis(event, data)
        elif self._current and event.incident == self.incident:
            return self._on_decision(data)
        return ""

    def _check_replaced(self, seq: int, newer: OperatorCommanded) -> None:
        if newer.command == "admit" or (newer.command == "stop" and self.command != "stop"):
            return  # `admit` replaces no request; after `stop`, the end of the job is the outcome
        self.outcome = "overtaken"
        self.reason = f"{newer.who} requested {newer.command} (event {seq}) before this request was handled"

    def _on_diagnosis(self, event: Event, data: IncidentOpened | IncidentRediagnosed) -> str:
        was, self._current = self._current, data.fault.root == self.seq
        self.waits = ""
        if self._current and not was:
            self.incident, self.policies = event.incident, []
        elif was and not self._current:
            return f"a fault comes first ({data.fault.summary}); the request is handled after it"
        return ""

    def _on_decision(self, data: object) -> str:
        if isinstance(data, PolicyConsidered):
            self.policies.append(Asked(name=data.policy, verdict=data.verdict, reason=data.reason))
            return f"{data.policy} {'takes it' if data.verdict == 'take' else 'passes'}: {data.reason}"
        if isinstance(data, DepartureDeferred):
            self.waits = deferred_departure((self.node,) if self.node else data.nodes)
            return self.waits
        if isinstance(data, DepartureBegun | IncidentEscalated):
            self.waits = ""
        if isinstance(data, DepartureBegun) and data.ready:
            return f"ready: {listed(data.ready)}; the workers are stopped for the next round"
        if isinstance(data, IncidentResolved) and data.outcome == "ended" and self.command != "stop":
            return ""  # `job.finished` gives the outcome
        if isinstance(data, IncidentEscalated):
            return sentence(data)
        if isinstance(data, IncidentResolved):
            if self.command != "stop":  # a stop is done when the job has ended
                self.outcome, self.reason = "done", DONE[self.command].format(node=self.node)
        elif isinstance(data, IncidentExhausted):
            self.outcome, self.reason = "dropped", self._why_dropped()
        return ""

    def _why_dropped(self) -> str:
        if not self.policies:
            return f"no policy of this job's chain handles {self.command}"
        advice = _ADVICE.get(self.command, "") if any(LACKS in asked.reason for asked in self.policies) else ""
        state = STAYS_PAUSED if self.paused else "the job goes on unchanged"
        return f"no policy of the chain could carry it out; {state}{advice}"

"""What becomes of an operator's wish: followed from its fact to the verdict, in plain words.

House rules: the log alone is asked, so the same is told of a wish made a year ago. A wish that a fault came in front of
waits for the fault's end and is taken up then; it is over when its own incident closes, when the job ends, or when a
newer wish took its place before anybody looked at it.
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
from ftcore.replay.explain import Asked
from ftcore.wording import DONE, leaves_once_ready, listed, sentence


@attrs.define(kw_only=True)
class Wish:
    """A reader that follows one wish; feed it every event behind the wish's own.

    Args:
        seq: the wish's ``operator.commanded``.
        command: what was asked for.
        node: the node, for ``drain``, ``evict`` and ``admit``.

    Attributes:
        outcome: ``done``, ``dropped`` (nobody could carry it out), ``overtaken`` (by a newer wish), ``ended`` (the job
            did, before); empty while it is not over.
        reason: how it came to that, for people.
        incident: the incident that it is, once it was taken up.
        policies: every answer to it, in order.
        waits: what it waits for, once a policy took it; empty: nothing.
    """

    seq: int
    command: str
    node: str = ""
    outcome: str = ""
    reason: str = ""
    incident: str | None = None
    policies: list[Asked] = attrs.field(factory=list)
    waits: str = ""
    _current: bool = False

    def feed(self, event: Event) -> str:
        """Take in the next event; returns a line for people, empty if there is nothing to tell."""
        if self.outcome or event.seq <= self.seq:
            return ""
        data = event.data
        if isinstance(data, JobFinished):
            self.outcome = "done" if self.command == "stop" and data.outcome == "stopped" else "ended"
            self.reason = DONE["stop"] if self.outcome == "done" else f"the job has {data.outcome}: {data.reason}"
        elif isinstance(data, JobUnparked) and self.command == "resume":
            self.outcome, self.reason = "done", "decisions are made again"
        elif isinstance(data, OperatorCommanded) and not self._current:
            self._met(event.seq, data)
        elif isinstance(data, IncidentOpened | IncidentRediagnosed):
            return self._read_anew(event, data)
        elif self._current and event.incident == self.incident:
            return self._decided(data)
        return ""

    def _met(self, seq: int, newer: OperatorCommanded) -> None:
        if newer.command == "admit" or (newer.command == "stop" and self.command != "stop"):
            return  # the one takes nobody's place; of the other the job's end will tell
        self.outcome = "overtaken"
        self.reason = f"{newer.who} asked for {newer.command} (event {seq}) before anybody looked at it"

    def _read_anew(self, event: Event, data: IncidentOpened | IncidentRediagnosed) -> str:
        was, self._current = self._current, data.fault.root == self.seq
        self.waits = ""
        if self._current and not was:
            self.incident, self.policies = event.incident, []
        elif was and not self._current:
            return f"a fault came first ({data.fault.summary}); it is taken up again after that"
        return ""

    def _decided(self, data: object) -> str:
        if isinstance(data, PolicyConsidered):
            self.policies.append(Asked(name=data.policy, verdict=data.verdict, reason=data.reason))
            verb = "takes it" if data.verdict == "take" else "passed over"
            return f"{data.policy}: {verb}: {data.reason}"
        if isinstance(data, DepartureDeferred):
            self.waits = leaves_once_ready((self.node,) if self.node else data.nodes)
            return self.waits
        if isinstance(data, DepartureBegun | IncidentEscalated):
            self.waits = ""
        if isinstance(data, DepartureBegun) and data.ready:
            return f"ready: {listed(data.ready)}; the workers are stopped for the next round"
        if isinstance(data, IncidentResolved) and data.outcome == "ended" and self.command != "stop":
            return ""  # the end of the job says it
        if isinstance(data, IncidentEscalated):
            return sentence(data)
        if isinstance(data, IncidentResolved):
            if self.command != "stop":  # which is done when the job has ended
                self.outcome, self.reason = "done", DONE[self.command].format(node=self.node)
        elif isinstance(data, IncidentExhausted):
            self.outcome, self.reason = "dropped", self._why_dropped()
        return ""

    def _why_dropped(self) -> str:
        if not self.policies:
            return f"no policy of this job's chain deals with {self.command}"
        return "no policy of the chain could carry it out; the job goes on as before"

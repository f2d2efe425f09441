"""The story of a job, a line for each event that a person needs to see: what ``ftrun`` prints, and live views show.

House rule: the lines follow from the events alone; ``ftctl`` commands in them lack store and job (``launch/hints.py``).
"""

from collections.abc import Callable
from typing import Any, ClassVar

from ftcore.commands import CheckHealth, ReleaseNode, ReplaceNodes
from ftcore.engine.nan import NAN_TITLE
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import Event
from ftcore.events.health import HealthJudged
from ftcore.events.incident import (
    DepartureBegun,
    DepartureDeferred,
    IncidentContinued,
    IncidentEscalated,
    IncidentExhausted,
    IncidentOpened,
    IncidentRediagnosed,
    IncidentResolved,
)
from ftcore.events.job import DataSkipped, JobFinished, JobParked, JobRolledBack, LogContradicted, RateLowered
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeQuarantined
from ftcore.events.operator import OperatorCommanded, OperatorNoted
from ftcore.events.policy import AlertRaised, AlertSent, PolicyConsidered
from ftcore.events.retention import ArchiveExtended, ArchiveFailed, SpaceRanLow, SpaceRecovered
from ftcore.events.worker import StandstillJudged, WorkersStood, WorkersWentOn
from ftcore.events.world import WorldFormed
from ftcore.ids import seconds
from ftcore.policies.abilities import LACKS
from ftcore.replay.phases import detect_s
from ftcore.wording import (
    DONE,
    STAYS_PAUSED,
    WAITS_FOR_END,
    back_off_text,
    batch_text,
    format_elapsed,
    health_result,
    is_or_are,
    name_list,
    plural,
    reason_suffix,
    resume_text,
    sentence,
    stacks_suffix,
)

_FULFILLED = {"paused": "pause", "resumed": "resume", "saved": "checkpoint"}
"""The operator's command that an outcome of an incident fulfils."""


class Narration:
    """Turns events into lines, fed in order. It may begin in the middle of a log.

    Attributes:
        finished: how the run ended; None before.
        formed: a world was formed.
        released: nodes that were released while the job goes on, or are quarantined, and have not joined again.
        on_admitted: called with the name of each node that an operator admits again.
    """

    def __init__(self) -> None:
        self._opened: dict[str, tuple[int, str]] = {}
        self._elected = 0
        self._archive_fails = False
        self._request_seq = 0
        self._diagnosis = ""
        self._stood = (0, 0.0)
        self._paused = False
        self._roots: dict[str, int] = {}
        self._awaited = self._round = 0
        self.finished: JobFinished | None = None
        self.formed = False
        self.released: set[str] = set()
        self.on_admitted: Callable[[str], None] = lambda _node: None

    def line(self, event: Event) -> str:
        """The line for an event; empty if there is none."""
        to_line = self._lines.get(type(event.data))
        line = to_line(self, event, event.data) if to_line is not None else ""
        prefixed = event.incident in self._opened and event.type.startswith(("departure.", "incident.", "policy."))
        return f"{event.incident}: {line}" if line and prefixed else line

    # -- one method for each type of event

    def _formed(self, event: Event, data: WorldFormed) -> str:
        self.formed, self._round = True, data.round
        size = f"{plural(data.nodes, 'node')}, {plural(data.size, 'rank')}"
        return f"round {data.round}: {size}{resume_text(data.resume)}{batch_text(data)}"

    def _incident(self, event: Event, data: IncidentOpened) -> str:
        assert event.incident is not None
        stood_seq, stood_s = self._stood
        opened = event.time - seconds(stood_s) if event.cause == stood_seq else event.time
        self._opened[event.incident] = (opened, data.kind)
        self._roots[event.incident] = data.fault.root
        self._diagnosis = data.fault.summary
        if data.fault.root == self._request_seq:
            return ""  # the request itself was printed
        prefix = {"warning": "warning: ", "opportunity": "opportunity: "}.get(data.kind, "")
        return f"{prefix}{data.fault.summary}"

    def _rediagnosed(self, event: Event, data: IncidentRediagnosed) -> str:
        opened, _ = self._opened.get(event.incident or "", (event.time, ""))
        self._opened[event.incident or ""] = (opened, data.kind)
        before, self._diagnosis = self._diagnosis, data.fault.summary
        if data.fault.root == self._request_seq or before == data.fault.summary:
            return ""
        return f"new diagnosis: {data.fault.summary}"

    def _nan(self, event: Event, data: AlertRaised) -> str:
        """Only alerts about NaN: other alerts repeat an incident or the end of the run."""
        return data.text if data.title.endswith(NAN_TITLE) else ""

    def _considered(self, event: Event, data: PolicyConsidered) -> str:
        _, kind = self._opened.get(event.incident or "", (0, ""))
        if data.verdict == "pass" and kind == "fault" and data.reason.startswith(LACKS):
            return ""  # the same at every fault; `ftctl explain` shows it
        if data.verdict == "pass":
            return f"{data.policy} passes: {data.reason}"
        taken = f"{data.policy}: {data.reason}{back_off_text(data.wait_s, ', ')}"
        return taken if data.plan in ("restart", "in_place") else ""

    def _deferred(self, event: Event, data: DepartureDeferred) -> str:
        return f"{sentence(data)}, for up to {format_elapsed(data.patience_s)}"

    def _continued(self, event: Event, data: IncidentContinued) -> str:
        return sentence(data) if data.outcome == "saved" else ""

    def _resolved(self, event: Event, data: IncidentResolved) -> str:
        if data.outcome == "ended":
            return ""
        opened, kind = self._opened.get(event.incident or "", (event.time, ""))
        took = (event.time - opened) / 1e9
        self._paused = data.outcome == "paused" or (self._paused and data.outcome != "resumed")
        fulfilled = DONE.get(_FULFILLED.get(data.outcome, ""))
        if data.outcome == "paused" and kind == "warning":
            self._awaited = self._roots.get(event.incident or "", 0)
            return WAITS_FOR_END
        lost = f", {plural(data.steps_lost, 'step')} lost" if data.steps_lost else ""
        return fulfilled or f"resolved by {data.policy} in {took:.2f} s{lost}"

    def _exhausted(self, event: Event, data: IncidentExhausted) -> str:
        _, kind = self._opened.get(event.incident or "", (0, ""))
        if kind in ("fault", ""):
            return ""
        if self._awaited and self._roots.get(event.incident or "") == self._awaited:
            return "no policy takes it"  # the disruption lasted too long; the job is resumed next
        if self._paused:
            return f"no policy takes it; the {kind} is dropped, {STAYS_PAUSED}"
        return "no policy takes it; training goes on unchanged"

    def _commanded(self, event: Event, data: OperatorCommanded) -> str:
        self._request_seq = event.seq
        if data.command == "admit":
            self.released.discard(data.node)
            self.on_admitted(data.node)
        node = f" of {data.node}" if data.node else ""
        return f"{data.who} requests {data.command}{node}{reason_suffix(data.why)}"

    def _ordered(self, event: Event, data: ActionOrdered) -> str:
        if isinstance(data.command, ReplaceNodes):
            return sentence(data)
        if isinstance(data.command, CheckHealth) and data.command.stage == 1:
            nodes = data.nodes or tuple(node for group in data.command.groups for node in group)
            what = f"checked before round {data.command.round}: devices, links, configuration"
            limit = f"up to {format_elapsed(data.command.within_s)} for each stage"
            return f"{name_list(nodes)} {is_or_are(nodes)} {what}; {limit}"
        if not isinstance(data.command, ReleaseNode) or data.command.outcome != "released":
            return ""
        self.released.update(data.nodes)
        return sentence(data)

    def _joined(self, event: Event, data: NodeJoined) -> str:
        self.released.discard(data.node)
        return ""

    def _quarantined(self, event: Event, data: NodeQuarantined) -> str:
        self.released.add(data.node)
        return sentence(data)

    def _stand(self, event: Event, data: WorkersStood) -> str:
        self._stood = (event.seq, detect_s(None, event) or 0.0)
        return ""

    def _standstill(self, event: Event, data: StandstillJudged) -> str:
        if data.verdict == "hang":
            return f"stacks of the workers: {data.stacks}" if data.stacks else ""  # the incident has the rest
        if data.cause == "finished":
            return f"{data.message}; workers keep running until the ceiling for hangs"
        return f"no step is completed, workers keep running: {data.message}{stacks_suffix(data)}"

    def _health(self, event: Event, data: HealthJudged) -> str:
        if not (data.ill or data.links or data.apart or data.differing or data.note):
            return f"{plural(data.nodes, 'node')} checked: all healthy"
        return f"health: {health_result(data)}"

    def _alerted(self, event: Event, data: AlertSent) -> str:
        return "" if data.ok else sentence(data)

    def _sentence(self, event: Event, data: object) -> str:
        return sentence(data)

    def _not_archived(self, event: Event, data: ArchiveFailed) -> str:
        self._archive_fails = True
        return f"archiving failed, so no events are removed from the log: {data.error}"

    def _archived(self, event: Event, data: ArchiveExtended) -> str:
        failed, self._archive_fails = self._archive_fails, False
        return f"archiving to {data.archive} works again" if failed else ""

    def _low_on_space(self, event: Event, data: SpaceRanLow) -> str:
        return f"{sentence(data)}; training goes on; free space in the store"

    def _finished(self, event: Event, data: JobFinished) -> str:
        self.finished = data
        return ""

    def _parked(self, event: Event, data: JobParked) -> str:
        return f"stuck: {data.error}; workers keep running; see `ftctl status`, then `ftctl resume` or `ftctl stop`"

    def _contradicted(self, event: Event, data: LogContradicted) -> str:
        return f"stuck: {data.reason}"

    def _leads(self, event: Event, data: MasterElected) -> str:
        self._elected += 1
        return f"a new master leads (term {event.term})" if self._elected > 1 else ""

    _lines: ClassVar[dict[type[Any], Callable[["Narration", Event, Any], str]]] = {
        WorldFormed: _formed,
        IncidentOpened: _incident,
        IncidentRediagnosed: _rediagnosed,
        AlertRaised: _nan,
        PolicyConsidered: _considered,
        DepartureDeferred: _deferred,
        DepartureBegun: _sentence,
        IncidentEscalated: _sentence,
        IncidentContinued: _continued,
        IncidentResolved: _resolved,
        IncidentExhausted: _exhausted,
        OperatorCommanded: _commanded,
        OperatorNoted: _sentence,
        ActionOrdered: _ordered,
        NodeJoined: _joined,
        NodeQuarantined: _quarantined,
        HealthJudged: _health,
        WorkersStood: _stand,
        StandstillJudged: _standstill,
        WorkersWentOn: _sentence,
        JobRolledBack: _sentence,
        DataSkipped: _sentence,
        RateLowered: _sentence,
        AlertSent: _alerted,
        ArchiveFailed: _not_archived,
        ArchiveExtended: _archived,
        SpaceRanLow: _low_on_space,
        SpaceRecovered: _sentence,
        JobFinished: _finished,
        JobParked: _parked,
        LogContradicted: _contradicted,
        MasterElected: _leads,
    }

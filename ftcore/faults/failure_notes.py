"""The first failures of recent incidents, kept by a master for its alerts.

House rules: the notes are made from durable events and the state after them, so every master makes the same ones. They
are bounded, decide nothing and are not stored: a master that missed the failure has no note of it, and its alert says
what the incident says.
"""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from ftcore.events.envelope import Event
from ftcore.events.incident import Fault, IncidentOpened, IncidentRediagnosed
from ftcore.events.worker import FaultObserved, WorkerFailed
from ftcore.faults.failure import Failure, failure_of, failures_json, first_text, in_order
from ftcore.redaction import OVERLAP_CHARS, redacted
from ftcore.states.evidence import REPORTS_MAX, TAIL_BYTES_MAX, Report
from ftcore.states.model import JobState

FACTS_MAX: Final = 2 * REPORTS_MAX
"""Facts that are kept until an incident refers to them."""

NOTES_MAX: Final = 16
"""Incidents whose failures are kept, the newest ones."""

TEXT_CHARS_MAX: Final = 4000
"""Characters of a message or a traceback in a note; of a longer one, the end is kept."""


@attrs.frozen(kw_only=True)
class FirstFailure:
    """What failed first in an incident, without secrets.

    Args:
        line: one line for people; empty: no process or node is known to have failed.
        fields: the object that ``ftctl failures --format json`` prints.
    """

    line: str
    fields: dict[str, Any]


@attrs.define(kw_only=True)
class _FailureNote:
    opened: int
    kind: str
    fault: Fault
    failed: dict[tuple[int, str], tuple[Event, Failure]] = attrs.field(factory=dict)


class FailureNotes:
    """Keeps the failures of the newest incidents."""

    def __init__(self) -> None:
        self._facts: dict[int, Event] = {}
        self._notes: dict[str, _FailureNote] = {}

    def feed(self, events: Sequence[Event], state: JobState) -> None:
        """Take in durable events.

        Args:
            events: in order.
            state: the state after the last of them.
        """
        reports: dict[int, list[Report]] = {}
        for report in state.evidence.reports:
            reports.setdefault(report.seq, []).append(report)
        for event in events:
            data = event.data
            if event.seq in reports or isinstance(data, WorkerFailed | FaultObserved):
                self._facts[event.seq] = event
                if len(self._facts) > FACTS_MAX:
                    del self._facts[next(iter(self._facts))]
            elif isinstance(data, IncidentOpened | IncidentRediagnosed) and event.incident is not None:
                self._diagnosed(event, data, reports, state)

    def _diagnosed(
        self,
        event: Event,
        data: IncidentOpened | IncidentRediagnosed,
        reports: dict[int, list[Report]],
        state: JobState,
    ) -> None:
        assert event.incident is not None
        note = self._notes.setdefault(event.incident, _FailureNote(opened=event.time, kind=data.kind, fault=data.fault))
        note.kind, note.fault = data.kind, data.fault
        for seq in (data.fault.root, *data.fault.collateral):
            fact = self._facts.get(seq)
            if fact is None:
                continue
            for report in reports.get(seq) or _reports_of(fact):  # an incident that is over has no reports
                restart = max(0, report.round - state.rounds.first)
                note.failed[seq, report.node] = fact, failure_of(fact, report, restart)
        while len(self._notes) > NOTES_MAX:
            del self._notes[next(iter(self._notes))]

    def of(self, incident: str | None, job: str) -> FirstFailure | None:
        """What failed first in an incident; None if nothing did, or no note of it is left.

        Args:
            incident: its id; None: the alert is about no incident.
            job: the job's name.
        """
        note = self._notes.get(incident or "")
        if incident is None or note is None or not (note.failed or note.kind == "fault"):
            return None
        fault = note.fault
        failures = in_order(note.failed.values(), fault.root)
        what = first_text(failures, fault.nodes, fault.summary)
        fields = failures_json(job, incident, (fault.cls, fault.detail), failures, note.opened, what)
        return FirstFailure(line=redacted(what) if failures else "", fields=_without_secrets(fields))


def _reports_of(fact: Event) -> list[Report]:
    """The evidence in the failure of a worker, or in an observed fault, as the fold keeps it."""
    data = fact.data
    own: dict[str, Any]
    if isinstance(data, FaultObserved):
        own = {"message": data.message, "source": data.source, "kind": data.kind, "values": data.values}
        own |= {"exitcode": None, "tail": ""}
    elif isinstance(data, WorkerFailed):
        own = {"message": data.error.message if data.error is not None else "", "exitcode": data.exitcode}
        own |= {"tail": data.tail[-TAIL_BYTES_MAX:]}
    else:
        return []
    report = Report(
        seq=fact.seq,
        type=fact.type,
        node=data.node,
        rank=data.rank,
        round=data.round,
        time=fact.time,
        mono=fact.at.mono if fact.at is not None else 0,
        boot=fact.at.boot if fact.at is not None else "",
        step=data.step,
        absolute=data.absolute,
        **own,
    )
    return [report]


def _without_secrets(value: Any) -> Any:
    """A JSON value with short texts, and with every known kind of secret replaced."""
    if isinstance(value, str):
        found = redacted(value[-TEXT_CHARS_MAX - OVERLAP_CHARS :])  # before it is cut: a part of a secret is not found
        return found if len(value) <= TEXT_CHARS_MAX else f"…{found[-TEXT_CHARS_MAX:]}"
    if isinstance(value, dict):
        return {key: _without_secrets(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(each) for each in value]
    return value

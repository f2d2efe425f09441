"""The trace of an incident: a span for the incident, below it one for each phase of the recovery.

House rule: pure. Times are those of the log: a phase ends, and the next one begins, when the master received a fact.
Identifiers follow from the log and the incident, so a trace that is sent again, by the next master or from the log of a
finished job, is the same trace and no second one.
"""

import hashlib
from typing import Final

import attrs

from ftcore.replay import Incident

Value = str | int | float | bool | tuple[str, ...] | tuple[int, ...]

ORDER: Final = ("detect", "decide", "wait", "stop", "rendezvous", "start", "first_step")
"""The phases in the order of time; each begins where the one before ends."""

NS: Final = 1_000_000_000


@attrs.frozen(kw_only=True)
class Moment:
    """An action or a result within an incident.

    Args:
        name: type of the event.
        time: nanoseconds since the epoch.
        text: what happened, one line.
        seq: the event.
    """

    name: str
    time: int
    text: str
    seq: int


@attrs.frozen(kw_only=True)
class SpanData:
    """A span.

    Args:
        name: its name.
        trace_id: 128 bits.
        span_id: 64 bits.
        start: nanoseconds since the epoch.
        end: likewise.
        attributes: by name.
        moments: what happened meanwhile.
        error: why it failed; empty: it did not.
    """

    name: str
    trace_id: int
    span_id: int
    start: int
    end: int
    attributes: dict[str, Value]
    moments: tuple[Moment, ...] = ()
    error: str = ""


def trace_of(incident: Incident, job: str, log: str) -> list[SpanData]:
    """The spans of an incident that has ended, the one of the whole incident first.

    Args:
        incident: the incident.
        job: the job's name.
        log: identity of the log.
    """
    assert incident.closed is not None, "an open incident has no end"
    detect = incident.phases.detect or 0.0
    begun = incident.opened - round(detect * NS)
    trace_id = _id(16, job, log, incident.id)
    attributes: dict[str, Value] = {
        "ftcore.job": job,
        "ftcore.run": incident.run,
        "ftcore.incident": incident.id,
        "ftcore.incident.kind": incident.kind,
        "ftcore.fault.class": incident.cls,
        "ftcore.fault.detail": incident.detail,
        "ftcore.fault.summary": incident.summary,
        "ftcore.nodes": incident.nodes,
        "ftcore.ranks": incident.ranks,
        "ftcore.policy": incident.resolved_by or "",
        "ftcore.outcome": incident.outcome or "",
        "ftcore.policies_taken": tuple(asked.name for asked in incident.policies if asked.verdict == "take"),
    }
    if incident.steps_lost is not None:
        attributes["ftcore.steps_lost"] = incident.steps_lost
    failed = incident.kind == "fault" and incident.outcome in ("exhausted", "ended")
    whole = SpanData(
        name=f"{incident.kind} {incident.cls}",
        trace_id=trace_id,
        span_id=_id(8, job, log, incident.id, "incident"),
        start=begun,
        end=incident.closed,
        attributes=attributes,
        moments=tuple(
            Moment(name=step.type, time=incident.opened + round(step.after_s * NS), text=step.what, seq=step.seq)
            for step in incident.timeline
        ),
        error=f"the job did not survive it: {incident.summary}" if failed else "",
    )
    return [whole, *_phases(incident, job, log, whole)]


def _phases(incident: Incident, job: str, log: str, whole: SpanData) -> list[SpanData]:
    found, at = [], whole.start
    for phase in ORDER:
        seconds: float | None = getattr(incident.phases, phase)
        if seconds is None:
            continue
        end = min(at + round(seconds * NS), whole.end)
        found.append(
            SpanData(
                name=phase,
                trace_id=whole.trace_id,
                span_id=_id(8, job, log, incident.id, phase),
                start=at,
                end=end,
                attributes={"ftcore.job": job, "ftcore.incident": incident.id, "ftcore.phase": phase},
            )
        )
        at = end
    return found


def _id(size: int, *parts: str) -> int:
    """An identifier that follows from the parts; 0 is not a valid one."""
    return int.from_bytes(hashlib.blake2b("\0".join(parts).encode(), digest_size=size).digest(), "big") or 1

"""Which process of which node failed first, and with what: one line of an incident, and one JSON object.

House rules: ``Incident.failures`` is ordered, the root cause first; nothing here decides on that order again. The line
is plain text of the job's own words: whoever prints it makes it safe for its medium (``wording.printable``).
"""

from collections.abc import Sequence
from typing import Any

import attrs

from ftcore.faults.classify import signal_name
from ftcore.replay.explain import Failure, Incident
from ftcore.wording import listed, plural, printable, timestamp_fields, utc

MESSAGE_CHARS_MAX = 300
"""Most characters of a failure's message in the line; ``ftctl explain`` prints it with its traceback."""

NODES_SHOWN = 4


def process_text(failure: Failure) -> str:
    """The process that failed, as ``rank 3 (local 1) on node1``, or the node."""
    if failure.rank is None:
        return failure.node
    local = f" (local {failure.local_rank})" if failure.local_rank is not None else ""
    return f"rank {failure.rank}{local} on {failure.node}"


def ending_text(failure: Failure) -> str:
    """How a process ended, as ``exit code 1: ValueError: bad batch`` or ``killed by SIGKILL``; on one line."""
    code = failure.exitcode
    parts = []
    if code is not None:
        parts.append(f"killed by {signal_name(-code)}" if code < 0 else f"exit code {code}")
    message = short(failure.message or "")
    if message and not (code is not None and code < 0 and message.startswith("Signal ")):
        parts.append(message)
    return ": ".join(parts) or "reason not known"


def short(text: str, most: int = MESSAGE_CHARS_MAX) -> str:
    """The beginning of a text on one line, without control characters."""
    cut = printable(text[: 2 * most].strip())
    return cut if len(cut) <= most and len(text) <= 2 * most else f"{cut[: most - 1]}…"


def first_failure(incident: Incident) -> str:
    """The first failure of an incident in one line; of an incident without one, its summary."""
    if not incident.failures:
        where = listed(incident.nodes, NODES_SHOWN)
        summary = short(incident.summary)
        return f"{where}: {summary}" if where and where not in summary else summary
    first = incident.failures[0]
    text = f"{process_text(first)} failed first: {ending_text(first)}"
    if incident.ended_early:
        early = incident.ended_early[0]
        text += f"; before it, rank {early.rank} on {early.node} had ended with exit code 0"
    others = incident.failures[1:]
    if not others:
        return text
    nodes = list(dict.fromkeys(failure.node for failure in others))
    return f"{text}; {plural(len(others), 'more failure')} followed, on {listed(nodes, NODES_SHOWN)}"


def failure_line(incident: Incident) -> str:
    """``first_failure`` with the incident and the time before it."""
    at = incident.failures[0].time if incident.failures else incident.opened
    return f"{incident.id} {utc(at)[:23]}Z {first_failure(incident)}"


def failure_json(incident: Incident, job: str) -> dict[str, Any]:
    """One object for other programs: the incident, the first failure, and the number of the others by node.

    Args:
        incident: the incident.
        job: the job's name.
    """
    first = incident.failures[0] if incident.failures else None
    followed: dict[str, int] = {}
    for failure in incident.failures[1:]:
        followed[failure.node] = followed.get(failure.node, 0) + 1
    return {
        "job": job,
        "incident": incident.id,
        "class": incident.cls,
        "detail": incident.detail,
        "what": first_failure(incident),
        "first": None if first is None else _fields(first),
        "followed": followed,
        **timestamp_fields("opened", incident.opened),
    }


def _fields(failure: Failure) -> dict[str, Any]:
    fields = attrs.asdict(failure)
    times = timestamp_fields("time", failure.time) | timestamp_fields("raised", failure.raised)
    return {name: value for name, value in fields.items() if name not in ("time", "raised")} | times


def faults_of(incidents: Sequence[Incident]) -> list[Incident]:
    """The incidents in which something failed: those with a failure, and faults without one, such as a hang."""
    return [incident for incident in incidents if incident.failures or incident.kind == "fault"]

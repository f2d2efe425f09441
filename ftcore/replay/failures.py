"""The first failure of an incident: one line of ``ftctl failures``, and one JSON object."""

from collections.abc import Sequence
from typing import Any

from ftcore.faults.failure import failures_json, first_text, short
from ftcore.replay.explain import Incident
from ftcore.wording import utc

__all__ = ["failure_json", "failure_line", "faults_of", "first_failure", "short"]


def first_failure(incident: Incident) -> str:
    """The first failure of an incident in one line; of an incident without one, its summary."""
    early = ""
    if incident.ended_early:
        ended = incident.ended_early[0]
        early = f"rank {ended.rank} on {ended.node} had ended with exit code 0"
    return first_text(incident.failures, incident.nodes, incident.summary, early, _further(incident))


def failure_line(incident: Incident) -> str:
    """``first_failure`` with the incident and the time before it."""
    at = incident.failures[0].time if incident.failures else incident.opened
    return f"{incident.id} {utc(at)[:23]}Z {first_failure(incident)}"


def failure_json(incident: Incident, job: str) -> dict[str, Any]:
    """See ``failures_json``.

    Args:
        incident: the incident.
        job: the job's name.
    """
    named = (incident.cls, incident.detail)
    what = first_failure(incident)
    return failures_json(job, incident.id, named, incident.failures, incident.opened, what, _further(incident))


def _further(incident: Incident) -> list[str]:
    return [origin.node for origin in incident.further if origin.node is not None]


def faults_of(incidents: Sequence[Incident]) -> list[Incident]:
    """The incidents in which something failed: those with a failure, and faults without one, such as a hang."""
    return [incident for incident in incidents if incident.failures or incident.kind == "fault"]

"""The chain: policies asked in priority order, every verdict for the record."""

from collections.abc import Iterator, Sequence

import attrs

from ftcore.events.policy import ChainEntry
from ftcore.policies.base import Pass, Policy, Verdict
from ftcore.policies.process_restart import ProcessRestart
from ftcore.policies.stop import Stop
from ftcore.states.model import IncidentState, JobState

BUILT_IN: dict[str, Policy] = {policy.name: policy for policy in (ProcessRestart(), Stop())}
"""The policies that come with ftcore, by name."""

DEFAULT_ORDER = ("process_restart", "stop")
"""The chain of a job without a policy file."""


@attrs.frozen(kw_only=True)
class Answer:
    """What one entry of the chain said."""

    policy: str
    verdict: Verdict


def consult(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> Iterator[Answer]:
    """Ask the chain in order, until one takes the incident.

    A policy is asked once per revision of the incident: what was asked before (and escalated past) is not asked again.

    Args:
        chain: the entries in force.
        incident: the open incident.
        job: the folded state.

    Yields:
        Each answer as it is given; the last one is the ``Take``, if any policy took it.
    """
    for entry in chain:
        if entry.policy in incident.asked:
            continue
        verdict = BUILT_IN[entry.policy].considers(incident, job, entry.options)
        yield Answer(policy=entry.policy, verdict=verdict)
        if not isinstance(verdict, Pass):
            return

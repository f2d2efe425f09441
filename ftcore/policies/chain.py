"""The chain: policies asked in priority order, every verdict for the record.

House rules: an entry is asked once per revision of an incident; one that does not deal with this kind of incident at
all is left out without a word, so that the record stays short; one that this job cannot carry out passes with what is
missing and how to get it; the first that takes the incident ends the asking.
"""

from collections.abc import Iterator, Sequence

import attrs

from ftcore.events.policy import ChainEntry
from ftcore.policies.abilities import lacking
from ftcore.policies.alert import Alert
from ftcore.policies.base import Pass, Policy, Verdict
from ftcore.policies.dying_checkpoint import DyingCheckpoint
from ftcore.policies.evict_straggler import EvictStraggler
from ftcore.policies.grow import Grow
from ftcore.policies.hot_swap import HotSwap
from ftcore.policies.pod_replacement import PodReplacement
from ftcore.policies.process_restart import ProcessRestart
from ftcore.policies.recompute_step import RecomputeStep
from ftcore.policies.rollback_and_skip import RollbackAndSkip
from ftcore.policies.shrink import Shrink
from ftcore.policies.step_pause import StepPause
from ftcore.policies.step_retry import StepRetry
from ftcore.policies.stop import Stop
from ftcore.states.model import IncidentState, JobState

BUILT_IN: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        StepRetry(),
        RecomputeStep(),
        HotSwap(),
        DyingCheckpoint(),
        RollbackAndSkip(),
        ProcessRestart(),
        PodReplacement(),
        Shrink(),
        Grow(),
        EvictStraggler(),
        StepPause(),
        Alert(),
        Stop(),
    )
}
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
        policy = BUILT_IN.get(entry.policy)
        if policy is not None and incident.kind not in policy.kinds:
            continue
        verdict = _ask(policy, entry, incident, job)
        yield Answer(policy=entry.policy, verdict=verdict)
        if not isinstance(verdict, Pass):
            return


def _ask(policy: Policy | None, entry: ChainEntry, incident: IncidentState, job: JobState) -> Verdict:
    if policy is None:
        return Pass(reason="this version of ftcore has no such policy")
    if incident.kind == "fault" and entry.faults and incident.fault.cls not in entry.faults:
        return Pass(reason=f"is asked about {', '.join(entry.faults)} alone")
    lack = lacking(policy.needs, job)
    return Pass(reason=lack) if lack else policy.considers(incident, job, with_defaults(policy, entry))


def with_defaults(policy: Policy, entry: ChainEntry) -> dict[str, object]:
    """The entry's options; those that its log did not know yet have their defaults."""
    return {**{key: option.default for key, option in policy.options.items()}, **entry.options}

"""The chain: policies asked in priority order, every verdict for the record.

House rules: an entry is asked once per revision of an incident; one that does not deal with this kind of incident at
all is left out without a word, so that the record stays short; one that this job cannot carry out passes with what is
missing and how to get it, once: later incidents leave it out until something changes, unless an operator asks for it;
the first that takes the incident ends the asking.
"""

from collections.abc import Iterator, Sequence

import attrs

from ftcore.events.policy import ChainEntry, PolicyAnswered, Terms
from ftcore.policies.abilities import lacking
from ftcore.policies.alert import Alert
from ftcore.policies.base import Ability, Ask, Pass, PlanKind, Policy, Take, Verdict
from ftcore.policies.dying_checkpoint import DyingCheckpoint
from ftcore.policies.evict_straggler import EvictStraggler
from ftcore.policies.grow import Grow
from ftcore.policies.hot_swap import HotSwap
from ftcore.policies.options import defaults, described, filled
from ftcore.policies.pod_replacement import PodReplacement
from ftcore.policies.process_restart import ProcessRestart
from ftcore.policies.recompute_step import RecomputeStep
from ftcore.policies.rollback_and_skip import RollbackAndSkip
from ftcore.policies.shrink import Shrink
from ftcore.policies.situation import interrupted
from ftcore.policies.step_pause import StepPause
from ftcore.policies.step_retry import StepRetry
from ftcore.policies.stop import Stop
from ftcore.states.model import IncidentState, JobState
from ftcore.states.revisions import LACK_ONCE, follows

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

DEFAULT_ORDER = (
    "step_retry",
    "hot_swap",
    "dying_checkpoint",
    "pod_replacement",
    "process_restart",
    "shrink",
    "grow",
    "evict_straggler",
    "step_pause",
    "stop",
)
"""The chain of a job without a policy file: what costs least first, and what needs abilities passes without them.

``pod_replacement`` stands above ``process_restart`` because it takes none but faults of nodes, and because a platform
without capacity must not be the end: what it declines is restarted on the nodes there are, or that come back.

``recompute_step``, ``rollback_and_skip`` and ``alert`` stand in it only where somebody asks for them: what is abnormal
in a loss, and who wants to hear of it, is not for a default to say.
"""


def fresh(policy: str) -> ChainEntry:
    """An entry of one of ftcore's policies with its defaults."""
    return ChainEntry(policy=policy, options=defaults(described(BUILT_IN[policy].options)))


ANSWER_S = 10.0
"""How long a policy that is not ftcore's own may think; then the chain goes on without it."""


@attrs.frozen(kw_only=True)
class Answer:
    """What one entry of the chain said."""

    policy: str
    verdict: Verdict | Ask


def consult(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> Iterator[Answer]:
    """Ask the chain in order, until one takes the incident.

    A policy is asked once per revision of the incident: what was asked before (and escalated past) is not asked again.

    Args:
        chain: the entries in force.
        incident: the open incident.
        job: the folded state.

    Yields:
        Each answer as it is given; the last one is the ``Take``, if any policy took it, or the ``Ask`` of a policy
        that is not ftcore's own and has not answered yet.
    """
    for entry in chain:
        if entry.policy in incident.asked or _another_is_meant(chain, entry, incident):
            continue
        policy = BUILT_IN.get(entry.policy)
        kinds = policy.kinds if policy is not None else entry.kinds
        if kinds and not deals_with(kinds, incident, job):
            continue
        if _is_known_to_lack(entry, incident, job):
            continue
        verdict = _ask(policy, entry, incident, job)
        yield Answer(policy=entry.policy, verdict=verdict)
        if not isinstance(verdict, Pass):
            return


def left_out(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> list[tuple[str, Pass]]:
    """The entries that ``consult`` leaves out because the log holds already what the job is missing, in order."""
    found = []
    for entry in chain:
        if entry.policy in incident.asked or _another_is_meant(chain, entry, incident):
            continue
        policy = BUILT_IN.get(entry.policy)
        kinds = policy.kinds if policy is not None else entry.kinds
        if (not kinds or deals_with(kinds, incident, job)) and _is_known_to_lack(entry, incident, job):
            found.append((entry.policy, _lack(entry, job)))
    return [(policy, lack) for policy, lack in found if lack is not None]


def _is_known_to_lack(entry: ChainEntry, incident: IncidentState, job: JobState) -> bool:
    if incident.kind == "request" or entry.policy not in job.lacking or not follows(job, LACK_ONCE):
        return False
    lack = _lack(entry, job)
    return _is_for(entry, incident) and lack is not None and lack.lacks == job.lacking[entry.policy]


def _lack(entry: ChainEntry, job: JobState) -> Pass | None:
    """The answer of an entry that the job is not able to carry out; None if it is able to."""
    policy = BUILT_IN.get(entry.policy)
    needs = policy.needs if policy is not None else tuple(map(Ability, entry.needs))
    reason = lacking(needs, job)
    if not reason:
        return None
    lacks = tuple(str(ability) for ability in needs if not job.can(ability))
    return Pass(reason=reason, lacks=lacks if follows(job, LACK_ONCE) else ())


def deals_with(kinds: Sequence[str], incident: IncidentState, job: JobState) -> bool:
    """Whether a policy that deals with ``kinds`` is asked about an incident at all."""
    return (
        incident.kind in kinds
        or (incident.kind == "request" and incident.fault.detail in kinds)
        or ("interrupted" in kinds and interrupted(incident, job))
    )


def _is_for(entry: ChainEntry, incident: IncidentState) -> bool:
    return not entry.faults or incident.fault.cls in entry.faults


def _another_is_meant(chain: Sequence[ChainEntry], entry: ChainEntry, incident: IncidentState) -> bool:
    """Whether the policy stands in the chain for this class a second time, with options of its own."""
    return not _is_for(entry, incident) and any(
        other.policy == entry.policy and _is_for(other, incident) for other in chain
    )


def _ask(policy: Policy | None, entry: ChainEntry, incident: IncidentState, job: JobState) -> Verdict | Ask:
    if policy is None and not entry.external:
        return Pass(reason="this version of ftcore has no such policy")
    if not _is_for(entry, incident):
        return Pass(reason=f"is asked about {', '.join(entry.faults)} alone")
    lack = _lack(entry, job)
    if lack is not None:
        return lack
    if policy is not None:
        return policy.considers(incident, job, filled(policy.options, entry.options))
    answer = incident.answers.get(entry.policy)
    return _verdict_of(answer) if answer is not None else Ask(within_s=ANSWER_S)


def _verdict_of(answer: PolicyAnswered) -> Verdict:
    if answer.verdict != "take":
        return Pass(reason=answer.reason, again_s=answer.again_s)
    return Take(
        plan=PlanKind(answer.plan),
        reason=answer.reason,
        grace_s=answer.grace_s,
        wait_s=answer.wait_s,
        deadline_s=answer.deadline_s,
        outcome=answer.outcome,
        exit_code=answer.exit_code,
        terms=answer.terms if answer.terms is not None else Terms(),
    )

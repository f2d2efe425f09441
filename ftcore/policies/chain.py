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
    for entry in _dealing(chain, incident, job):
        if _is_known_to_lack(entry, incident, job):
            continue
        verdict = _ask(entry, incident, job)
        yield Answer(policy=entry.policy, verdict=verdict)
        if not isinstance(verdict, Pass):
            return


def left_out(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> list[tuple[str, Pass]]:
    """The entries that ``consult`` leaves out because the log holds already what the job is missing, in order."""
    known = (entry for entry in _dealing(chain, incident, job) if _is_known_to_lack(entry, incident, job))
    return [(entry.policy, lack) for entry in known if (lack := _lack(entry, job)) is not None]


def _dealing(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> Iterator[ChainEntry]:
    """The entries that deal with the incident and were not asked yet; of several of one policy that for its class."""
    cls = incident.fault.cls
    meant = {entry.policy for entry in chain if entry.is_for(cls)}
    for entry in chain:
        if entry.policy in incident.asked or (entry.policy in meant and not entry.is_for(cls)):
            continue
        kinds = kinds_of(entry)
        if not kinds or deals_with(kinds, incident, job):
            yield entry


def _is_known_to_lack(entry: ChainEntry, incident: IncidentState, job: JobState) -> bool:
    if incident.kind == "request" or entry.policy not in job.lacking or not follows(job, LACK_ONCE):
        return False
    lack = _lack(entry, job)
    return entry.is_for(incident.fault.cls) and lack is not None and lack.lacks == job.lacking[entry.policy]


def _lack(entry: ChainEntry, job: JobState) -> Pass | None:
    """The answer of an entry that the job is not able to carry out; None if it is able to."""
    needs = needs_of(entry)
    reason = lacking(needs, job)
    if not reason:
        return None
    lacks = tuple(str(ability) for ability in needs if not job.can(ability))
    return Pass(reason=reason, lacks=lacks if follows(job, LACK_ONCE) else ())


def kinds_of(entry: ChainEntry) -> Sequence[str]:
    """What an entry's policy deals with, be it ftcore's or not."""
    policy = BUILT_IN.get(entry.policy)
    return policy.kinds if policy is not None else entry.kinds


def needs_of(entry: ChainEntry) -> tuple[Ability, ...]:
    """What an entry's policy always needs, be it ftcore's or not."""
    policy = BUILT_IN.get(entry.policy)
    return policy.needs if policy is not None else tuple(map(Ability, entry.needs))


def deals_with(kinds: Sequence[str], incident: IncidentState, job: JobState) -> bool:
    """Whether a policy that deals with ``kinds`` is asked about an incident at all."""
    return (
        incident.kind in kinds
        or (incident.kind == "request" and incident.fault.detail in kinds)
        or ("interrupted" in kinds and interrupted(incident, job))
    )


def _ask(entry: ChainEntry, incident: IncidentState, job: JobState) -> Verdict | Ask:
    policy = BUILT_IN.get(entry.policy)
    if policy is None and not entry.external:
        return Pass(reason="this version of ftcore has no such policy")
    if not entry.is_for(incident.fault.cls):
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

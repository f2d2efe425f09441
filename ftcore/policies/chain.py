"""The chain: asks policies in priority order until one takes the incident; every verdict is recorded.

- An entry is asked once per revision of an incident.
- An entry whose policy does not handle this kind of incident is skipped without a record, to keep the log short.
- An entry that the job cannot carry out passes once, with the missing ability and who declares it. Later incidents
  skip it until the abilities change, except when an operator made the request.
"""

from collections.abc import Iterator, Sequence

import attrs

from ftcore.events.policy import ChainEntry, PolicyAnswered, Terms
from ftcore.events.worker import DISRUPTIVE
from ftcore.policies.abilities import lacking, not_covered
from ftcore.policies.base import Ability, Ask, Pass, PlanKind, Policy, Take, Verdict
from ftcore.policies.builtin.alert import Alert
from ftcore.policies.builtin.dying_checkpoint import DyingCheckpoint
from ftcore.policies.builtin.evict_straggler import EvictStraggler
from ftcore.policies.builtin.grow import Grow
from ftcore.policies.builtin.hot_swap import HotSwap
from ftcore.policies.builtin.lower_learning_rate import LowerLearningRate
from ftcore.policies.builtin.pod_replacement import PodReplacement
from ftcore.policies.builtin.process_restart import ProcessRestart
from ftcore.policies.builtin.recompute_step import RecomputeStep
from ftcore.policies.builtin.rollback_and_skip import RollbackAndSkip
from ftcore.policies.builtin.shrink import Shrink
from ftcore.policies.builtin.skip_batch import SkipBatch
from ftcore.policies.builtin.step_pause import StepPause
from ftcore.policies.builtin.step_retry import StepRetry
from ftcore.policies.builtin.stop import Stop
from ftcore.policies.options import defaults, described, filled
from ftcore.policies.situation import interrupted
from ftcore.policies.traits import traits_of
from ftcore.states.model import IncidentState, JobState
from ftcore.states.revisions import IN_PROCESS, LACK_ONCE, follows

BUILT_IN: dict[str, Policy] = {
    policy.name: policy
    for policy in (
        StepRetry(),
        RecomputeStep(),
        SkipBatch(),
        HotSwap(),
        DyingCheckpoint(),
        RollbackAndSkip(),
        LowerLearningRate(),
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
"""The policies of ftcore, by name."""

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
"""The chain of a job without a policy file: the cheapest policy first; those with missing abilities pass.

``pod_replacement`` is above ``process_restart`` because it only takes faults of nodes, and because a platform without
capacity must not end the job: if it declines, the job restarts on the remaining or returning nodes.

``recompute_step``, ``skip_batch``, ``rollback_and_skip``, ``lower_learning_rate`` and ``alert`` are not included: no
default fits their detectors and targets.
"""


def default_entry(policy: str) -> ChainEntry:
    """A chain entry of a built-in policy with default options."""
    return ChainEntry(policy=policy, options=defaults(described(BUILT_IN[policy].options)))


ANSWER_S = 10.0
"""Timeout for a policy of another package; then the chain continues without its answer."""


@attrs.frozen(kw_only=True)
class ChainAnswer:
    """The verdict of one entry of the chain."""

    policy: str
    verdict: Verdict | Ask


def consult(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> Iterator[ChainAnswer]:
    """Ask the entries in order until one takes the incident.

    A policy that was already asked in this revision of the incident is not asked again.

    Args:
        chain: the entries in force.
        incident: the open incident.
        job: the folded state.

    Yields:
        Each answer. The last one is the ``Take``, if a policy took the incident, or the ``Ask`` for a policy of
        another package that has not answered yet.
    """
    for entry in _applicable(chain, incident, job):
        if _is_recorded_as_lacking(entry, incident, job):
            continue
        verdict = _ask(entry, incident, job)
        yield ChainAnswer(policy=entry.policy, verdict=verdict)
        if not isinstance(verdict, Pass):
            return


def skipped_for_lack(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> list[tuple[str, Pass]]:
    """The entries that ``consult`` skips because the log already records the missing ability, in order."""
    known = (entry for entry in _applicable(chain, incident, job) if _is_recorded_as_lacking(entry, incident, job))
    return [(entry.policy, lack) for entry in known if (lack := _lack(entry, job)) is not None]


def upcoming(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> list[str]:
    """The policies that are asked next if each passes, or its plan fails, in order."""
    return [
        entry.policy for entry in _applicable(chain, incident, job) if not _is_recorded_as_lacking(entry, incident, job)
    ]


def _applicable(chain: Sequence[ChainEntry], incident: IncidentState, job: JobState) -> Iterator[ChainEntry]:
    """The entries that handle the incident and were not asked yet.

    If a policy has several entries, the one for the incident's class is chosen.
    """
    cls = incident.fault.cls
    meant = {entry.policy for entry in chain if entry.is_for(cls)}
    for entry in chain:
        if entry.policy in incident.asked or (entry.policy in meant and not entry.is_for(cls)):
            continue
        kinds = kinds_of(entry)
        if not kinds or handles(kinds, incident, job):
            yield entry


def _is_recorded_as_lacking(entry: ChainEntry, incident: IncidentState, job: JobState) -> bool:
    if incident.kind == "request" or entry.policy not in job.abilities.lacking or not follows(job, LACK_ONCE):
        return False
    lack = _lack(entry, job)
    return entry.is_for(incident.fault.cls) and lack is not None and lack.lacks == job.abilities.lacking[entry.policy]


def _lack(entry: ChainEntry, job: JobState) -> Pass | None:
    """The pass of an entry that the job cannot carry out; None if it can."""
    needs: Sequence[str] = needs_of(entry)
    if not follows(job, IN_PROCESS):
        needs = traits_of(entry.policy).needed or needs
    reason = lacking(needs, job)
    if not reason:
        return None
    lacks = tuple(map(str, not_covered(needs, job.can)))
    return Pass(reason=reason, lacks=lacks if follows(job, LACK_ONCE) else ())


def kinds_of(entry: ChainEntry) -> Sequence[str]:
    """The kinds of incidents that an entry's policy handles, built-in or not."""
    policy = BUILT_IN.get(entry.policy)
    return policy.kinds if policy is not None else entry.kinds


def needs_of(entry: ChainEntry) -> tuple[Ability, ...]:
    """The abilities that an entry's policy requires, built-in or not."""
    policy = BUILT_IN.get(entry.policy)
    return policy.needs if policy is not None else tuple(map(Ability, entry.needs))


def handles(kinds: Sequence[str], incident: IncidentState, job: JobState) -> bool:
    """Whether a policy with these ``kinds`` is asked about an incident."""
    return (
        incident.kind in kinds
        or (incident.kind == "request" and incident.fault.detail in kinds)
        or ("interrupted" in kinds and interrupted(incident, job))
        or ("disruption" in kinds and incident.kind == "warning" and incident.fault.detail in DISRUPTIVE)
    )


def _ask(entry: ChainEntry, incident: IncidentState, job: JobState) -> Verdict | Ask:
    policy = BUILT_IN.get(entry.policy)
    if policy is None and not entry.external:
        return Pass(reason="unknown policy: this version of ftcore does not have it")
    if not entry.is_for(incident.fault.cls):
        return Pass(reason=f"limited by `faults` to: {', '.join(entry.faults)}")
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

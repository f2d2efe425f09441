"""Budgets of policies: attempts in a window, attempts per node, cool-down, back-off.

Everything is computed from the folded state, so a new master continues the counts of its predecessor, and a replay
gets the same ones.
"""

import hashlib
from bisect import bisect_right
from typing import Annotated, Any

from ftcore.ids import SECOND, seconds
from ftcore.policies.options import Options, span
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, plural

BACKOFF_DOUBLINGS_MAX = 30
"""Bounds the exponent: 2 ** 30 times any base is above every cap."""


class StartOptions(Options):
    """Options of every policy that starts the workers again."""

    grace: Annotated[float, span("Time between TERM and KILL of a worker.")] = 10.0
    deadline: Annotated[float, span("Time from the new start to its first completed step; 0: no limit.")] = 1800.0


class RoundOptions(StartOptions):
    """Options of a policy that starts the workers repeatedly, with back-off."""

    backoff: Annotated[
        float, span("Back-off before the second attempt without progress; doubles with each further attempt.")
    ] = 1.0
    backoff_max: Annotated[float, span("Upper limit of the back-off.")] = 60.0


def round_terms(job: JobState, incident: IncidentState, options: RoundOptions) -> dict[str, Any]:
    """The fields ``grace_s``, ``wait_s`` and ``deadline_s`` of a plan."""
    return {
        "grace_s": options.grace,
        "wait_s": backoff_s(job, incident.id, options.backoff, options.backoff_max),
        "deadline_s": options.deadline,
    }


def attempts(job: JobState, policy: str, window_s: float) -> int:
    """How often a policy took an incident in the last ``window_s`` seconds."""
    since = job.time - seconds(window_s)
    return sum(1 for time in job.history.attempts.get(policy, ()) if time > since)


def spent(job: JobState, policy: str, limit: float, window_s: float, what: str) -> str:
    """Why a policy's budget does not allow another attempt; empty if it does.

    Args:
        job: the folded state.
        policy: name of the policy.
        limit: attempts allowed in the window.
        window_s: length of the window in seconds.
        what: plural noun for attempts in the message, such as ``restarts``.
    """
    made = attempts(job, policy, window_s)
    if made < limit:
        return ""
    return f"budget spent: {made} of {limit:g} {what} in the last {format_duration(window_s)}"


def faults_of(job: JobState, node: str, window_s: float) -> int:
    """How many faults blamed this node in the last ``window_s`` seconds, including the current one."""
    since = job.time - seconds(window_s)
    return sum(1 for time in job.evidence.node_faults.get(node, ()) if time > since)


def charged(job: JobState, policy: str, node: str, window_s: float) -> int:
    """How many attempts of a policy were charged to this node in the last ``window_s`` seconds.

    The state keeps the times of attempts and, by node, of faults. An attempt is charged to the node with the newest
    fault at that time; to none, if the newest fault blamed none.
    """
    since = job.time - seconds(window_s)
    return sum(1 for time in job.history.attempts.get(policy, ()) if time > since and _culprit_at(job, time) == node)


def node_spent(job: JobState, policy: str, node: str, limit: float, window_s: float) -> str:
    """Why the budget per node does not allow another attempt for this node; empty if it does.

    Args:
        job: the folded state.
        policy: name of the policy.
        node: the node at fault; empty if no node is blamed: then there is no limit.
        limit: attempts allowed in the window.
        window_s: length of the window in seconds.
    """
    made = charged(job, policy, node, window_s) if node else 0
    if not node or made < limit:
        return ""
    return f"per-node limit reached: {plural(made, 'attempt')} for {node} in the last {format_duration(window_s)}"


def _culprit_at(job: JobState, time: int) -> str:
    blames_none = job.evidence.other_faults
    place = bisect_right(blames_none, time)
    newest, culprit = blames_none[place - 1] if place else 0, ""
    for node, times in job.evidence.node_faults.items():
        place = bisect_right(times, time)
        if place and times[place - 1] > newest:
            newest, culprit = times[place - 1], node
    return culprit


def cooling_s(job: JobState, policy: str, cool_down_s: float) -> float:
    """Seconds until the cool-down after a policy's last attempt ends; 0 if it has ended."""
    taken = max(job.history.attempts.get(policy, ()), default=None)
    if taken is None:
        return 0.0
    return max(0.0, (taken + seconds(cool_down_s) - job.time) / SECOND)


def backoff_s(job: JobState, incident: str, base_s: float, cap_s: float) -> float:
    """Seconds of back-off before the next attempt: 0 for the first after progress, then doubling, plus jitter.

    The jitter, at most 25 %, keeps jobs with a common fault from restarting at the same time. It is a hash of job,
    incident and attempt, so a replay gets the same value.
    """
    if job.history.streak <= 0:
        return 0.0
    wait = min(cap_s, base_s * 2.0 ** min(job.history.streak - 1, BACKOFF_DOUBLINGS_MAX))
    spread = hashlib.blake2b(f"{job.job}/{incident}/{job.history.streak}".encode(), digest_size=2).digest()
    return round(wait * (1 + 0.25 * int.from_bytes(spread, "big") / 65536), 3)

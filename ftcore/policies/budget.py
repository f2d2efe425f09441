"""What policies share of counting: attempts in a window, attempts charged to a node, cool-down, back-off.

All of it is read from the folded state, so a new master counts on where the old one stopped, and a replay counts the
same. Nothing here knows a policy.
"""

import hashlib
from bisect import bisect_right
from typing import Annotated, Any

from ftcore.ids import SECOND, seconds
from ftcore.policies.options import Options, span
from ftcore.states.model import IncidentState, JobState
from ftcore.wording import format_duration, plural

BACKOFF_DOUBLINGS_MAX = 30
"""2 ** 30 times any base is beyond every cap; more would only make big numbers."""


class StartOptions(Options):
    """Options of every policy that starts the workers anew."""

    grace: Annotated[float, span("Time between TERM and KILL of a worker.")] = 10.0
    deadline: Annotated[float, span("Time from the new start to its first completed step; 0: no limit.")] = 1800.0


class RoundOptions(StartOptions):
    """Those of a policy that starts them again and again: with back-off."""

    backoff: Annotated[float, span("Wait before the second attempt without progress; doubles with each further.")] = 1.0
    backoff_max: Annotated[float, span("The longest wait.")] = 60.0


def round_terms(job: JobState, incident: IncidentState, options: RoundOptions) -> dict[str, Any]:
    """Grace, back-off and deadline of a plan whose policy has ``RoundOptions``."""
    return {
        "grace_s": options.grace,
        "wait_s": backoff_s(job, incident.id, options.backoff, options.backoff_max),
        "deadline_s": options.deadline,
    }


def attempts(job: JobState, policy: str, window_s: float) -> int:
    """How often a policy was taken in the last ``window_s`` seconds."""
    since = job.time - seconds(window_s)
    return sum(1 for time in job.attempts.get(policy, ()) if time > since)


def spent(job: JobState, policy: str, limit: float, window_s: float, what: str) -> str:
    """Why a policy may not be taken once more: empty if it may.

    Args:
        job: the folded state.
        policy: its name.
        limit: times allowed in the window.
        window_s: the window, in seconds.
        what: what an attempt is called, in the plural.
    """
    made = attempts(job, policy, window_s)
    if made < limit:
        return ""
    return f"budget spent: {made} of {limit:g} {what} in the last {format_duration(window_s)}"


def faults_of(job: JobState, node: str, window_s: float) -> int:
    """How many faults had this node as their culprit in the last ``window_s`` seconds, the present one included."""
    since = job.time - seconds(window_s)
    return sum(1 for time in job.node_faults.get(node, ()) if time > since)


def charged(job: JobState, policy: str, node: str, window_s: float) -> int:
    """How often a policy was taken for this node in the last ``window_s`` seconds.

    The state keeps the times of attempts and, by node, of faults: an attempt is charged to the node whose fault was the
    newest when it was made.
    """
    since = job.time - seconds(window_s)
    return sum(1 for time in job.attempts.get(policy, ()) if time > since and _culprit_at(job, time) == node)


def node_spent(job: JobState, policy: str, node: str, limit: float, window_s: float) -> str:
    """Why a policy may not be taken for this node once more: empty if it may.

    Args:
        job: the folded state.
        policy: its name.
        node: the culprit; empty if none is named, who has no budget.
        limit: times allowed in the window.
        window_s: the window, in seconds.
    """
    made = charged(job, policy, node, window_s) if node else 0
    if not node or made < limit:
        return ""
    return f"{node} was helped {plural(made, 'time')} in {format_duration(window_s)}, and no more are allowed"


def _culprit_at(job: JobState, time: int) -> str:
    newest, culprit = 0, ""
    for node, times in job.node_faults.items():
        place = bisect_right(times, time)  # they are in order
        if place and times[place - 1] > newest:
            newest, culprit = times[place - 1], node
    return culprit


def cooling_s(job: JobState, policy: str, cool_down_s: float) -> float:
    """Seconds until a policy may be taken again after it was taken last: 0 if it may now."""
    taken = max(job.attempts.get(policy, ()), default=None)
    if taken is None:
        return 0.0
    return max(0.0, (taken + seconds(cool_down_s) - job.time) / SECOND)


def backoff_s(job: JobState, incident: str, base_s: float, cap_s: float) -> float:
    """Seconds to wait before the next attempt: 0 for the first after progress, then doubling; up to 25 % of jitter.

    The jitter spreads jobs apart that were hit by one cause. It is a hash of job, incident and attempt: chance to
    everybody else, and the same on every replay.
    """
    if job.streak <= 0:
        return 0.0
    wait = min(cap_s, base_s * 2.0 ** min(job.streak - 1, BACKOFF_DOUBLINGS_MAX))
    spread = hashlib.blake2b(f"{job.job}/{incident}/{job.streak}".encode(), digest_size=2).digest()
    return round(wait * (1 + 0.25 * int.from_bytes(spread, "big") / 65536), 3)

"""How a job comes by an ability: the words for a policy that is passed over for want of one.

Abilities are declared in events (``ability.declared``): by the platform for what it can launch, by the script for what
its workers can do, by a node for what its agent can check. A job without any of them is still restarted and shrunk.
"""

from collections.abc import Iterable

from ftcore.policies.base import Ability
from ftcore.states.model import JobState

A = Ability

DECLARED_BY: dict[Ability, str] = {
    A.REPLACE: "a platform that can launch a node for the place of another",
    A.CHECK: "an agent that can check devices and links",
    A.PAUSE: "a script that can wait at a step boundary",
    A.RETRY: "a script that can compute a failed step again in place",
    A.SNAPSHOT: "a script that can go back to its state before a step",
    A.PARK: "a script that can keep its state from one round to the next",
    A.SAVE: "a script that can save a checkpoint when told",
    A.ROLLBACK: "a script that can resume from an older checkpoint",
    A.SKIP: "a script that can leave out data when told",
    A.REPLICAS: "a job that holds every part of its state on two ranks",
}
"""Who declares it; every ability has an entry, a test says so."""

LACKS = "needs "
"""How the reason of a policy that is passed over for want of an ability begins."""

NOT_ASKED_FOR: tuple[Ability, ...] = (A.PAUSE, A.RETRY, A.SNAPSHOT, A.PARK, A.SAVE)
"""Abilities of a script that count for nothing yet: no agent of this version passes such an order on to its workers."""


def lacking(needs: Iterable[Ability], job: JobState) -> str:
    """Why a policy with these needs cannot be carried out by this job: empty if it can.

    Args:
        needs: what the policy's plan asks for.
        job: the folded state, with what was declared.
    """
    return "; ".join(
        f"{LACKS}`{ability}`: {DECLARED_BY[ability]} declares it" for ability in needs if not job.can(ability)
    )

"""Which abilities count for a job, and the messages for a policy that is passed over because one is missing.

An ability counts if the job declares it and this release can carry it out. ``counted`` is the only place that says so:
the policy file's word passes through it before it is recorded (``policy.loaded``), so the fold, ``ftrun``, ``ftctl
policy``, ``ftctl simulate`` and ``ftctl whatif`` agree. What a platform or an agent declares (``ability.declared``) is
declared by the code that carries it out. A job without any ability is still restarted and shrunk.
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

CARRIED_OUT: tuple[Ability, ...] = (A.REPLACE, A.CHECK, A.ROLLBACK, A.SKIP, A.REPLICAS)
"""What this release can carry out. No agent of it passes an order of the other abilities on to its workers."""


def counted(declared: Iterable[str], assumed: Iterable[str] = ()) -> tuple[str, ...]:
    """The abilities that count: those that are declared and that this release can carry out, and those assumed.

    Args:
        declared: what the job's file and its platform declare.
        assumed: what the user asks to assume (``--assume``), whatever is declared and whoever could carry it out.
    """
    able = (name for name in map(str, declared) if name in CARRIED_OUT)
    return tuple(dict.fromkeys((*able, *map(str, assumed))))


def lacking(needs: Iterable[Ability], job: JobState) -> str:
    """Why a policy with these needs cannot be carried out by this job: empty if it can.

    Args:
        needs: what the policy's plan asks for.
        job: the folded state, with what was declared.
    """
    return "; ".join(
        f"{LACKS}`{ability}`: {DECLARED_BY[ability]} declares it" for ability in needs if not job.can(ability)
    )

"""What an ability is good for, and how a job comes by it: the words for a policy that is passed over for want of one.

Abilities are declared in events (``ability.declared``): by the platform for what it can launch, by the script for what
its workers can do, by a node for what its agent can check. A job without any of them is still restarted and shrunk.
"""

from collections.abc import Iterable

import attrs

from ftcore.policies.base import Ability
from ftcore.states.model import JobState


@attrs.frozen
class AbilityFacts:
    """What is said of an ability that nobody declared.

    Args:
        lack: what nobody can do, as the end of "nothing here can ...".
        way: how to get it.
    """

    lack: str
    way: str


A = Ability

ABILITIES: dict[Ability, AbilityFacts] = {
    A.REPLACE: AbilityFacts(
        "launch a node for the place of another", "run the job on a platform that declares `replace`"
    ),
    A.CHECK: AbilityFacts("check a node's devices and links", "run agents that declare `check`"),
    A.PAUSE: AbilityFacts("hold the workers at a step boundary", "let the script report its steps and declare `pause`"),
    A.RETRY: AbilityFacts("compute a failed step again in place", "let the script declare `retry`"),
    A.SNAPSHOT: AbilityFacts("go back to the state before a step", "let the script declare `snapshot`"),
    A.PARK: AbilityFacts("keep workers alive from one round to the next", "let the script declare `park`"),
    A.SAVE: AbilityFacts("save a checkpoint on demand", "let the script declare `save`"),
    A.ROLLBACK: AbilityFacts("resume from an older checkpoint", "let the script declare `rollback`"),
    A.SKIP: AbilityFacts("leave out data on demand", "let the script declare `skip`"),
    A.REPLICAS: AbilityFacts(
        "give a rank its state from another rank", "hold every part of the state twice and declare `replicas`"
    ),
}
"""Every ability has an entry; a test says so."""


def lacking(needs: Iterable[Ability], job: JobState) -> str:
    """Why a policy with these needs cannot be carried out by this job: empty if it can.

    Args:
        needs: what the policy's plan asks for.
        job: the folded state, with what was declared.
    """
    missing = [ability for ability in needs if not job.can(ability)]
    return "; ".join(
        f"needs `{ability}`: nothing here can {ABILITIES[ability].lack}; {ABILITIES[ability].way}"
        for ability in missing
    )

"""Which abilities a job has, and the messages for a policy that is skipped because one is missing.

A job has an ability if its policy file declares it and this release implements it. Only ``usable_abilities`` decides
this: it filters the policy file before ``policy.loaded`` is recorded, so the fold, ``ftrun``, ``ftctl policy``,
``ftctl simulate`` and ``ftctl whatif`` agree. A platform or an agent declares only abilities that it implements
(``ability.declared``). A job without any ability can still be restarted and shrunk.
"""

from collections.abc import Callable, Iterable

from ftcore.policies.base import Ability
from ftcore.states.model import JobState

A = Ability

DECLARED_BY: dict[Ability, str] = {
    A.REPLACE: "a platform that can launch a node for the place of another",
    A.CHECK: "an agent that can check devices and links",
    A.PAUSE: "a script that can pause at a step boundary",
    A.RETRY: "a script that can compute a failed step again in place",
    A.PARK: "a script that can keep its state from one round to the next",
    A.RESIZE: "a script whose processes can go on with another number of ranks (`steps(resizes=True)`)",
    A.SAVE: "a script that can save a checkpoint when told",
    A.CHECKPOINT: "a script that saves on request (`ftcore.worker.on_save`)",
    A.INTERVAL: "a script that leaves the interval of saves to ftcore (`persist_every='auto'`)",
    A.ROLLBACK: "a script that can resume from an older checkpoint",
    A.SKIP: "a script that can skip data",
    A.TOKENS: "a script that says how many tokens a step has (`steps(tokens=...)`)",
    A.REPLICAS: "a job that holds every part of its state on two ranks",
}
"""Who declares each ability. A test checks that none is missing."""

LACKS = "needs "
"""Prefix of the reason of a policy that is skipped because the job lacks an ability."""

OBSERVED: tuple[Ability, ...] = (A.PAUSE, A.CHECKPOINT, A.SAVE, A.INTERVAL, A.RETRY, A.PARK, A.RESIZE, A.TOKENS)
"""Abilities that the running workers report themselves (``workers.stepped``); no file declares them."""

OF_REGISTERED: tuple[Ability, ...] = (A.ROLLBACK, A.SKIP)
"""Abilities that a script has without declaring them if it registered its state and data; that shows only when it runs.
A job with a place for checkpoints may have them."""

CARRIED_OUT: tuple[Ability, ...] = (A.REPLACE, A.CHECK, A.ROLLBACK, A.SKIP, A.REPLICAS)
"""Abilities that this release implements and that a file or a platform declares."""

_EARLIER = {"snapshot": "a script that can restore its state from before a step"}
"""Abilities that policies required before revision 17."""

SUBSTITUTES: dict[str, Ability] = {A.SAVE: A.CHECKPOINT}
"""Abilities that suffice in place of another one where the plan of the policy says so."""


def usable_abilities(declared: Iterable[str], assumed: Iterable[str] = ()) -> tuple[str, ...]:
    """The declared abilities that this release implements, and the assumed ones.

    Args:
        declared: abilities that the policy file and the platform declare.
        assumed: abilities from ``--assume``; neither a declaration nor an implementation is needed for them.
    """
    able = (name for name in map(str, declared) if name in CARRIED_OUT)
    return tuple(dict.fromkeys((*able, *map(str, assumed))))


def not_covered(needs: Iterable[str], can: Callable[[str], bool]) -> tuple[str, ...]:
    """The abilities that a policy requires and a job has not, nor one that suffices in their place.

    Args:
        needs: the abilities that the policy's plan requires.
        can: whether the job has an ability.
    """
    return tuple(
        ability for ability in needs if not can(ability) and not (ability in SUBSTITUTES and can(SUBSTITUTES[ability]))
    )


def needs_text(needs: Iterable[Ability]) -> str:
    """The abilities that a policy requires, with those that suffice in their place."""
    return ", ".join(
        f"`{ability}`" + (f" (or `{SUBSTITUTES[ability]}` while all ranks run)" if ability in SUBSTITUTES else "")
        for ability in needs
    )


def lacking(needs: Iterable[str], job: JobState) -> str:
    """Why this job cannot carry out a policy with these needs; empty if it can."""
    return "; ".join(f"{LACKS}`{ability}`: {_declarer(ability)} declares it" for ability in not_covered(needs, job.can))


def _declarer(ability: str) -> str:
    return DECLARED_BY[Ability(ability)] if ability in DECLARED_BY else _EARLIER[ability]

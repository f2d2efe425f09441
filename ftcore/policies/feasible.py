"""Can this job carry out what its policy file asks for? Told before anything starts.

What somebody named is refused, with the reason and the way to get it; what came with a preset or by default, or was
called optional, is passed over, and the chain says so whenever it would have been asked.
"""

from collections.abc import Iterable, Mapping

from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.policies.abilities import DECLARED_BY, NOT_ASKED_FOR
from ftcore.policies.base import Ability
from ftcore.policies.config import SAID_BY_SCRIPT
from ftcore.policies.reach import needs_of
from ftcore.policies.words import plural


def needs(entry: ChainEntry) -> tuple[Ability, ...]:
    """What an entry needs with the options that it has, beyond what its policy always needs."""
    wanted = needs_of(entry)
    if entry.policy == "rollback_and_skip" and entry.options["skip"] > 0:
        wanted = (*wanted, Ability.SKIP)
    return wanted


def missing(entry: ChainEntry, loaded: PolicyLoaded, abilities: Iterable[str] = ()) -> tuple[Ability, ...]:
    """What an entry needs and neither the file nor anybody else declares."""
    there = {*loaded.declared.abilities, *map(str, abilities)}
    return tuple(ability for ability in needs(entry) if str(ability) not in there)


def check_abilities(
    loaded: PolicyLoaded,
    abilities: Iterable[str] = (),
    ranks: int | None = None,
    switched: Mapping[str, str] | None = None,
) -> list[str]:
    """What keeps this job from carrying out what was named, one line for each; empty if nothing does.

    Args:
        loaded: the policy in force.
        abilities: what platform, agents and script declare by themselves.
        ranks: the size of the largest world of the job; None: not known.
        switched: by policy, the switch of ``FTCORE_POLICIES`` that put it on.
    """
    there = tuple(abilities)
    lines = _replicas_exist(loaded, ranks)
    for entry in loaded.chain:
        lack = missing(entry, loaded, there) if entry.required else ()
        if lack:
            switch = (switched or {}).get(entry.policy)
            advice = (
                f"Leave {switch} out of FTCORE_POLICIES"
                if switch is not None
                else "Or call the entry `optional: true`: then it is passed over"
            )
            lines.append(f"{entry.policy} cannot be carried out: {'; '.join(map(_way, lack))}. {advice}")
    return lines


def passed_over(loaded: PolicyLoaded, abilities: Iterable[str] = ()) -> list[str]:
    """Policies of the chain that nobody insists on and this job cannot carry out."""
    there = tuple(abilities)
    return [entry.policy for entry in loaded.chain if not entry.required and missing(entry, loaded, there)]


def _replicas_exist(loaded: PolicyLoaded, ranks: int | None) -> list[str]:
    declared = loaded.declared
    if ranks is None:
        return []
    if declared.replicas == "all" and ranks < 2:
        return ["job: replicas: all: a job of one rank has no replica; write none"]
    named = sum(len(group) for group in declared.groups)
    if declared.groups and named != ranks:
        return [f"job: replicas: the groups name {plural(named, 'rank')}, the job has {ranks}; name every rank once"]
    return []


def _way(ability: Ability) -> str:
    if ability in NOT_ASKED_FOR:
        way = "this ftcore cannot tell any script's workers to yet"
    elif ability in SAID_BY_SCRIPT:
        way = f"if the script can, say so with `job: abilities: [{ability}]`"
    elif ability is Ability.REPLICAS:
        way = "say which ranks hold the same state with `job: replicas`"
    else:
        way = "nothing that runs this job does"
    return f"it needs `{ability}`, which {DECLARED_BY[ability]} declares; {way}"

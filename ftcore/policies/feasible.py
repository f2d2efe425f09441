"""Can this job carry out what its policy file asks for? Told before anything starts.

What somebody named is refused, with the reason and the way to get it; what came with a preset or by default, or was
called optional, is passed over, and the chain says so whenever it would have been asked.
"""

from collections.abc import Iterable, Mapping

from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.policies.abilities import CARRIED_OUT, DECLARED_BY, counted
from ftcore.policies.base import Ability
from ftcore.policies.chain import needs_of
from ftcore.policies.config import SAID_BY_SCRIPT
from ftcore.policies.traits import Trait, has, options_of
from ftcore.wording import plural


def needs(entry: ChainEntry) -> tuple[Ability, ...]:
    """What an entry needs with the options that it has, beyond what its policy always needs."""
    wanted = needs_of(entry)
    if has(entry, Trait.ROLLS_BACK) and options_of(entry).skip > 0:
        wanted = (*wanted, Ability.SKIP)
    return wanted


def missing(
    entry: ChainEntry, loaded: PolicyLoaded, abilities: Iterable[str] = (), assumed: Iterable[str] = ()
) -> tuple[Ability, ...]:
    """What an entry needs and the job is not able to do.

    Args:
        entry: of the chain.
        loaded: the policy in force.
        abilities: what platform, agents and script declare by themselves.
        assumed: what is assumed besides.
    """
    there = counted((*loaded.declared.abilities, *abilities), assumed)
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
    """Policies of the chain that are not required and that this job cannot carry out."""
    there = tuple(abilities)
    return [entry.policy for entry in loaded.chain if not entry.required and missing(entry, loaded, there)]


def unable(loaded: PolicyLoaded, abilities: Iterable[str] = (), assumed: Iterable[str] = ()) -> str:
    """What a simulation or a comparison leaves out of a file's chain, with the reason; empty if nothing.

    Args:
        loaded: the chain; one that does not come from a file names nothing that anybody asked for.
        abilities: what the simulated or recorded job declares besides.
        assumed: what is assumed.
    """
    there, given = tuple(abilities), tuple(assumed)
    lack = {entry.policy: missing(entry, loaded, there, given) for entry in loaded.chain if loaded.text}
    left_out = [policy for policy, names in lack.items() if names]
    if not left_out:
        return ""
    names = list(dict.fromkeys(str(name) for policy in left_out for name in lack[policy]))
    idle = [name for name in names if name not in CARRIED_OUT]
    release = f" (this release cannot carry out: {', '.join(idle)})" if idle else ""
    return (
        f"passed over: {', '.join(left_out)}: the job does not declare {', '.join(names)}{release}; to see what they "
        f"would change: --assume {','.join(dict.fromkeys((*given, *names)))}"
    )


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
    if ability not in CARRIED_OUT:
        way = "this ftcore cannot tell any script's workers to yet"
    elif ability in SAID_BY_SCRIPT:
        way = f"if the script can, say so with `job: abilities: [{ability}]`"
    elif ability is Ability.REPLICAS:
        way = "say which ranks hold the same state with `job: replicas`"
    else:
        way = "nothing that runs this job does"
    return f"it needs `{ability}`, which {DECLARED_BY[ability]} declares; {way}"

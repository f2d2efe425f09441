"""Check before the start whether the job can carry out its policies.

An entry that the user named is refused, with the reason and what to do. An entry of a preset or of the default chain,
or one marked optional, is skipped, and its verdict in the log says why.
"""

from collections.abc import Iterable, Mapping

from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.policies.abilities import DECLARED_BY, OBSERVED, OF_REGISTERED, not_covered, usable_abilities
from ftcore.policies.base import Ability
from ftcore.policies.chain import needs_of
from ftcore.policies.file.config import SAID_BY_SCRIPT
from ftcore.policies.traits import Trait, has, options_of
from ftcore.states.replicas import misfit


def needs(entry: ChainEntry) -> tuple[Ability, ...]:
    """The abilities that an entry needs: those of its policy, and those that its options require."""
    wanted = needs_of(entry)
    if has(entry, Trait.SKIPS) and options_of(entry).skip > 0:
        wanted = (*wanted, Ability.SKIP)
    return wanted


def missing(
    entry: ChainEntry, loaded: PolicyLoaded, abilities: Iterable[str] = (), assumed: Iterable[str] = ()
) -> tuple[Ability, ...]:
    """The abilities that an entry needs and the job lacks.

    Args:
        entry: an entry of the chain.
        loaded: the policies in force.
        abilities: abilities that platform, agents and script declare themselves.
        assumed: abilities from ``--assume``.
    """
    given = tuple(map(str, abilities))
    usable = {
        *usable_abilities((*loaded.declared.abilities, *given), assumed),
        *(name for name in given if name in OBSERVED),
    }
    return tuple(map(Ability, not_covered(needs(entry), usable.__contains__)))


def check_abilities(
    loaded: PolicyLoaded,
    abilities: Iterable[str] = (),
    ranks: int | None = None,
    switched: Mapping[str, str] | None = None,
    assumed: Iterable[str] = (),
) -> list[str]:
    """Why the job cannot carry out its required entries, one line for each; empty if it can.

    Args:
        loaded: the policies in force.
        abilities: abilities that platform, agents and script declare themselves.
        ranks: size of the job's largest world; None: not known.
        switched: by policy, the switch of ``FTCORE_POLICIES`` that enabled it.
        assumed: abilities from ``--assume``.
    """
    declared, given = tuple(abilities), tuple(assumed)
    unfit = misfit(loaded.declared, ranks) if ranks is not None else ""
    lines = [unfit] if unfit else []
    for entry in loaded.chain:
        lack = missing(entry, loaded, (*declared, *OBSERVED), given) if entry.required else ()
        if lack:
            switch = (switched or {}).get(entry.policy)
            advice = (
                f"Or remove {switch} from FTCORE_POLICIES"
                if switch is not None
                else "Or mark the entry `optional: true` to skip it"
            )
            lines.append(f"{entry.policy} cannot be carried out: {'; '.join(map(_advice, lack))}. {advice}")
    return lines


def skipped_policies(loaded: PolicyLoaded, abilities: Iterable[str] = ()) -> list[str]:
    """Policies of the chain that are not required, and that this job cannot carry out."""
    declared = tuple(abilities)
    return [
        entry.policy for entry in loaded.chain if not entry.required and missing(entry, loaded, (*declared, *OBSERVED))
    ]


def unable(loaded: PolicyLoaded, abilities: Iterable[str] = (), assumed: Iterable[str] = ()) -> str:
    """Which policies of a file a simulation or a comparison skips, and why; empty if none.

    Args:
        loaded: the chain; without a file nothing is reported.
        abilities: abilities that the simulated or recorded job declares in addition.
        assumed: abilities from ``--assume``.
    """
    declared, given = tuple(abilities), tuple(assumed)
    lack = {entry.policy: missing(entry, loaded, declared, given) for entry in loaded.chain if loaded.text}
    skipped = [policy for policy, names in lack.items() if names]
    if not skipped:
        return ""
    names = list(dict.fromkeys(str(name) for policy in skipped for name in lack[policy]))
    return (
        f"skipped: {', '.join(skipped)}: the job does not declare {', '.join(names)}; to see what they "
        f"would change: --assume {','.join(dict.fromkeys((*given, *names)))}"
    )


def _advice(ability: Ability) -> str:
    if ability in SAID_BY_SCRIPT:
        advice = f"if the script can, declare it with `job: abilities: [{ability}]`"
        if ability in OF_REGISTERED:
            advice += "; if it registers its state, start the job with `--checkpoints` instead"
    elif ability is Ability.REPLICAS:
        advice = "set which ranks hold the same state with `job: replicas`"
    else:
        advice = "this job has none"
    return f"it needs `{ability}`, which {DECLARED_BY[ability]} declares; {advice}"

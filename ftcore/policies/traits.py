"""Traits: what others may have to know of a policy of ftcore, declared beside it and asked for by the trait's name.

House rule: no policy and no engine module asks for a policy by its name. A policy of another package has no traits.
"""

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import attrs

from ftcore.events.policy import ChainEntry
from ftcore.policies.base import Policy
from ftcore.policies.options import Options, filled

_P = TypeVar("_P", bound=type[Policy])


class Trait(StrEnum):
    """What a policy does that others ask for."""

    COSTS_A_ROUND = "costs a round"
    """Its plan stops workers and forms the next round."""
    RESTARTS = "restarts"
    """It starts the workers again on the nodes there are; ``--max-restarts`` is its budget."""
    REPLACES = "replaces"
    """It has other nodes take the places of those at fault, as ``replacement.judge`` says."""
    SHRINKS = "shrinks"
    """It leaves nodes out, waits for no others, and goes on with fewer."""
    GROWS = "grows"
    """It takes in nodes that stand by."""
    PARKS = "parks"
    """Its ``grace`` is the time for ranks to leave their groups, not that between TERM and KILL."""
    ROLLS_BACK = "rolls back"
    """It goes back to a checkpoint and leaves out data after what it observes."""
    RECOMPUTES = "recomputes"
    """It computes the step again on the same data after what it observes."""
    ALERTS = "alerts"
    """It sends messages to people."""
    CONTINUES = "continues"
    """Its plan ends no fault: the next entry of the chain is asked behind it."""
    ENDS = "ends"
    """It takes whatever reaches it, and ends the job."""


PROMISED: Mapping[Trait, tuple[str, ...]] = {
    Trait.RESTARTS: ("check", "window"),
    Trait.REPLACES: ("classes", "node_faults", "per_node", "window"),
    Trait.SHRINKS: ("min_nodes", "classes", "node_faults", "window"),
    Trait.PARKS: ("grace",),
    Trait.ROLLS_BACK: ("on", "back", "before", "skip"),
    Trait.RECOMPUTES: ("on",),
    Trait.ALERTS: ("to", "on", "on_end", "requests", "severity"),
}
"""The options that every policy with a trait has, for those who ask for it."""


@attrs.frozen(kw_only=True)
class Traits:
    """What a policy declares of itself for others.

    Args:
        has: its traits.
        budget: the option that says how often it may be taken in its ``window``; empty: none, or not all is counted.
        options: the record of its options.
    """

    has: frozenset[Trait] = frozenset()
    budget: str = ""
    options: type[Options] = Options


_NONE = Traits()
_DECLARED: dict[str, Traits] = {}


def declares(*traits: Trait, budget: str = "") -> Callable[[_P], _P]:
    """Decorate the class of a policy of ftcore with its traits.

    Args:
        traits: what it has.
        budget: as in ``Traits``.
    """

    def enter(policy: _P) -> _P:
        _DECLARED[policy.name] = Traits(has=frozenset(traits), budget=budget, options=policy.options)
        return policy

    return enter


@functools.cache
def _declared() -> Mapping[str, Traits]:
    """What all policies declare when they are imported; by name, as the chain imports whoever asks."""
    importlib.import_module("ftcore.policies.chain")
    return _DECLARED


def traits_of(policy: str) -> Traits:
    """The traits of a policy by its name; none, if it is not one of ftcore's."""
    return _declared().get(policy, _NONE)


def has(entry: ChainEntry, trait: Trait) -> bool:
    """Whether the policy of an entry has a trait."""
    return trait in traits_of(entry.policy).has


def named(trait: Trait) -> tuple[str, ...]:
    """The names of the policies that have a trait."""
    return tuple(name for name, traits in _declared().items() if trait in traits.has)


def having(chain: Iterable[ChainEntry], trait: Trait) -> tuple[ChainEntry, ...]:
    """The entries of a chain whose policies have a trait, in order."""
    return tuple(entry for entry in chain if has(entry, trait))


def limit(entry: ChainEntry) -> int:
    """How often an entry, whose policy has a budget, may be taken in its ``window``."""
    return int(getattr(options_of(entry), traits_of(entry.policy).budget))


def options_of(entry: ChainEntry) -> Any:
    """The options of an entry, as the record of its policy, which has a trait."""
    return filled(traits_of(entry.policy).options, entry.options)

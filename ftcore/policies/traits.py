"""Traits: properties of built-in policies that other modules query.

Policies and engine modules never look for a policy by its name, only by trait. Policies of other packages have none.
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
    """A property of a policy."""

    COSTS_A_ROUND = "costs a round"
    """Its plan stops workers and forms the next round."""
    RESTARTS = "restarts"
    """It starts the workers again on the available nodes; ``--max-restarts`` sets its budget."""
    REPLACES = "replaces"
    """It replaces nodes at fault, as ``replacement.judge`` decides."""
    SHRINKS = "shrinks"
    """It continues with fewer nodes, without waiting for others."""
    GROWS = "grows"
    """It adds standby nodes to the world."""
    PARKS = "parks"
    """Its plan keeps the live processes for the next round, so it counts neither as a restart nor for a back-off.

    Its ``grace`` is the time for ranks to leave their groups, not the time between TERM and KILL.
    """
    ROLLS_BACK = "rolls back"
    """After an observation in ``on``, it goes back to a checkpoint."""
    SKIPS = "skips"
    """It skips data."""
    RECOMPUTES = "recomputes"
    """After an observation in ``on``, it computes the step again on the same data."""
    STOPS_STEPS = "stops steps"
    """While its budget lasts, the ranks stop a step whose norm is abnormal, and wait for its plan."""
    ALERTS = "alerts"
    """It sends alerts."""
    CONTINUES = "continues"
    """Its plan does not resolve the incident: the next entry of the chain is asked afterwards."""
    ENDS = "ends"
    """It takes every fault that reaches it, and ends the job."""


PROMISED: Mapping[Trait, tuple[str, ...]] = {
    Trait.RESTARTS: ("check", "window"),
    Trait.REPLACES: ("classes", "node_faults", "per_node", "window"),
    Trait.SHRINKS: ("min_nodes", "classes", "node_faults", "window"),
    Trait.PARKS: ("grace",),
    Trait.ROLLS_BACK: ("on", "back", "before"),
    Trait.SKIPS: ("on", "skip"),
    Trait.RECOMPUTES: ("on",),
    Trait.STOPS_STEPS: ("on", "global_norm_spike_threshold", "window"),
    Trait.ALERTS: ("to", "on", "on_end", "requests", "severity"),
}
"""The options that every policy with a trait has; code that queries the trait may rely on them."""


@attrs.frozen(kw_only=True)
class Traits:
    """What a built-in policy declares about itself.

    Args:
        has: its traits.
        budget: name of the option that limits attempts per ``window``; empty: no budget, or not every plan counts.
        options: the record type of its options.
        needed: the abilities that it required before revision 17, if others than now.
    """

    has: frozenset[Trait] = frozenset()
    budget: str = ""
    options: type[Options] = Options
    needed: tuple[str, ...] = ()


_NONE = Traits()
_DECLARED: dict[str, Traits] = {}


def declares(*traits: Trait, budget: str = "", needed: tuple[str, ...] = ()) -> Callable[[_P], _P]:
    """Class decorator: declare the traits of a built-in policy.

    Args:
        traits: its traits.
        budget, needed: as in ``Traits``.
    """

    def register(policy: _P) -> _P:
        _DECLARED[policy.name] = Traits(has=frozenset(traits), budget=budget, options=policy.options, needed=needed)
        return policy

    return register


@functools.cache
def _declared() -> Mapping[str, Traits]:
    """The declarations of all built-in policies. The import is dynamic because the chain imports this module."""
    importlib.import_module("ftcore.policies.chain")
    return _DECLARED


def traits_of(policy: str) -> Traits:
    """The traits of a policy by name; empty if it is not built in."""
    return _declared().get(policy, _NONE)


def has(entry: ChainEntry, trait: Trait) -> bool:
    """Whether the policy of an entry has a trait."""
    return trait in traits_of(entry.policy).has


def named(trait: Trait) -> tuple[str, ...]:
    """The names of the policies that have a trait."""
    return tuple(name for name, traits in _declared().items() if trait in traits.has)


def having(chain: Iterable[ChainEntry], trait: Trait) -> tuple[ChainEntry, ...]:
    """The chain entries whose policies have a trait, in order."""
    return tuple(entry for entry in chain if has(entry, trait))


def limit(entry: ChainEntry) -> int:
    """The budget of an entry: attempts allowed per ``window``. Its policy must declare one."""
    return int(getattr(options_of(entry), traits_of(entry.policy).budget))


def options_of(entry: ChainEntry) -> Any:
    """The options of an entry as the record of its policy, which must be built in."""
    return filled(traits_of(entry.policy).options, entry.options)

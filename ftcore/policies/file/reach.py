"""Find the entries of a chain that are asked about a class of faults."""

from collections.abc import Sequence

from ftcore.events.policy import ChainEntry
from ftcore.faults.taxonomy import DISRUPTIONS, FaultClass
from ftcore.policies.chain import kinds_of
from ftcore.policies.traits import Trait, has

TROUBLES = ("fault", "warning", "disruption")
"""Kinds of incidents of all or some classes but ``request``; all other ``kinds`` of a policy are requests."""


def asked(chain: Sequence[ChainEntry], cls: str) -> list[int]:
    """Indices of the entries that are asked about a class, up to the one that takes every fault.

    Args:
        chain: the entries, highest priority first.
        cls: a class of the taxonomy.
    """
    places = []
    for place, entry in enumerate(chain):
        if why_not(entry, cls):
            continue
        places.append(place)
        if has(entry, Trait.ENDS):
            break
    return places


def why_not(entry: ChainEntry, cls: str) -> str:
    """Why an entry is never asked about a class; empty if it is."""
    if not entry.is_for(cls):
        return f"limited by `faults` to: {', '.join(entry.faults)}"
    kinds = kinds_of(entry)
    requests = [kind for kind in kinds if kind not in TROUBLES]
    troubles = [kind for kind in kinds if kind in TROUBLES and (kind != "disruption" or cls in DISRUPTIONS.values())]
    if not (requests if cls == FaultClass.REQUEST else troubles):
        return f"handles only: {', '.join(kinds)}"
    return ""

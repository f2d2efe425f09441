"""What is worth to be said of a policy file that can be used: no mistake, but not what whoever wrote it may expect.

House rule: said by ``ftctl policy check`` and by ``ftrun`` alike, before anything starts.
"""

from collections.abc import Iterator

from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.chain import kinds_of
from ftcore.policies.feasible import needs
from ftcore.policies.targets import is_reference, targets
from ftcore.policies.traits import Trait, has, limit, options_of, traits_of
from ftcore.wording import format_duration


def notes(loaded: PolicyLoaded) -> list[str]:
    """One line for each thing that is worth to be said; mostly none.

    Args:
        loaded: the policy in force.
    """
    entries = (note for entry in loaded.chain for note in _entry(entry))
    return [note for note in (_abilities(loaded), _secrets(loaded), *entries, _no_remedy(loaded)) if note]


def _entry(entry: ChainEntry) -> Iterator[str]:
    """What of an entry has no effect, or hardly the one that was meant."""
    deadline, grace = entry.options.get("deadline"), entry.options.get("grace")
    if deadline and grace and deadline < grace:
        yield (
            f"{entry.policy}: deadline ({format_duration(deadline)}) is below grace ({format_duration(grace)}): a new "
            "start gets less time to complete a step than the workers get to stop"
        )
    if set(entry.faults) != {FaultClass.REQUEST}:
        return
    if has(entry, Trait.RESTARTS):
        yield f"{entry.policy}: faults: [request]: it takes no request, and no fault reaches it this way"
    elif has(entry, Trait.ALERTS) and not options_of(entry).requests:
        yield f"{entry.policy}: faults: [request]: it sends nothing about requests without `requests: true`"


def _no_remedy(loaded: PolicyLoaded) -> str:
    if any(map(_remedies, loaded.chain)):
        return ""
    return "no entry above `stop` takes a fault: the first fault ends the job"


def _remedies(entry: ChainEntry) -> bool:
    """Whether an entry takes some fault and goes on with the job."""
    if has(entry, Trait.ENDS) or has(entry, Trait.CONTINUES) or set(entry.faults) == {FaultClass.REQUEST}:
        return False
    return "fault" in kinds_of(entry) and (not traits_of(entry.policy).budget or limit(entry) > 0)


def _abilities(loaded: PolicyLoaded) -> str:
    said = loaded.declared.unsupported
    if not said:
        return ""
    waiting = dict.fromkeys(entry.policy for entry in loaded.chain if {*map(str, needs(entry))} & {*said})
    effect = f", and {', '.join(waiting)} {'are' if len(waiting) > 1 else 'is'} passed over" if waiting else ""
    count = "they count" if len(said) > 1 else "it counts"
    return (
        f"job: abilities: {', '.join(said)}: this ftcore cannot tell any script's workers to yet: {count} for "
        f"nothing{effect}"
    )


def _secrets(loaded: PolicyLoaded) -> str:
    if all(map(is_reference, targets(loaded.chain))):
        return ""
    return (
        "the URLs in `to` of `alert` will stand in the log, for all who can read it; env:NAME or file:/PATH keeps them "
        "out"
    )

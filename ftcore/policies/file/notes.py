"""Warnings about a valid policy file: settings that may not do what the author expects.

``ftctl policy check`` and ``ftrun`` print them before the job starts.
"""

from collections.abc import Iterator

from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.chain import kinds_of
from ftcore.policies.targets import is_reference, targets
from ftcore.policies.traits import Trait, has, limit, options_of, traits_of
from ftcore.wording import format_duration, plural


def notes(loaded: PolicyLoaded) -> list[str]:
    """The warnings about a chain, one line each; usually none."""
    entries = (note for entry in loaded.chain for note in _entry(entry))
    found = (_observed(loaded), _secrets(loaded), *entries, _no_remedy(loaded))
    return [note for note in found if note]


def repeat_notes(loaded: PolicyLoaded) -> list[str]:
    """Entries with a restart budget of their own that give up on a failing script before it is spent, one line each."""
    return [note for entry in loaded.chain if has(entry, Trait.RESTARTS) and (note := _repeats(entry))]


def _repeats(entry: ChainEntry) -> str:
    budget, same = traits_of(entry.policy).budget, entry.options["same_fault"]
    if limit(entry) == getattr(traits_of(entry.policy).options(), budget) or same > limit(entry):
        return ""
    return (
        f"{entry.policy}: a script error at the same step ends the job after {plural(same - 1, 'restart')} "
        f"(same_fault {same}), before {budget} ({limit(entry)}) is spent"
    )


def _entry(entry: ChainEntry) -> Iterator[str]:
    """Settings of an entry without effect, or with an effect that was hardly intended."""
    deadline, grace = entry.options.get("deadline"), entry.options.get("grace")
    if deadline and grace and deadline < grace:
        yield (
            f"{entry.policy}: deadline ({format_duration(deadline)}) is below grace ({format_duration(grace)}): the "
            "new workers get less time to complete a step than the old ones get to stop"
        )
    if set(entry.faults) != {FaultClass.REQUEST}:
        return
    if has(entry, Trait.RESTARTS):
        yield f"{entry.policy}: faults: [request]: it takes no requests, and faults do not reach it"
    elif has(entry, Trait.ALERTS) and not options_of(entry).requests:
        yield f"{entry.policy}: faults: [request]: it sends no alerts about requests without `requests: true`"


def _no_remedy(loaded: PolicyLoaded) -> str:
    if any(map(_remedies, loaded.chain)):
        return ""
    return "no entry above `stop` takes a fault: the first fault ends the job"


def _remedies(entry: ChainEntry) -> bool:
    """Whether an entry takes some faults and continues the job."""
    if has(entry, Trait.ENDS) or has(entry, Trait.CONTINUES) or set(entry.faults) == {FaultClass.REQUEST}:
        return False
    return "fault" in kinds_of(entry) and (not traits_of(entry.policy).budget or limit(entry) > 0)


def _observed(loaded: PolicyLoaded) -> str:
    names = ", ".join(loaded.declared.unsupported)
    return f"job: abilities: {names}: no effect: the running script reports it; remove {names}" if names else ""


def _secrets(loaded: PolicyLoaded) -> str:
    if all(map(is_reference, targets(loaded.chain))):
        return ""
    return (
        "alert: to: the URLs are stored in the log, where anyone with access to it can read them; use env:NAME or "
        "file:/PATH instead"
    )

"""What is worth to be said of a policy file that can be used: no mistake, but not what whoever wrote it may expect.

House rule: said by ``ftctl policy check`` and by ``ftrun`` alike, before anything starts.
"""

from ftcore.events.policy import PolicyLoaded
from ftcore.policies.feasible import needs
from ftcore.policies.targets import is_reference, targets


def notes(loaded: PolicyLoaded) -> list[str]:
    """One line for each thing that is worth to be said; mostly none.

    Args:
        loaded: the policy in force.
    """
    return [note for note in (_abilities(loaded), _secrets(loaded)) if note]


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

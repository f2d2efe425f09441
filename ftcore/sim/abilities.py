"""What a simulated job is taken to be able to do: whoever gives a policy file means its entries to be carried out."""

from ftcore.events.policy import PolicyLoaded
from ftcore.policies.feasible import needs


def needed_by(policy: PolicyLoaded) -> tuple[str, ...]:
    """What the file says of the script, and what its entries need with the options that they have.

    Args:
        policy: a chain that does not come from a file needs nothing: its entries are there for whoever can.
    """
    entries = [entry for entry in policy.chain if policy.text and not entry.external]
    needed = (str(ability) for entry in entries for ability in needs(entry))
    return tuple(dict.fromkeys((*policy.declared.abilities, *needed)))

"""The factor by which policies have lowered the learning rate. Pure."""

from ftcore.states.model import JobState


def lr_factor(state: JobState) -> float:
    """The factor for the learning rate that the script sets.

    It is 1 again once the policy that lowered the rate is not in the chain: whoever takes it out of the policy file
    wants the script's own rate.
    """
    lowered_by = state.training.lr_policy
    return state.training.lr_factor if any(entry.policy == lowered_by for entry in state.policy.chain) else 1.0

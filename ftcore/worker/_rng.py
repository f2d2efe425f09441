"""The states of all random number generators of this process as one value.

House rule: torch is imported only when a function is called.
"""

from typing import Any


def get_rng_states() -> dict[str, Any]:
    """Return the states of the random number generators of this process, as a value for a checkpoint.

    They are those of torch on the CPU and on every CUDA device in use, of ``random``, and of NumPy's global generator
    if NumPy is imported. ftcore saves and restores these states by itself: a script needs them only to draw the same
    numbers a second time, as for the order of an epoch, or to draw numbers without a change of those that follow.

    Returns:
        The states, of numbers, lists and bytes.
    """
    from ftcore.worker.state import rng

    return rng.packed(rng.capture())


def set_rng_states(states: dict[str, Any]) -> None:
    """Set the random number generators of this process to states from ``get_rng_states``, also of another process.

    Generators that the states lack, as those of further devices, stay as they are.

    Args:
        states: the states.
    """
    from ftcore.worker.state import rng

    rng.restore(states)

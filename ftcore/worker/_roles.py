"""The role of a rank: which other ranks do the same work in a step, and can be compared with it.

Ranks of one pipeline stage have parameters of the same shapes, whatever they hold of them, and so have all ranks of a
job without pipeline: a role is named by them, unless the script declares it. Sharded parameters (``DTensor``) have the
shape of the whole.
"""

import zlib
from typing import Any


def role_of(optimizer: Any) -> str:
    """Return the role by the parameters of an optimizer; empty: not known."""
    try:
        shapes = [tuple(parameter.shape) for group in optimizer.param_groups for parameter in group["params"]]
    except Exception:  # a custom optimizer may have anything there
        return ""
    return f"{len(shapes)} tensors, {zlib.crc32(repr(sorted(shapes)).encode()):08x}"


def role(name: str) -> None:
    """Declare which ranks do the same work in a step: those with the same name, such as ``"stage 0"``.

    Stragglers are found by comparison of such ranks. Without a call, ranks are compared whose first optimizer has
    parameters of the same shapes. Does nothing outside ``ftrun``.

    Args:
        name: at most 48 bytes.

    Raises:
        ValueError: the name is empty or too long.
    """
    from ftcore.shm.phases import ROLE_BYTES_MAX
    from ftcore.worker._progress import progress

    if not 0 < len(name.encode()) <= ROLE_BYTES_MAX:
        raise ValueError(f"role: expected 1 to {ROLE_BYTES_MAX} bytes, found {len(name.encode())}")
    progress().works_as(name, declared=True)

"""Keys for counting faults: which faults are repeats, and which are not caused by a node."""

import re

from ftcore.events.incident import Fault

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")

_VARYING_PARTS = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Z]\w*:)| \(reading .+\)(?=@\w+$)")
"""The difference between an exception as reported by the worker and in the traceback that Python prints: the module of
its class, and the file that was being read."""

OF_NO_NODE = ("user-code", "config-env", "oom-gpu", "numeric")
"""Classes of the taxonomy whose cause is the script or the data: they recur on any node."""

UNREADABLE_FILE = ("storage", "checkpoint-file")
"""Class and detail of a read error; before the first step of a round, no node can read the file."""

LINK_CUT = ("nccl-remote-error", "link-cut")
"""Class and detail of nodes that cannot reach each other; behind a colon, the summary has evidence that varies."""


FAILED_COLLECTIVE = ("nccl-remote-error", "collective")
"""Class and detail of a collective that failed: each rank has its own message, and any of them may be the first."""


def is_of_no_node(fault: Fault) -> bool:
    """Whether the cause is the script or its files, so that the fault recurs on any node."""
    return fault.cls in OF_NO_NODE or ((fault.cls, fault.detail) == UNREADABLE_FILE and fault.step is None)


def is_cut(fault: Fault) -> bool:
    """Whether the fault is that nodes cannot reach each other."""
    return (fault.cls, fault.detail) == LINK_CUT


def fault_key(fault: Fault) -> str:
    """A key that is equal for faults of the same class, message (numbers ignored) and last completed step.

    The step is used as reported. A script without absolute steps has another count in the first round after a resume,
    and the same count in the rounds after that.
    """
    if (fault.cls, fault.detail) == FAILED_COLLECTIVE:
        text = ""
    else:
        text = fault.summary.partition(":")[0] if is_cut(fault) else _NUMBERS.sub("#", fault.summary)
    return f"{fault.cls}/{fault.detail}/{text}@{fault.step}"


def is_same(key: str, before: str) -> bool:
    """Whether a fault repeats the one before it: at the same step, or before any step was completed since.

    Args:
        key: ``fault_key`` of the fault.
        before: ``fault_key`` of the fault before it.
    """
    key, before = _VARYING_PARTS.sub("", key), _VARYING_PARTS.sub("", before)
    return key == before or (key.endswith("@None") and key.removesuffix("None") == before[: before.rfind("@") + 1])

"""How faults are counted: which are the same one come again, and which are no fault of a node."""

import re

from ftcore.events.incident import Fault

_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")

_WAY_OF_TELLING = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Z]\w*:)| \(reading .+\)(?=@\w+$)")
"""What differs between an exception that the worker reports and the same one in the traceback that Python prints:
the module of its class, and the file that was being read."""


OF_NO_NODE = ("user-code", "config-env", "oom-gpu", "numeric")
"""Classes of the taxonomy whose cause is the script or the data: they follow the job wherever it runs."""


UNREADABLE_FILE = ("storage", "checkpoint-file")
"""Before any step, this is a file that every node reads in vain."""


LINK_CUT = ("nccl-remote-error", "link-cut")
"""Its summary names the nodes, and behind a colon what shows it, which differs from time to time."""


def is_of_no_node(fault: Fault) -> bool:
    """Whether the cause is the script or its files: it follows the job wherever it runs."""
    return fault.cls in OF_NO_NODE or ((fault.cls, fault.detail) == UNREADABLE_FILE and fault.step is None)


def is_cut(fault: Fault) -> bool:
    """Whether it is that of nodes that cannot reach each other."""
    return (fault.cls, fault.detail) == LINK_CUT


def fault_key(fault: Fault) -> str:
    """A key that is equal for faults of one class, one message (numbers aside) and one last completed step.

    The step counts as it was reported: a script without absolute steps fails at another count in the first round after
    a resume, and from then on at the same one.
    """
    said = fault.summary.partition(":")[0] if is_cut(fault) else _NUMBERS.sub("#", fault.summary)
    return f"{fault.cls}/{fault.detail}/{said}@{fault.step}"


def is_same(key: str, before: str) -> bool:
    """Whether a fault is the one before it come again: at the same step, or before any step was completed since.

    Args:
        key: of the fault, as ``fault_key`` makes it.
        before: of the fault before it.
    """
    key, before = _WAY_OF_TELLING.sub("", key), _WAY_OF_TELLING.sub("", before)
    return key == before or (key.endswith("@None") and key.removesuffix("None") == before[: before.rfind("@") + 1])

"""The taxonomy of faults: what a class means, who is at fault, what is usually done.

The class names are those of the public corpus of error logs that the classifier is measured on; finer distinctions go
into a fault's ``detail``.
"""

from enum import StrEnum

import attrs


class FaultClass(StrEnum):
    """Classes of faults, and of requests, which take the same road."""

    USER_CODE = "user-code"
    CONFIG_ENV = "config-env"
    OOM_GPU = "oom-gpu"
    OOM_HOST = "oom-host"
    CUDA_STICKY = "cuda-sticky"
    GPU_HW = "gpu-hw"
    NCCL_TIMEOUT = "nccl-timeout"
    NCCL_REMOTE_ERROR = "nccl-remote-error"
    NUMERIC = "numeric"
    DATA_LOADER = "data-loader"
    HANG = "hang"
    STORAGE = "storage"
    SIGNAL_PREEMPTION = "signal-preemption"
    NETWORK_RENDEZVOUS = "network-rendezvous"
    COLLATERAL = "collateral"
    UNKNOWN = "unknown"
    NODE_LOST = "node-lost"
    REQUEST = "request"


@attrs.frozen
class ClassFacts:
    """What is known of a class.

    Args:
        meaning: one sentence.
        at_fault: ``process``, ``node``, ``user`` or ``nobody``.
        repeats: the same fault at the same step comes again after a restart, so a restart is no remedy.
        advice: what a person should look at.
    """

    meaning: str
    at_fault: str
    repeats: bool
    advice: str


F = FaultClass

CLASSES: dict[FaultClass, ClassFacts] = {
    F.USER_CODE: ClassFacts(
        "The script raised an exception or crashed.",
        "user",
        True,
        "fix the script where the traceback points, then run the job again: it resumes from its last checkpoint",
    ),
    F.CONFIG_ENV: ClassFacts(
        "Arguments, imports, files or drivers are not as the script needs them.",
        "user",
        True,
        "correct the command line or the environment that the message names",
    ),
    F.OOM_GPU: ClassFacts(
        "The accelerator's memory is used up.",
        "user",
        True,
        "use a smaller batch, activation checkpointing or more sharding",
    ),
    F.OOM_HOST: ClassFacts(
        "The host's memory is used up.",
        "process",
        False,
        "watch the host's memory, data loader workers first",
    ),
    F.STORAGE: ClassFacts(
        "A disk or file system failed, or is full.",
        "node",
        False,
        "free space or check the mount that the message names",
    ),
    F.SIGNAL_PREEMPTION: ClassFacts(
        "A process was ended from outside.",
        "process",
        False,
        "look for the sender: a time limit, the kernel's OOM killer (dmesg), an operator",
    ),
    F.NETWORK_RENDEZVOUS: ClassFacts(
        "The store or the rendezvous of a round was not to be reached.",
        "process",
        False,
        "check the network between the nodes and the first node's address",
    ),
    F.COLLATERAL: ClassFacts(
        "A rank ended only because another one did.",
        "nobody",
        False,
        "look at the rank that ended first",
    ),
    F.UNKNOWN: ClassFacts(
        "The evidence fits no class.",
        "process",
        False,
        "read the worker's log files; the report names them",
    ),
    F.NODE_LOST: ClassFacts(
        "A node's agent is gone or silent.",
        "node",
        False,
        "look at the node: power, kernel log, network",
    ),
    F.CUDA_STICKY: ClassFacts(
        "A CUDA context was lost: illegal access, device assert, launch failure.",
        "process",
        True,
        "run with CUDA_LAUNCH_BLOCKING=1 to find the kernel; if it moves with the node, suspect the device",
    ),
    F.GPU_HW: ClassFacts(
        "A device, its memory or its links failed.",
        "node",
        False,
        "drain the node and run the vendor's diagnostics on it",
    ),
    F.NCCL_TIMEOUT: ClassFacts(
        "A collective waited too long for somebody.",
        "process",
        False,
        "look for the rank that never came to the collective",
    ),
    F.NCCL_REMOTE_ERROR: ClassFacts(
        "A peer or the link to it was lost.",
        "node",
        False,
        "check the links; NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 ride out short outages",
    ),
    F.NUMERIC: ClassFacts(
        "Loss or gradients are not finite, or spiked.",
        "user",
        False,
        "go back before the spike and skip its data; watch the learning rate",
    ),
    F.DATA_LOADER: ClassFacts(
        "A data loader's worker died, or its shared memory is full.",
        "process",
        False,
        "fewer data loader workers, or a larger /dev/shm",
    ),
    F.HANG: ClassFacts(
        "No progress, or much too slow.",
        "process",
        False,
        "read the stacks of the ranks that stand still",
    ),
    F.REQUEST: ClassFacts("Somebody asked for it.", "nobody", False, "nothing to repair"),
}
"""Every class has an entry; a test says so."""

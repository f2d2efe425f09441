"""The taxonomy of faults: for each class its meaning, what is at fault, and the usual action.

The names of classes and actions are those of the public corpus of error logs that measures the classifier. Finer
distinctions are a fault's ``detail``; a rule states its action where it differs from that of its class.
"""

from enum import StrEnum
from typing import Literal

import msgspec


class FaultClass(StrEnum):
    """Classes of faults, and of requests, which are handled in the same way."""

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


class Remedy(StrEnum):
    """The usual action for a fault; the policy chain decides which policy does it, and whether it can."""

    RETRY_IN_PLACE = "retry-in-place"
    """Compute the step again in the running processes."""
    RESTART_PROCESSES = "restart-processes"
    """Stop and start the workers on the same nodes."""
    REPLACE_NODE = "replace-node"
    """Replace the node by another one."""
    SHRINK = "shrink"
    """Continue with fewer nodes."""
    STOP_AND_REPORT = "stop-and-report"
    """Stop the job and report to an operator: a retry will not help."""
    ROLLBACK_SKIP_DATA = "rollback-skip-data"
    """Roll back to an older checkpoint and skip the data that followed."""
    WAIT = "wait"
    """Do nothing, or wait for the scheduler."""
    NONE = "none"
    """No recommendation: no fault was found, or the evidence does not identify it."""


class Severity(StrEnum):
    """The cost of a fault when the usual action is taken."""

    NOTICE = "notice"
    """No cost: the training continues."""
    RESTART = "restart"
    """The steps since the last checkpoint, and a restart."""
    NODE = "node"
    """A restart as above, and a node until it is repaired."""
    STOP = "stop"
    """The job is stopped until an operator has changed something."""


class ClassFacts(msgspec.Struct, frozen=True):
    """Facts of a class.

    Args:
        meaning: one sentence.
        at_fault: ``process``, ``node``, ``data``, ``user`` or ``none``.
        repeats: a restart does not help: the same fault occurs again at the same step.
        advice: what an operator should check; the last part of a stopped job's reason.
        causes: the usual causes.
        severity: its cost.
        action: the usual action.
        title: its name in messages, if the class would be misleading; empty: the class.
    """

    meaning: str
    at_fault: Literal["process", "node", "data", "user", "none"]
    repeats: bool
    advice: str
    causes: str
    severity: Severity
    action: Remedy
    title: str = ""


F = FaultClass
S = Severity
A = Remedy

UNREADABLE_FILE = (FaultClass.STORAGE, "checkpoint-file")
"""Class and detail of a corrupt or incomplete file."""

UNREADABLE = ClassFacts(
    "A file that the script reads at its start, such as a checkpoint, cannot be read.",
    "data",
    True,
    "restore the file, or remove it if the script resumes from an older one; then run the same command again",
    "a disk that was full when the file was written; a writer that was killed; a file truncated by a copy",
    Severity.STOP,
    Remedy.STOP_AND_REPORT,
)
"""Facts of ``storage: checkpoint-file`` before any step: reading the file fails in the same way on any node."""

LINK_CUT = (FaultClass.NCCL_REMOTE_ERROR, "link-cut")
"""Class and detail of nodes that cannot reach each other."""

CUT = ClassFacts(
    "Two nodes cannot reach each other, but both reach the master.",
    "node",
    False,
    "check the network path between the two nodes: cables, switch ports, routes, and changed firewall rules",
    "a cable or a switch port; a changed route or firewall rule; one link of a bond that drops packets",
    Severity.NODE,
    Remedy.REPLACE_NODE,
)
"""Facts of ``nccl-remote-error: link-cut``."""

SLOW = ClassFacts(
    "A rank works longer on each step than its peers, which wait for it.",
    "node",
    False,
    "compare the slow node's clocks, temperature, other processes and data path with another node's; if it stays slow, "
    "replace it: ftctl evict, or evict_straggler in the policy file",
    "throttling by heat or power; another process on the node; slow storage or data loading; a degraded device",
    Severity.NOTICE,
    Remedy.REPLACE_NODE,
    title="slow node",
)
"""Facts of ``hang: straggler``."""

SLOWER = ClassFacts(
    "All ranks together take longer for a step than before.",
    "none",
    False,
    "compare what changed: length of the batches, clocks and temperature of all nodes, storage and network shared with "
    "other jobs; if the batches became longer, nothing is wrong",
    "longer batches; power or heat limits of the room; shared storage or network in use by others; a memory leak",
    Severity.NOTICE,
    Remedy.WAIT,
    title="slow job",
)
"""Facts of ``hang: slowdown``."""

MAINTAINED = ClassFacts(
    "The platform works on a node's machine, and the node continues afterwards.",
    "none",
    False,
    "look at the platform's announcement; step_pause in the policy file pauses the training meanwhile",
    "a live migration; an update of firmware or of the host",
    Severity.NOTICE,
    Remedy.WAIT,
    title="maintenance",
)
"""Facts of ``signal-preemption: maintenance-notice``."""

AWAY = ClassFacts(
    "The storage refuses checkpoints; the copies in memory stay, and are written once it is back.",
    "none",
    False,
    "free space or check the mount that the message names",
    "a full disk or quota; a disconnected network file system; an object store that does not answer",
    Severity.NOTICE,
    Remedy.WAIT,
    title="storage away",
)
"""Facts of ``storage: storage-away``."""

KILLED = ClassFacts(
    "A process was killed by SIGKILL, which does not name its sender.",
    "process",
    False,
    "find the sender of SIGKILL: the OOM killer (dmesg; the memory limit of the container), a preemption or time limit "
    "of the scheduler, an operator",
    "the OOM killer; a preemption, a time limit or a reclaimed spot instance; an operator",
    Severity.RESTART,
    Remedy.RESTART_PROCESSES,
    title="external signal",
)
"""Facts of ``signal-preemption: sigkill``."""

CLASSES: dict[FaultClass, ClassFacts] = {
    F.USER_CODE: ClassFacts(
        "The script raised an exception or crashed.",
        "user",
        True,
        "fix the script where the traceback points, then run the job again: it resumes from its last checkpoint",
        "a bug; shapes or keys that do not match; a branch that not all ranks take; a crash in an extension",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.CONFIG_ENV: ClassFacts(
        "Arguments, imports, files or drivers do not meet the script's requirements.",
        "user",
        True,
        "correct the command line or the environment that the message names",
        "a missing package or library; a driver older than CUDA; a port in use; two ranks on one device; no permission",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.OOM_GPU: ClassFacts(
        "The accelerator is out of memory.",
        "user",
        True,
        "use a smaller batch, activation checkpointing or more sharding",
        "model, batch or sequence too large; a leak; fragmentation; another process on the device",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.OOM_HOST: ClassFacts(
        "The host is out of memory.",
        "process",
        False,
        "monitor the host's memory, that of data loader workers first",
        "a leak in data loading; a checkpoint gathered on one rank; a container's limit set too low",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.STORAGE: ClassFacts(
        "A disk or file system failed, or is full.",
        "node",
        False,
        "free space or check the mount that the message names",
        "a full disk or quota; a disconnected network file system; a file truncated when its writer was killed",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.SIGNAL_PREEMPTION: ClassFacts(
        "A process was ended by an external signal.",
        "process",
        False,
        "look for the sender: a time limit, the kernel's OOM killer (dmesg), an operator",
        "a time limit; a pod or job of higher priority; a reclaimed spot instance; the OOM killer; an operator",
        S.RESTART,
        A.WAIT,
    ),
    F.NETWORK_RENDEZVOUS: ClassFacts(
        "The store or the rendezvous of a round was not reachable.",
        "process",
        False,
        "check the network between the nodes and the first node's address",
        "a node that never joined; several network cards; a firewall; a port of another job; a name that does not "
        "resolve",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.COLLATERAL: ClassFacts(
        "A rank ended only because another rank had ended.",
        "none",
        False,
        "look at the rank that ended first",
        "the end of a peer: a closed connection, a lost store, the agent's SIGTERM",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.UNKNOWN: ClassFacts(
        "The evidence fits no class.",
        "process",
        False,
        "read the worker's log files; the report names them",
        "a process that ended without a message",
        S.RESTART,
        A.NONE,
    ),
    F.NODE_LOST: ClassFacts(
        "A node's agent has ended or sends no heartbeats.",
        "node",
        False,
        "check the node: power, kernel log, network",
        "power, kernel panic, network, a shutdown by the platform",
        S.NODE,
        A.REPLACE_NODE,
    ),
    F.CUDA_STICKY: ClassFacts(
        "A CUDA context was lost: illegal access, device assert, launch failure.",
        "process",
        True,
        "run with CUDA_LAUNCH_BLOCKING=1 to find the kernel; if the fault stays with one node, suspect the device",
        "an index out of range; a bug in a kernel or a library; rarely the device",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.GPU_HW: ClassFacts(
        "A device, its memory or its links failed.",
        "node",
        False,
        "drain the node and run the vendor's diagnostics on it",
        "memory errors; a card off the bus; NVLink or switch; firmware; power; heat",
        S.NODE,
        A.REPLACE_NODE,
    ),
    F.NCCL_TIMEOUT: ClassFacts(
        "A collective timed out waiting for a rank.",
        "process",
        False,
        "look for the rank that did not join the collective",
        "a rank that hangs, died or took another branch; unequal numbers of batches; a slow save on one rank; a link",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.NCCL_REMOTE_ERROR: ClassFacts(
        "A peer or the link to it was lost.",
        "node",
        False,
        "check the links; NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 tolerate short outages",
        "a cable, a port or a switch; a flapping link; a peer that died; GPUDirect without its kernel module",
        S.NODE,
        A.REPLACE_NODE,
    ),
    F.NUMERIC: ClassFacts(
        "Loss or gradients are not finite, or spiked.",
        "data",
        False,
        "roll back to before the spike and skip its data; check the learning rate and the loss scale",
        "bad batches; a learning rate too high; half precision that overflows; rarely a device that computes wrongly",
        S.RESTART,
        A.ROLLBACK_SKIP_DATA,
    ),
    F.DATA_LOADER: ClassFacts(
        "A data loader's worker died, or its shared memory is full.",
        "process",
        False,
        "use fewer data loader workers, or a larger /dev/shm",
        "shared memory too small; the worker ran out of memory; a crash in a decoder",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.HANG: ClassFacts(
        "No progress, or far slower than usual.",
        "process",
        False,
        "read the stacks of the ranks that make no progress",
        "a deadlock; a rank in another collective than the rest; a file system that stalls; a slow device or link",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.REQUEST: ClassFacts(
        "An operator requested it.", "none", False, "nothing to repair", "an operator", S.NOTICE, A.WAIT
    ),
}
"""Every class has an entry, held by a test."""


DISRUPTIONS = {"maintenance-notice": F.SIGNAL_PREEMPTION, "storage-away": F.STORAGE}
"""The classes of disruptions, by kind."""

DETAILS: dict[tuple[str, str], ClassFacts] = {
    LINK_CUT: CUT,
    (F.HANG, "straggler"): SLOW,
    (F.HANG, "slowdown"): SLOWER,
    (F.SIGNAL_PREEMPTION, "sigkill"): KILLED,
    (F.SIGNAL_PREEMPTION, "maintenance-notice"): MAINTAINED,
    (F.STORAGE, "storage-away"): AWAY,
    **{
        (F.SIGNAL_PREEMPTION, name): msgspec.structs.replace(CLASSES[F.SIGNAL_PREEMPTION], title="external signal")
        for name in ("sigterm", "sigint", "sighup")
    },
}
"""Facts of details that differ from those of their class."""


def suspects_node(cls: FaultClass) -> bool:
    """Whether a fault of this class makes the machine suspect, unless the evidence says otherwise."""
    return CLASSES[cls].action is Remedy.REPLACE_NODE


_INTERFACE = "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the interface"
_MASTER = f"MASTER_ADDR and MASTER_PORT; {_INTERFACE}"
_NCCL_WAIT = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 ends ranks that would wait for ever; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 record each rank's collectives; init_process_group(timeout=) if the wait is expected"
)
_IB = "NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 tolerate short outages"
_LOADER = "num_workers, prefetch_factor and pin_memory of the DataLoader"
_SHM = "docker --shm-size, or an emptyDir of medium Memory at /dev/shm; num_workers of the DataLoader"
_DIAGNOSE = "dcgmi diag -r 3; a device that fails again after a reset goes back to its vendor"
_STACKS = "py-spy dump shows the stacks; TORCH_NCCL_ASYNC_ERROR_HANDLING=1 and a timeout end a wait in a collective"

SETTINGS: dict[FaultClass, dict[str, str]] = {
    F.CONFIG_ENV: {
        "nccl-set-up": f"{_INTERFACE}; NCCL_DEBUG=INFO shows what NCCL chose",
        "nccl-usage": "torch.cuda.set_device(LOCAL_RANK) before the process group is created; CUDA_VISIBLE_DEVICES",
        "ofi": "FI_PROVIDER names the provider; NCCL_DEBUG=INFO shows what NCCL chose",
        "ucx": "UCX_TLS names the transports; NCCL_DEBUG=INFO shows what NCCL chose",
        "memlock": "ulimit -l unlimited, or docker --ulimit memlock=-1",
        "limits": "ulimit -n and -u, or docker --ulimit nofile and --pids-limit",
        "no-device": "CUDA_VISIBLE_DEVICES; docker --gpus, or the pod's limit nvidia.com/gpu",
        "port-taken": "MASTER_PORT; --rdzv-endpoint HOST:0 takes a free port",
    },
    F.OOM_GPU: {
        "allocation": "if a small request fails with much memory free, memory is fragmented: "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    },
    F.OOM_HOST: {
        "pinned": "pin_memory and prefetch_factor of the DataLoader",
        "container": f"the container's memory limit; {_LOADER}",
        "pod": f"the container's memory limit; {_LOADER}",
        "slurm": f"sbatch --mem; {_LOADER}",
        "host": _LOADER,
        "allocation": _LOADER,
    },
    F.STORAGE: {"full": "keep fewer checkpoints"},
    F.SIGNAL_PREEMPTION: {
        "time-limit": "sbatch --signal sends a signal before the time limit and leaves time to save",
        "preempted": "sbatch --requeue starts the job again",
    },
    F.NETWORK_RENDEZVOUS: {
        **dict.fromkeys(("unreachable", "rendezvous", "ranks-missing", "store-timeout", "address"), _MASTER),
        "name-resolution": "set MASTER_ADDR to an address, not a name",
    },
    F.GPU_HW: {
        "": _DIAGNOSE,
        **dict.fromkeys(("host-hardware", "host-hardware-early"), "rasdaemon or mcelog; ipmitool sel list"),
        "heat-or-power": "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    },
    F.NCCL_TIMEOUT: {"": _NCCL_WAIT, "barrier": "init_process_group(timeout=) if the wait is expected"},
    F.NCCL_REMOTE_ERROR: {
        **dict.fromkeys(("ib-link", "link", "link-event"), _IB),
        "system-error": "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 ends the ranks that would wait; NCCL_DEBUG=INFO",
    },
    F.DATA_LOADER: {
        "shared-memory": _SHM,
        "sigbus": _SHM,
        "worker-killed": _LOADER,
        "stalled": "num_workers, prefetch_factor and timeout of the DataLoader",
    },
    F.HANG: dict.fromkeys(("stacks", "no-progress", "watchdog-stuck"), _STACKS),
}
"""Settings that may help, by class and detail; the empty detail is for all details not listed."""


def settings_for(cls: FaultClass, detail: str) -> str:
    """Settings that may help against a fault; empty if none is known."""
    named = SETTINGS.get(cls, {})
    return named.get(detail, named.get("", ""))


def title_of(cls: str, detail: str) -> str:
    """The name of a fault in messages: its title, else its class."""
    facts = DETAILS.get((cls, detail))
    return facts.title if facts is not None and facts.title else cls


def facts_of(cls: FaultClass, detail: str = "", step: int | None = None) -> ClassFacts:
    """Facts of a fault: those of its class, unless its detail has its own.

    Args:
        cls: its class.
        detail: the finer distinction.
        step: the last step completed before it; None: no step was completed.
    """
    if (cls, detail) == UNREADABLE_FILE and step is None:
        return UNREADABLE
    return DETAILS.get((cls, detail), CLASSES[cls])

"""The taxonomy of faults: what a class means, who is at fault, what is usually done.

The class and action names are those of the public corpus of error logs that the classifier is measured on; finer
distinctions go into a fault's ``detail``, and a rule whose detail calls for another action than its class says so.
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


class Action(StrEnum):
    """What is usually done about a fault; which policy does it, and whether it can, is the chain's matter."""

    RETRY_IN_PLACE = "retry-in-place"
    """Do the step again in the processes that live."""
    RESTART_PROCESSES = "restart-processes"
    """Stop and start the workers where they are."""
    REPLACE_NODE = "replace-node"
    """Take the node out of the job and another one in."""
    SHRINK = "shrink"
    """Go on with fewer nodes."""
    STOP_AND_REPORT = "stop-and-report"
    """Tell a person: doing it again will not help."""
    ROLLBACK_SKIP_DATA = "rollback-skip-data"
    """Go back to an older checkpoint and leave out the data that followed."""
    WAIT = "wait"
    """Do nothing, or wait for the scheduler."""
    NONE = "none"
    """Nothing can be recommended: no fault was found, or the evidence does not say which one."""


class Severity(StrEnum):
    """What a fault costs if nobody does more than is recommended."""

    NOTICE = "notice"
    """The training goes on."""
    RESTART = "restart"
    """The steps since the last checkpoint, and a restart."""
    NODE = "node"
    """That, and a node until it is repaired."""
    STOP = "stop"
    """The job stands until a person has changed something."""


@attrs.frozen
class ClassFacts:
    """What is known of a class.

    Args:
        meaning: one sentence.
        at_fault: ``process``, ``node``, ``data``, ``user`` or ``nobody``.
        repeats: the same fault at the same step comes again after a restart, so a restart is no remedy.
        advice: what a person should look at; it ends the reason of a job that stops.
        causes: what is usually behind it.
        severity: what it costs.
        action: what is usually done.
    """

    meaning: str
    at_fault: str
    repeats: bool
    advice: str
    causes: str
    severity: Severity
    action: Action


F = FaultClass
S = Severity
A = Action

UNREADABLE_FILE = (FaultClass.STORAGE, "checkpoint-file")
"""Class and detail of a file that is not whole."""

UNREADABLE = ClassFacts(
    "A file that the script reads at its start, as a checkpoint, cannot be read.",
    "data",
    True,
    "restore the file, or remove it if the script resumes from an older one; then run the same command again",
    "a disk that was full when the file was written; a writer that was killed; a file cut short when it was copied",
    Severity.STOP,
    Action.STOP_AND_REPORT,
)
"""Facts of ``storage: checkpoint-file`` before any step: reading the file again on any node gives the same."""

LINK_CUT = (FaultClass.NCCL_REMOTE_ERROR, "link-cut")
"""Class and detail of nodes that cannot reach each other."""

CUT = ClassFacts(
    "Two nodes cannot reach each other, and both reach the master.",
    "node",
    False,
    "look at the way between the two nodes: cables, switch ports, routes, and firewall rules that were changed",
    "a cable or a switch port; a route or a firewall rule that was changed; one link of a bond that drops packets",
    Severity.NODE,
    Action.REPLACE_NODE,
)
"""Facts of ``nccl-remote-error: link-cut``."""

CLASSES: dict[FaultClass, ClassFacts] = {
    F.USER_CODE: ClassFacts(
        "The script raised an exception or crashed.",
        "user",
        True,
        "fix the script where the traceback points, then run the job again: it resumes from its last checkpoint",
        "a bug; shapes or keys that do not fit; a branch that not all ranks take; a crash in an extension",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.CONFIG_ENV: ClassFacts(
        "Arguments, imports, files or drivers are not as the script needs them.",
        "user",
        True,
        "correct the command line or the environment that the message names",
        "a missing package or library; a driver older than CUDA; a port taken; two ranks on one device; no permission",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.OOM_GPU: ClassFacts(
        "The accelerator's memory is used up.",
        "user",
        True,
        "use a smaller batch, activation checkpointing or more sharding",
        "model, batch or sequence too large; a leak; fragmentation; another process on the device",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.OOM_HOST: ClassFacts(
        "The host's memory is used up.",
        "process",
        False,
        "watch the host's memory, data loader workers first",
        "a leak in data loading; a checkpoint gathered on one rank; a container's limit set too low",
        S.STOP,
        A.STOP_AND_REPORT,
    ),
    F.STORAGE: ClassFacts(
        "A disk or file system failed, or is full.",
        "node",
        False,
        "free space or check the mount that the message names",
        "a full disk or quota; a network file system that went away; a file cut short when its writer was killed",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.SIGNAL_PREEMPTION: ClassFacts(
        "A process was ended from outside.",
        "process",
        False,
        "look for the sender: a time limit, the kernel's OOM killer (dmesg), an operator",
        "a time limit; a pod or job of higher priority; a spot instance taken back; the OOM killer; an operator",
        S.RESTART,
        A.WAIT,
    ),
    F.NETWORK_RENDEZVOUS: ClassFacts(
        "The store or the rendezvous of a round was not to be reached.",
        "process",
        False,
        "check the network between the nodes and the first node's address",
        "a node that never came; several network cards; a firewall; a port of another job; a name that does not "
        "resolve",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.COLLATERAL: ClassFacts(
        "A rank ended only because another one did.",
        "nobody",
        False,
        "look at the rank that ended first",
        "the end of a peer: a connection that closes, a store that is gone, the agent's SIGTERM",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.UNKNOWN: ClassFacts(
        "The evidence fits no class.",
        "process",
        False,
        "read the worker's log files; the report names them",
        "a process that ended without a word",
        S.RESTART,
        A.NONE,
    ),
    F.NODE_LOST: ClassFacts(
        "A node's agent is gone or silent.",
        "node",
        False,
        "look at the node: power, kernel log, network",
        "power, kernel panic, network, the platform's own shutdown",
        S.NODE,
        A.REPLACE_NODE,
    ),
    F.CUDA_STICKY: ClassFacts(
        "A CUDA context was lost: illegal access, device assert, launch failure.",
        "process",
        True,
        "run with CUDA_LAUNCH_BLOCKING=1 to find the kernel; if it moves with the node, suspect the device",
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
        "A collective waited too long for somebody.",
        "process",
        False,
        "look for the rank that never came to the collective",
        "a rank that hangs, died or took another branch; unlike numbers of batches; a slow save on one rank; a link",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.NCCL_REMOTE_ERROR: ClassFacts(
        "A peer or the link to it was lost.",
        "node",
        False,
        "check the links; NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 ride out short outages",
        "a cable, a port or a switch; a flapping link; a peer that died; GPUDirect without its kernel module",
        S.NODE,
        A.REPLACE_NODE,
    ),
    F.NUMERIC: ClassFacts(
        "Loss or gradients are not finite, or spiked.",
        "data",
        False,
        "go back before the spike and skip its data; watch the learning rate and the loss scale",
        "odd batches; a learning rate too high; half precision that overflows; rarely a device that computes wrongly",
        S.RESTART,
        A.ROLLBACK_SKIP_DATA,
    ),
    F.DATA_LOADER: ClassFacts(
        "A data loader's worker died, or its shared memory is full.",
        "process",
        False,
        "fewer data loader workers, or a larger /dev/shm",
        "shared memory too small; the worker ran out of memory; a crash in a decoder",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.HANG: ClassFacts(
        "No progress, or much too slow.",
        "process",
        False,
        "read the stacks of the ranks that stand still",
        "a deadlock; a rank in another collective than the rest; a file system that stalls; a slow device or link",
        S.RESTART,
        A.RESTART_PROCESSES,
    ),
    F.REQUEST: ClassFacts(
        "Somebody asked for it.", "nobody", False, "nothing to repair", "an operator", S.NOTICE, A.WAIT
    ),
}
"""Every class has an entry; a test says so."""


def suspects_node(cls: FaultClass) -> bool:
    """Whether a fault of this class speaks against the machine, if the evidence says nothing else."""
    return CLASSES[cls].action is Action.REPLACE_NODE


_INTERFACE = "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name the interface"
_MASTER = f"MASTER_ADDR and MASTER_PORT; {_INTERFACE}"
_NCCL_WAIT = (
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1 ends ranks that would wait for ever; TORCH_NCCL_TRACE_BUFFER_SIZE=2000 and "
    "TORCH_NCCL_DUMP_ON_TIMEOUT=1 write down who was where; init_process_group(timeout=) if the wait is lawful"
)
_IB = "NCCL_IB_TIMEOUT=22 and NCCL_IB_RETRY_CNT=7 ride out short outages"
_LOADER = "num_workers, prefetch_factor and pin_memory of the DataLoader"
_SHM = "docker --shm-size, or an emptyDir of medium Memory at /dev/shm; num_workers of the DataLoader"
_DIAGNOSE = "dcgmi diag -r 3; a device that fails again after a reset goes back to its vendor"
_STACKS = "py-spy dump shows the stacks; TORCH_NCCL_ASYNC_ERROR_HANDLING=1 and a timeout end a wait in a collective"

SETTINGS: dict[FaultClass, dict[str, str]] = {
    F.CONFIG_ENV: {
        "nccl-set-up": f"{_INTERFACE}; NCCL_DEBUG=INFO shows what NCCL chose",
        "nccl-usage": "torch.cuda.set_device(LOCAL_RANK) before the group is made; CUDA_VISIBLE_DEVICES",
        "ofi": "FI_PROVIDER names the provider; NCCL_DEBUG=INFO shows what NCCL chose",
        "ucx": "UCX_TLS names the transports; NCCL_DEBUG=INFO shows what NCCL chose",
        "memlock": "ulimit -l unlimited, or docker --ulimit memlock=-1",
        "limits": "ulimit -n and -u, or docker --ulimit nofile and --pids-limit",
        "no-device": "CUDA_VISIBLE_DEVICES; docker --gpus, or the pod's limit nvidia.com/gpu",
        "port-taken": "MASTER_PORT; --rdzv-endpoint HOST:0 takes a free port",
    },
    F.OOM_GPU: {
        "allocation": "much memory free at a small request is fragmentation: "
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
        "time-limit": "sbatch --signal sends a signal ahead of the time limit and leaves time to save",
        "preempted": "sbatch --requeue starts it again",
    },
    F.NETWORK_RENDEZVOUS: {
        **dict.fromkeys(("unreachable", "rendezvous", "ranks-missing", "store-timeout", "address"), _MASTER),
        "name-resolution": "MASTER_ADDR as an address, not as a name",
    },
    F.GPU_HW: {
        "": _DIAGNOSE,
        **dict.fromkeys(("host-hardware", "host-hardware-early"), "rasdaemon or mcelog; ipmitool sel list"),
        "heat-or-power": "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    },
    F.NCCL_TIMEOUT: {"": _NCCL_WAIT, "barrier": "init_process_group(timeout=) if the wait is lawful"},
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
"""The settings that operators reach for, by class and detail; the empty detail stands for all that are not named."""


def settings_for(cls: FaultClass, detail: str) -> str:
    """The settings that operators reach for at a fault; empty if none is known to help."""
    named = SETTINGS.get(cls, {})
    return named.get(detail, named.get("", ""))


def facts_of(cls: FaultClass, detail: str = "", step: int | None = None) -> ClassFacts:
    """What is known of a fault: of its class, unless its detail says more.

    Args:
        cls: its class.
        detail: the finer distinction.
        step: the last step completed before it; None: none was.
    """
    if (cls, detail) == LINK_CUT:
        return CUT
    return UNREADABLE if (cls, detail) == UNREADABLE_FILE and step is None else CLASSES[cls]

"""What the engine gets to see of a fault: the facts that an agent, a detector or the master would state.

The simulator never tells the engine what is wrong. It knows the kind of a fault; the engine gets the exit code, the
words and the silence that such a fault leaves behind in production, and has to make of them what it can.

House rules: the texts are such as the libraries in question print; a kind that the classifier misreads is simulated
with the decision that follows from the misreading, because so it would happen.
"""

from typing import TypeAlias

import attrs

from ftcore.events.node import NodeLeft, NodeLost
from ftcore.events.worker import FaultObserved, WorkerError, WorkerFailed

JOIN = "@join"
"""A node comes, in a fleet whose nodes come and go by a trace alone."""

PREEMPTED = "preempted"
KILLED = "killed"


@attrs.frozen(kw_only=True)
class Kind:
    """A kind of fault.

    Args:
        shows: how it is noticed, a name of ``cost.DETECTIONS``: ``crash`` (a process ends), ``lost`` (an agent falls
            silent), ``left`` (an agent says goodbye), ``timeout`` (a collective gives up), ``hang`` (no progress),
            ``spike`` or ``slow`` (training goes on, worse).
        doc: one line.
        node: the machine is gone, whatever is restarted on it.
        device: the machine may stay bad: then its workers fail again whenever they start on it.
        exitcode: of the process that ends.
        message: the exception that its error file holds.
        tail: its last output.
        observed: ``kind`` of the ``fault.observed``, for what ends no process.
        values: its figures.
        speed: of the whole job while it is in force.
    """

    shows: str
    doc: str
    node: bool = False
    device: bool = False
    exitcode: int = 1
    message: str = ""
    tail: str = ""
    observed: str = ""
    values: dict[str, float] = attrs.field(factory=dict)
    speed: float = 1.0


_XID = "kernel: NVRM: Xid (PCI:0000:3b:00): "

KINDS: dict[str, Kind] = {
    KILLED: Kind(shows="crash", doc="A process is killed from outside.", exitcode=-9),
    "crash": Kind(
        shows="crash",
        doc="A process crashes for once: a bug of a library.",
        exitcode=-11,
        tail="Fatal Python error: Segmentation fault",
    ),
    "software": Kind(
        shows="crash",
        doc="An exception of the software that does not come again.",
        message="RuntimeError: CUDA error: initialization error",
    ),
    "gpu": Kind(
        shows="crash",
        doc="A device falls off the bus.",
        device=True,
        message="torch.AcceleratorError: CUDA error: unknown error",
        tail=f"{_XID}79, pid=4121, name=python, GPU has fallen off the bus.",
    ),
    "nvlink": Kind(
        shows="crash",
        doc="A link between devices fails.",
        device=True,
        exitcode=-6,
        message="torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
    ),
    "gpu-memory": Kind(
        shows="crash",
        doc="A device's memory fails beyond correction.",
        device=True,
        message="torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        tail=f"{_XID}48, pid=4121, name=python, DBE (double bit error) on partition 3",
    ),
    "gpu-processor": Kind(
        shows="crash",
        doc="A device's system processor stops answering.",
        device=True,
        message="torch.AcceleratorError: CUDA error: unspecified launch failure",
        tail=f"{_XID}119, pid=4121, name=python, Timeout waiting for RPC from GSP! Expected function 76",
    ),
    "network": Kind(
        shows="crash",
        doc="A port of the fabric fails.",
        device=True,
        message="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited or "
        "there was a network error, NCCL version 2.21.5; ncclRemoteError",
        tail="NET/IB : Got async event : port error",
    ),
    "host": Kind(shows="lost", doc="A host dies: power, board, kernel.", node=True),
    "maintenance": Kind(shows="left", doc="A host is taken away for maintenance.", node=True),
    PREEMPTED: Kind(shows="lost", doc="A host is taken back by its owner.", node=True),
    "oom": Kind(
        shows="crash",
        doc="The kernel ends a process for want of memory.",
        exitcode=-9,
        tail="Memory cgroup out of memory: Killed process 4121 (python) total-vm:91423984kB, anon-rss:67108864kB",
    ),
    "storage": Kind(
        shows="crash",
        doc="A file system does not answer.",
        message="OSError: [Errno 5] Input/output error: '/data/shard-00017.bin'",
    ),
    "nccl-timeout": Kind(
        shows="timeout",
        doc="A collective waits too long, cause unknown.",
        exitcode=-6,
        tail="[rank3]:[E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=81213, OpType=ALLREDUCE, NumelIn=4194304, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out.",
    ),
    "hang": Kind(shows="hang", doc="No rank makes progress any more.", observed="hang"),
    "corruption": Kind(shows="spike", doc="A device computes wrongly, silently.", device=True, observed="loss-nan"),
    "loss-spike": Kind(
        shows="spike",
        doc="The loss spikes.",
        observed="loss-spike",
        values={"value": 9.1, "median": 2.4, "score": 14.0},
    ),
    "straggler": Kind(
        shows="slow",
        doc="One node computes slowly, and all wait for it.",
        device=True,
        observed="straggler",
        values={"ratio": 1.25},
        speed=0.8,
    ),
    "uce": Kind(
        shows="crash",
        doc="A worker meets a memory error and reports it before it ends.",
        observed="uce",
    ),
    JOIN: Kind(shows="join", doc="A node comes (traces of fleets)."),
}
"""Every kind of fault that can be simulated, by name."""

Said: TypeAlias = WorkerFailed | FaultObserved | NodeLost | NodeLeft


def fact_of(
    kind: Kind,
    *,
    node: str,
    incarnation: str,
    round_: int,
    rank: int,
    local_rank: int,
    step: int | None,
) -> Said:
    """The fact by which a fault is told.

    Args:
        kind: what it is.
        node: the node that it happened to.
        incarnation: its agent's life.
        round_: the round of its workers.
        rank: the global rank that was hit.
        local_rank: its rank on the node.
        step: the last step completed, from the start of the training.
    """
    if kind.shows == "lost":
        return NodeLost(
            node=node, incarnation=incarnation, reason="no frame for 2 s", step=step, absolute=step is not None
        )
    if kind.shows == "left":
        return NodeLeft(node=node, incarnation=incarnation, reason="the host is taken down for maintenance")
    if kind.observed:
        return FaultObserved(
            node=node,
            incarnation=incarnation,
            round=round_,
            source="worker" if kind.observed == "uce" else "detector",
            kind=kind.observed,
            rank=rank,
            message=kind.doc,
            step=step,
            absolute=step is not None,
            values=kind.values,
        )
    return WorkerFailed(
        node=node,
        incarnation=incarnation,
        round=round_,
        rank=rank,
        local_rank=local_rank,
        pid=4121,
        exitcode=kind.exitcode,
        error=WorkerError(message=kind.message) if kind.message else None,
        tail=kind.tail,
        step=step,
        absolute=step is not None,
    )

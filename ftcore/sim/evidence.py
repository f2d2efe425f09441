"""Evidence of simulated faults: the facts that an agent, a detector or the master would report.

The simulator never gives the engine the kind of a fault, only the evidence that it leaves in production: exit codes,
messages, missing heartbeats.

The texts are those that the libraries print. A kind that the classifier misreads is simulated with the resulting wrong
decision, as in production.
"""

from typing import TypeAlias

import attrs

from ftcore.events.node import NodeLeft, NodeLost
from ftcore.events.worker import FaultObserved, WorkerError, WorkerFailed

JOIN = "@join"
"""A node joins, in a fleet whose nodes come and go only by a trace."""

PREEMPTED = "preempted"
KILLED = "killed"


@attrs.frozen(kw_only=True)
class FaultKind:
    """A kind of fault.

    Args:
        shows: how it is detected, a name of ``cost.DETECTIONS``: ``crash`` (a process ends), ``lost`` (an agent stops
            answering), ``left`` (an agent leaves), ``timeout`` (a collective times out), ``hang`` (no progress),
            ``spike`` or ``slow`` (training continues, but worse).
        doc: description, one line.
        node: the machine is lost.
        device: the machine may stay faulty: then workers on it fail again after every start.
        exitcode: exit code of the process.
        message: exception in its error file.
        tail: its last output.
        observed: ``kind`` of the ``fault.observed``, for a fault that ends no process.
        values: values of the ``fault.observed``.
        speed: relative speed of the whole job while the fault lasts.
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

KINDS: dict[str, FaultKind] = {
    KILLED: FaultKind(shows="crash", doc="A process is killed from outside.", exitcode=-9),
    "crash": FaultKind(
        shows="crash",
        doc="A process crashes once: a bug of a library.",
        exitcode=-11,
        tail="Fatal Python error: Segmentation fault",
    ),
    "software": FaultKind(
        shows="crash",
        doc="An exception of the software that does not recur.",
        message="RuntimeError: CUDA error: initialization error",
    ),
    "gpu": FaultKind(
        shows="crash",
        doc="A device falls off the bus.",
        device=True,
        message="torch.AcceleratorError: CUDA error: unknown error",
        tail=f"{_XID}79, pid=4121, name=python, GPU has fallen off the bus.",
    ),
    "nvlink": FaultKind(
        shows="crash",
        doc="A link between devices fails.",
        device=True,
        exitcode=-6,
        message="torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
    ),
    "gpu-memory": FaultKind(
        shows="crash",
        doc="A device's memory has an uncorrectable error.",
        device=True,
        message="torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        tail=f"{_XID}48, pid=4121, name=python, DBE (double bit error) on partition 3",
    ),
    "gpu-processor": FaultKind(
        shows="crash",
        doc="A device's system processor stops answering.",
        device=True,
        message="torch.AcceleratorError: CUDA error: unspecified launch failure",
        tail=f"{_XID}119, pid=4121, name=python, Timeout waiting for RPC from GSP! Expected function 76",
    ),
    "network": FaultKind(
        shows="crash",
        doc="A port of the fabric fails.",
        device=True,
        message="torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp, remote process exited or "
        "there was a network error, NCCL version 2.21.5; ncclRemoteError",
        tail="NET/IB : Got async event : port error",
    ),
    "host": FaultKind(shows="lost", doc="A host dies: power, board, kernel.", node=True),
    "maintenance": FaultKind(shows="left", doc="A host is taken down for maintenance.", node=True),
    PREEMPTED: FaultKind(shows="lost", doc="A host is preempted.", node=True),
    "oom": FaultKind(
        shows="crash",
        doc="The kernel kills a process for lack of memory.",
        exitcode=-9,
        tail="Memory cgroup out of memory: Killed process 4121 (python) total-vm:91423984kB, anon-rss:67108864kB",
    ),
    "storage": FaultKind(
        shows="crash",
        doc="A file system does not answer.",
        message="OSError: [Errno 5] Input/output error: '/data/shard-00017.bin'",
    ),
    "nccl-timeout": FaultKind(
        shows="timeout",
        doc="A collective times out, cause unknown.",
        exitcode=-6,
        tail="[rank3]:[E ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=81213, OpType=ALLREDUCE, NumelIn=4194304, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out.",
    ),
    "hang": FaultKind(shows="hang", doc="No rank makes progress.", observed="hang"),
    "corruption": FaultKind(shows="spike", doc="Silent data corruption by a device.", device=True, observed="loss-nan"),
    "loss-spike": FaultKind(
        shows="spike",
        doc="The loss spikes.",
        observed="loss-spike",
        values={"value": 9.1, "median": 2.4, "score": 14.0},
    ),
    "straggler": FaultKind(
        shows="slow",
        doc="One node computes slowly, and all others wait for it.",
        device=True,
        observed="straggler",
        values={"ratio": 1.25},
        speed=0.8,
    ),
    "uce": FaultKind(
        shows="crash",
        doc="A worker has an uncorrectable memory error and reports it.",
        observed="uce",
    ),
    "collective": FaultKind(
        shows="crash",
        doc="A collective fails once, and a worker reports it.",
        observed="collective",
    ),
    JOIN: FaultKind(shows="join", doc="A node joins (traces of fleets)."),
}
"""Every kind of fault that can be simulated, by name."""

Said: TypeAlias = WorkerFailed | FaultObserved | NodeLost | NodeLeft


def fact_of(
    kind: FaultKind,
    *,
    node: str,
    incarnation: str,
    round_: int,
    rank: int,
    local_rank: int,
    step: int | None,
) -> Said:
    """The fact that reports a fault.

    Args:
        kind: kind of fault.
        node: the affected node.
        incarnation: incarnation of its agent.
        round_: round of its workers.
        rank: the affected global rank.
        local_rank: its rank on the node.
        step: the last completed step, counted from the start of the training.
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
            source="worker" if kind.observed in ("uce", "collective", "norm") else "detector",
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

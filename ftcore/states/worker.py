"""The machine of a worker: one rank of one round on one node."""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class WorkerPhase(StrEnum):
    """Where a worker is."""

    STARTING = "starting"
    """Ordered; not yet known to run."""
    RUNNING = "running"
    """Its process runs."""
    PARKED = "parked"
    """It has left its round and waits with its state for the next one."""
    EXITED = "exited"
    """Its process is gone, or its node is."""


W = WorkerPhase
_GONE = "already gone"

WORKER = Machine(
    name="worker",
    doc="One rank of one round.",
    states=WorkerPhase,
    initial=W.STARTING,
    finals=(W.EXITED,),
    table=(
        Row("workers.started", W.STARTING, W.RUNNING),
        Row("order.obeyed/park_workers", W.RUNNING, W.PARKED),
        *(
            row
            for trigger in (
                "worker.failed",
                "workers.finished",
                "workers.stopped",
                "workers.unstartable",
                "node.left",
                "node.lost",
                "node.joined/again",
            )
            for row in rows(trigger, (W.STARTING, W.RUNNING, W.PARKED), W.EXITED)
        ),
    ),
    ignored=(
        Ignored("workers.started", (W.EXITED,), "it failed before its siblings had all started"),
        Ignored("order.obeyed/park_workers", (W.EXITED, W.PARKED), "its siblings are parked without it"),
        *(
            Ignored(trigger, (W.EXITED,), _GONE)
            for trigger in (
                "workers.finished",
                "workers.stopped",
                "workers.unstartable",
                "node.left",
                "node.lost",
                "node.joined/again",
            )
        ),
    ),
)

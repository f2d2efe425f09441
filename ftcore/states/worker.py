"""The machine of a worker: one rank of one round on one node."""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class WorkerPhase(StrEnum):
    """Phases of a worker."""

    STARTING = "starting"
    """Its start was ordered and is not confirmed yet."""
    RUNNING = "running"
    """Its process runs."""
    PARKED = "parked"
    """It has left its round and waits with its state for the next one."""
    EXITED = "exited"
    """Its process has ended, or its node left, was lost or was replaced."""


W = WorkerPhase
_EXITED = "already exited"
_ENDS = ("workers.finished", "workers.stopped", "workers.unstartable", "node.left", "node.lost", "node.joined/again")

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
            for trigger in ("worker.failed", *_ENDS)
            for row in rows(trigger, (W.STARTING, W.RUNNING, W.PARKED), W.EXITED)
        ),
    ),
    ignored=(
        Ignored("workers.started", (W.EXITED,), "it failed before all workers of its node had started"),
        Ignored("order.obeyed/park_workers", (W.EXITED, W.PARKED), "the other workers of its node are parked"),
        *(Ignored(trigger, (W.EXITED,), _EXITED) for trigger in _ENDS),
    ),
)

"""The machine of a worker: one rank of one round on one node."""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class WorkerPhase(StrEnum):
    """Where a worker is."""

    STARTING = "starting"
    """Ordered; not yet known to run."""
    RUNNING = "running"
    """Its process runs."""
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
            for row in rows(trigger, (W.STARTING, W.RUNNING), W.EXITED)
        ),
    ),
    ignored=(
        Ignored("workers.started", (W.EXITED,), "it failed before its siblings had all started"),
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

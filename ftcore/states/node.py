"""The machine of a node: one incarnation of an agent.

The agent runs these rows on its orders and its own facts and reports each transition; the fold of the log is the truth.
House rules: a fact of an older round than the node was last ordered to never reaches the machine (it is stale, not
strange), and neither does one of an older incarnation.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class NodePhase(StrEnum):
    """Where a node is."""

    STANDBY = "standby"
    """Connected; no workers."""
    STARTING = "starting"
    """Ordered to start its workers."""
    RUNNING = "running"
    """All its workers run."""
    FAULTED = "faulted"
    """A worker failed; others may still run."""
    STOPPING = "stopping"
    """Ordered to stop its workers."""
    FINISHED = "finished"
    """All its workers ended with code 0."""
    LEFT = "left"
    """Said goodbye."""
    LOST = "lost"
    """Not heard of for its lease."""
    REPLACED = "replaced"
    """A newer incarnation took its name."""


N = NodePhase
LIVING = (N.STANDBY, N.STARTING, N.RUNNING, N.FAULTED, N.STOPPING, N.FINISHED)
GONE = (N.LEFT, N.LOST, N.REPLACED)
ACTIVE = (N.STARTING, N.RUNNING, N.FAULTED, N.STOPPING)
"""States in which worker processes may exist."""

_CROSSED = "crossed the order to stop on the wire"
_ENDED = "a last word of an incarnation that is over"

NODE = Machine(
    name="node",
    doc="One incarnation of an agent, as the master knows it.",
    states=NodePhase,
    initial=N.STANDBY,
    finals=GONE,
    table=(
        *rows("action.ordered/start_workers", (N.STANDBY, N.FINISHED), N.STARTING),
        Row("workers.started", N.STARTING, N.RUNNING),
        *rows("worker.failed", (N.STARTING, N.RUNNING, N.FAULTED), N.FAULTED),
        Row("workers.unstartable", N.STARTING, N.FAULTED),
        *rows("workers.finished", (N.STARTING, N.RUNNING), N.FINISHED),
        *rows("action.ordered/stop_workers", (N.STARTING, N.RUNNING, N.FAULTED, N.FINISHED, N.STOPPING), N.STOPPING),
        *rows("workers.stopped", (N.STARTING, N.RUNNING, N.FAULTED, N.FINISHED, N.STOPPING), N.STANDBY),
        *rows("node.left", LIVING, N.LEFT),
        *rows("node.lost", LIVING, N.LOST),
        *rows("node.joined/again", LIVING, N.REPLACED),
    ),
    ignored=(
        Ignored("action.ordered/stop_workers", (N.STANDBY,), "nothing runs there; the agent answers at once"),
        Ignored("workers.stopped", (N.STANDBY,), "the answer to such an order, or a repeated one"),
        Ignored("workers.started", (N.STOPPING, N.RUNNING, N.FAULTED), _CROSSED),
        Ignored("worker.failed", (N.STOPPING, N.STANDBY), _CROSSED),
        Ignored("workers.unstartable", (N.STOPPING,), _CROSSED),
        Ignored("workers.finished", (N.STOPPING,), _CROSSED),
        Ignored("workers.stepped", LIVING, "progress, not a change of state"),
        *(
            Ignored(trigger, GONE, _ENDED)
            for trigger in (
                "workers.started",
                "worker.failed",
                "workers.unstartable",
                "workers.finished",
                "workers.stopped",
                "workers.stepped",
                "node.left",
                "node.lost",
                "node.joined/again",
            )
        ),
    ),
)

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
    CHECKING = "checking"
    """Checks its devices and links; no workers."""
    STARTING = "starting"
    """Ordered to start its workers."""
    RUNNING = "running"
    """All its workers run."""
    PAUSED = "paused"
    """All its workers wait at a step boundary."""
    PARKED = "parked"
    """Its workers have left their round and wait with their state for the next one."""
    FAULTED = "faulted"
    """A worker failed; others may still run."""
    STOPPING = "stopping"
    """Ordered to stop its workers."""
    FINISHED = "finished"
    """All its workers ended with code 0."""
    DRAINING = "draining"
    """Told to leave while the job goes on; it takes part in no further round."""
    QUARANTINED = "quarantined"
    """Not wanted in any round, in no incarnation."""
    LEFT = "left"
    """Said goodbye."""
    LOST = "lost"
    """Not heard of for its lease."""
    REPLACED = "replaced"
    """A newer incarnation took its name."""


N = NodePhase
OUTGOING = (N.DRAINING, N.QUARANTINED)
"""Alive, and in no world to come."""
LIVING = (
    N.STANDBY,
    N.CHECKING,
    N.STARTING,
    N.RUNNING,
    N.PAUSED,
    N.PARKED,
    N.FAULTED,
    N.STOPPING,
    N.FINISHED,
    *OUTGOING,
)
GONE = (N.LEFT, N.LOST, N.REPLACED)
ACTIVE = (N.STARTING, N.RUNNING, N.PAUSED, N.FAULTED, N.STOPPING)
"""States in which workers may take part in a round; none may be in one when the next round is formed."""
HOLDING = (*ACTIVE, N.PARKED)
"""States in which worker processes may exist."""

_FREE = (N.STANDBY, N.CHECKING, N.FINISHED, N.PARKED)
"""Where a node may be told to go: what takes part in a round is stopped or parked first."""

_CROSSED = "crossed the order to stop on the wire"
_ENDED = "a last word of an incarnation that is over"
_IN_PLACE = "its workers stay where they are"
_OVERTAKEN = "another order overtook it"
_OUTGOING = "it is on its way out"

NODE = Machine(
    name="node",
    doc="One incarnation of an agent, as the master knows it.",
    states=NodePhase,
    initial=N.STANDBY,
    finals=GONE,
    table=(
        *rows("action.ordered/check_health", (N.STANDBY, N.CHECKING), N.CHECKING),
        Row("health.checked", N.CHECKING, N.STANDBY),
        Row("order.refused/check_health", N.CHECKING, N.STANDBY),
        *rows("action.ordered/start_workers", (N.STANDBY, N.CHECKING, N.FINISHED, N.PARKED), N.STARTING),
        Row("workers.started", N.STARTING, N.RUNNING),
        Row("order.obeyed/pause_workers", N.RUNNING, N.PAUSED),
        Row("order.obeyed/resume_workers", N.PAUSED, N.RUNNING),
        *rows("order.obeyed/park_workers", (N.RUNNING, N.PAUSED, N.FAULTED), N.PARKED),
        *rows("worker.failed", (N.STARTING, N.RUNNING, N.PAUSED, N.PARKED, N.FAULTED), N.FAULTED),
        Row("workers.unstartable", N.STARTING, N.FAULTED),
        *rows("workers.finished", (N.STARTING, N.RUNNING, N.PAUSED), N.FINISHED),
        *rows("action.ordered/stop_workers", (*HOLDING, N.FINISHED), N.STOPPING),
        *rows("workers.stopped", (*HOLDING, N.FINISHED), N.STANDBY),
        *rows("action.ordered/release_node", _FREE, N.DRAINING),
        *rows("node.quarantined", (*_FREE, N.DRAINING), N.QUARANTINED),
        *rows("node.left", LIVING, N.LEFT),
        *rows("node.lost", LIVING, N.LOST),
        *rows("node.joined/again", LIVING, N.REPLACED),
    ),
    ignored=(
        Ignored(
            "action.ordered/stop_workers",
            (N.STANDBY, N.CHECKING, *OUTGOING),
            "nothing runs there; the agent answers at once",
        ),
        Ignored("workers.stopped", (N.STANDBY, N.CHECKING), "the answer to such an order, or a repeated one"),
        Ignored("workers.started", (N.STOPPING, N.RUNNING, N.FAULTED), _CROSSED),
        Ignored("worker.failed", (N.STOPPING, N.STANDBY), _CROSSED),
        Ignored("workers.unstartable", (N.STOPPING,), _CROSSED),
        Ignored("workers.finished", (N.STOPPING,), _CROSSED),
        Ignored("workers.stepped", LIVING, "progress, not a change of state"),
        *(Ignored(f"order.obeyed/{tag}", LIVING, _IN_PLACE) for tag in ("retry_step", "save_checkpoint")),
        Ignored("order.obeyed/pause_workers", tuple(p for p in LIVING if p is not N.RUNNING), _OVERTAKEN),
        Ignored("order.obeyed/resume_workers", tuple(p for p in LIVING if p is not N.PAUSED), _OVERTAKEN),
        Ignored(
            "order.obeyed/park_workers",
            tuple(p for p in LIVING if p not in (N.RUNNING, N.PAUSED, N.FAULTED)),
            _OVERTAKEN,
        ),
        Ignored("order.refused/check_health", tuple(p for p in LIVING if p is not N.CHECKING), _OVERTAKEN),
        Ignored("order.refused", LIVING, "what follows is decided by the plan that ordered it"),
        Ignored("health.checked", tuple(p for p in LIVING if p is not N.CHECKING), _OVERTAKEN),
        *(
            Ignored(trigger, OUTGOING, _OUTGOING)
            for trigger in (
                "workers.started",
                "worker.failed",
                "workers.unstartable",
                "workers.finished",
                "workers.stopped",
                "action.ordered/release_node",
            )
        ),
        Ignored("node.quarantined", (N.QUARANTINED,), "said before"),
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
                "health.checked",
                "order.refused",
                "order.refused/check_health",
                "order.obeyed/pause_workers",
                "order.obeyed/resume_workers",
                "order.obeyed/park_workers",
                "order.obeyed/retry_step",
                "order.obeyed/save_checkpoint",
                "node.quarantined",
            )
        ),
    ),
)

"""The machine of a node: one incarnation of an agent.

The agent applies orders and reports each transition as a fact; the folded log is authoritative.
House rule: stale facts never reach the machine, so they are no anomalies. A fact is stale if it is of an older
incarnation, or of a round before the newest one that the node was ordered to start or stop.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class NodePhase(StrEnum):
    """Phases of a node."""

    STANDBY = "standby"
    """Connected; no workers."""
    CHECKING = "checking"
    """It checks its devices and links; no workers."""
    STARTING = "starting"
    """Ordered to start its workers."""
    RUNNING = "running"
    """All its workers run."""
    PAUSED = "paused"
    """All its workers wait at a step boundary."""
    PARKED = "parked"
    """Its workers have left their round and wait for the next one; some may have ended."""
    FAULTED = "faulted"
    """A worker of the round failed; others may still run."""
    STOPPING = "stopping"
    """Ordered to stop its workers."""
    FINISHED = "finished"
    """All its workers ended with code 0."""
    DRAINING = "draining"
    """Ordered to leave while the job continues; it takes part in no further round."""
    QUARANTINED = "quarantined"
    """Excluded from every round, in every incarnation."""
    LEFT = "left"
    """Its agent announced that it leaves."""
    LOST = "lost"
    """Its lease expired without a heartbeat."""
    REPLACED = "replaced"
    """A newer incarnation with its name joined."""


N = NodePhase
OUTGOING = (N.DRAINING, N.QUARANTINED)
"""States of a node that is alive but takes part in no further world."""
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
"""States in which a node may be released: workers of a round are stopped or parked first."""

_CROSSED = "sent before the order to stop arrived"
_ENDED = "a late fact of an incarnation that has ended"
_IN_PLACE = "the workers keep their phase"
_OVERTAKEN = "a newer order replaced this one"
_OUTGOING = "the node is leaving"
_OF_WORKERS = ("workers.started", "worker.failed", "workers.unstartable", "workers.finished", "workers.stopped")

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
        *rows("worker.failed", (N.STARTING, N.RUNNING, N.PAUSED, N.FAULTED), N.FAULTED),
        Row("worker.failed", N.PARKED, N.PARKED),  # the next round starts a new process in its place
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
            "the node has no workers; the agent answers at once",
        ),
        Ignored(
            "workers.stopped", (N.STANDBY, N.CHECKING), "the answer of a node without workers, or a repeated answer"
        ),
        Ignored("workers.started", (N.STOPPING, N.RUNNING, N.FAULTED), _CROSSED),
        Ignored("worker.failed", (N.STOPPING, N.STANDBY), _CROSSED),
        Ignored("workers.unstartable", (N.STOPPING,), _CROSSED),
        Ignored("workers.finished", (N.STOPPING,), _CROSSED),
        Ignored("workers.stepped", LIVING, "progress, not a change of state"),
        *(
            Ignored(f"order.obeyed/{tag}", LIVING, _IN_PLACE)
            for tag in ("find_boundary", "save_checkpoint", "pace_saves")
        ),
        Ignored("order.obeyed/pause_workers", tuple(p for p in LIVING if p is not N.RUNNING), _OVERTAKEN),
        Ignored("order.obeyed/resume_workers", tuple(p for p in LIVING if p is not N.PAUSED), _OVERTAKEN),
        Ignored(
            "order.obeyed/park_workers",
            tuple(p for p in LIVING if p not in (N.RUNNING, N.PAUSED, N.FAULTED)),
            _OVERTAKEN,
        ),
        Ignored("order.refused/check_health", tuple(p for p in LIVING if p is not N.CHECKING), _OVERTAKEN),
        Ignored("order.refused", LIVING, "the plan that issued the order decides what follows"),
        Ignored("health.checked", tuple(p for p in LIVING if p is not N.CHECKING), _OVERTAKEN),
        *(Ignored(trigger, OUTGOING, _OUTGOING) for trigger in (*_OF_WORKERS, "action.ordered/release_node")),
        Ignored("node.quarantined", (N.QUARANTINED,), "already quarantined"),
        *(
            Ignored(trigger, GONE, _ENDED)
            for trigger in (
                *_OF_WORKERS,
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
                "order.obeyed/save_checkpoint",
                "order.obeyed/find_boundary",
                "order.obeyed/pace_saves",
                "node.quarantined",
            )
        ),
    ),
)

"""The machines of an agent: its connection to its master, and its workers. Their states are not in the log.

House rules: losing the master alone never stops a worker. An agent stops its workers when it learns of a newer round
or term. It also stops them when, for ``orphan_grace_s``, the store has named a master that the agent cannot reach and
no worker has completed a step: as long as the store names no master, this node cannot have been replaced.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, rows


class AgentPhase(StrEnum):
    """Phases of an agent."""

    CONNECTING = "connecting"
    """It looks for the master for the first time, or again as a new incarnation."""
    FOLLOWING = "following"
    """A master accepted it; it carries out orders, and the master acknowledges its facts."""
    ORPHANED = "orphaned"
    """The master is unreachable; workers keep running, facts wait in the outbox."""
    FENCED = "fenced"
    """Another incarnation has this node's name, or the job refuses the node; its workers are being stopped."""
    LEAVING = "leaving"
    """It is leaving the job; this is final."""


A = AgentPhase

AGENT = Machine(
    name="agent",
    doc="An agent's connection to its master.",
    states=AgentPhase,
    initial=A.CONNECTING,
    finals=(A.LEAVING,),
    table=(
        *rows("welcomed", (A.CONNECTING, A.ORPHANED), A.FOLLOWING),
        *rows("stream.broken", (A.FOLLOWING,), A.ORPHANED),
        *rows("refused", (A.CONNECTING, A.FOLLOWING, A.ORPHANED), A.FENCED),
        *rows("rejoin", (A.FENCED,), A.CONNECTING),  # as a new incarnation, without workers
        *rows("released", (A.FOLLOWING,), A.LEAVING),
        *rows("leave.ordered", (A.CONNECTING, A.FOLLOWING, A.ORPHANED, A.FENCED), A.LEAVING),
    ),
    ignored=(
        Ignored(
            "stream.broken", (A.CONNECTING, A.ORPHANED, A.FENCED, A.LEAVING), "the agent was not following a master"
        ),
        Ignored("refused", (A.FENCED, A.LEAVING), "already refused, or already leaving"),
        Ignored("welcomed", (A.LEAVING,), "a new master may still acknowledge the last facts"),
        Ignored("leave.ordered", (A.LEAVING,), "already leaving"),
        Ignored("released", (A.LEAVING,), "already leaving"),
    ),
)


class WorkPhase(StrEnum):
    """Phases of the workers of one agent, as known to the agent."""

    IDLE = "idle"
    """No workers: none were started yet, or they were stopped."""
    STARTING = "starting"
    """They are being started."""
    STARTED = "started"
    """They run; at least one of them has not completed a step yet."""
    STEPPING = "stepping"
    """They run, and each of them has completed a step."""
    PARKED = "parked"
    """They have left their round and wait with their state for the next one."""
    FINISHED = "finished"
    """All have exited with code 0."""


W = WorkPhase
_RUNNING = (W.STARTED, W.STEPPING)

WORK = Machine(
    name="work",
    doc="The workers of one node, as known to its agent.",
    states=WorkPhase,
    initial=W.IDLE,
    finals=(),
    table=(
        *rows("start", tuple(WorkPhase), W.STARTING),
        *rows("halt", tuple(WorkPhase), W.IDLE),
        *rows("started", (W.STARTING,), W.STARTED),
        *rows("unstartable", (W.STARTING,), W.IDLE),
        *rows("stepped", (W.STARTED,), W.STEPPING),
        *rows("parked", _RUNNING, W.PARKED),
        *rows("finished", _RUNNING, W.FINISHED),
    ),
    ignored=(
        Ignored("parked", (W.PARKED,), "a second order to park; the workers are parked already"),
        Ignored("parked", (W.FINISHED,), "the workers exited before the order to park reached them"),
    ),
)

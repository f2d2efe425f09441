"""The machine of an agent's bond with its master; it lives in the agent, not in the log.

House rules: losing the master never stops a worker by itself. Workers are stopped when the agent learns of a newer
round or term, or when for ``orphan_grace_s`` the store has named a master that it cannot reach and none of its workers
completed a step: only who is led can have been replaced.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, rows


class AgentPhase(StrEnum):
    """Where an agent is."""

    CONNECTING = "connecting"
    """Looking for the master for the first time."""
    FOLLOWING = "following"
    """A master welcomed it; orders are obeyed, facts are acknowledged."""
    ORPHANED = "orphaned"
    """The master is away; workers run on, facts wait in the outbox."""
    FENCED = "fenced"
    """Somebody else plays this node, or the job refuses it; workers are being stopped."""
    LEAVING = "leaving"
    """On the way out."""


A = AgentPhase

AGENT = Machine(
    name="agent",
    doc="An agent's bond with its master.",
    states=AgentPhase,
    initial=A.CONNECTING,
    finals=(A.LEAVING,),
    table=(
        *rows("welcomed", (A.CONNECTING, A.ORPHANED), A.FOLLOWING),
        *rows("stream.broken", (A.FOLLOWING,), A.ORPHANED),
        *rows("refused", (A.CONNECTING, A.FOLLOWING, A.ORPHANED), A.FENCED),
        *rows("rejoin", (A.FENCED,), A.CONNECTING),  # as a new incarnation, its workers gone
        *rows("released", (A.FOLLOWING,), A.LEAVING),
        *rows("told.to.leave", (A.CONNECTING, A.FOLLOWING, A.ORPHANED, A.FENCED), A.LEAVING),
    ),
    ignored=(
        Ignored("stream.broken", (A.CONNECTING, A.ORPHANED, A.FENCED, A.LEAVING), "there was no bond to break"),
        Ignored("refused", (A.FENCED, A.LEAVING), "said already, or too late to matter"),
        Ignored("welcomed", (A.LEAVING,), "a new master may still take the last facts"),
        Ignored("told.to.leave", (A.LEAVING,), "already leaving"),
        Ignored("released", (A.LEAVING,), "already leaving"),
    ),
)


class WorkPhase(StrEnum):
    """What an agent's own workers do, as far as it knows."""

    IDLE = "idle"
    """There are none: none were started yet, or they were stopped."""
    STARTING = "starting"
    """They are being started."""
    STARTED = "started"
    """They run; one of them has not completed a step yet."""
    STEPPING = "stepping"
    """They run, and each of them has completed a step."""
    PARKED = "parked"
    """They have left their round and wait with their state for the next one."""
    FINISHED = "finished"
    """All have ended with code 0."""


W = WorkPhase
_THERE = (W.STARTED, W.STEPPING)

WORK = Machine(
    name="work",
    doc="The workers of one node, as its agent has them.",
    states=WorkPhase,
    initial=W.IDLE,
    finals=(),
    table=(
        *rows("start", tuple(WorkPhase), W.STARTING),
        *rows("halt", tuple(WorkPhase), W.IDLE),
        *rows("started", (W.STARTING,), W.STARTED),
        *rows("unstartable", (W.STARTING,), W.IDLE),
        *rows("stepped", (W.STARTED,), W.STEPPING),
        *rows("parked", _THERE, W.PARKED),
        *rows("finished", _THERE, W.FINISHED),
    ),
    ignored=(Ignored("parked", (W.FINISHED,), "they ended while they were asked to"),),
)

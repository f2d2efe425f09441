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

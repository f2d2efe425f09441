"""The machine of a candidate for leadership. Its state is in that process, not in the log.

House rules: only a master in ``leading`` appends to the log and issues orders. A candidate follows and folds the log
before it is elected, so failover needs no long replay. ``deposed`` is final: a process that lost the role never issues
an order under the old term again.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class MasterPhase(StrEnum):
    """Phases of a candidate."""

    CANDIDATE = "candidate"
    """It follows the log and campaigns."""
    ELECTED = "elected"
    """It won a term; it has not read the end of the log yet."""
    FOLDING = "folding"
    """It folds the rest of the log."""
    LEADING = "leading"
    """It appends facts, decides and issues orders."""
    DEPOSED = "deposed"
    """It lost the term or resigned."""


M = MasterPhase

MASTER = Machine(
    name="master",
    doc="A candidate for leadership, from its campaign to the end of its term.",
    states=MasterPhase,
    initial=M.CANDIDATE,
    finals=(M.DEPOSED,),
    table=(
        Row("lease.won", M.CANDIDATE, M.ELECTED),
        Row("log.ended.at", M.ELECTED, M.FOLDING),
        Row("folded", M.FOLDING, M.LEADING),
        *rows("lease.lost", (M.ELECTED, M.FOLDING, M.LEADING), M.DEPOSED),
        *rows("resigned", (M.CANDIDATE, M.ELECTED, M.FOLDING, M.LEADING), M.DEPOSED),
    ),
    ignored=(
        Ignored("lease.lost", (M.DEPOSED,), "already deposed"),
        Ignored("resigned", (M.DEPOSED,), "already deposed"),
    ),
)

"""The machine of a process that wants the master role; it lives in that process, not in the log.

House rules: only ``leading`` appends and orders. A candidate follows and folds before it wins, so that winning costs no
catching up; ``deposed`` is final: a process that lost the role never orders again under the old term.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class MasterPhase(StrEnum):
    """Where a candidate is."""

    CANDIDATE = "candidate"
    """Follows the log and campaigns."""
    ELECTED = "elected"
    """Won a term; has not read the end of the log yet."""
    FOLDING = "folding"
    """Folds the rest of the log."""
    LEADING = "leading"
    """Sequences facts, decides, orders."""
    DEPOSED = "deposed"
    """Lost the term, or gave it up."""


M = MasterPhase

MASTER = Machine(
    name="master",
    doc="A process on its way through the master role.",
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
        Ignored("lease.lost", (M.DEPOSED,), "already over"),
        Ignored("resigned", (M.DEPOSED,), "already over"),
    ),
)

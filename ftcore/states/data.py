"""The machine of a data shard of a queue.

Shards are folded as ranges of places (``queue.py``): a change of the machine is one of a range, not of each shard.
"""

from enum import StrEnum

from ftcore.states.table import Ignored, Machine, Row, rows


class DataPhase(StrEnum):
    """Phases of a data shard."""

    TODO = "todo"
    """No reader has it."""
    DOING = "doing"
    """It is leased to a reader."""
    DONE = "done"
    """A reader has used it up in a completed step."""
    SAVED = "saved"
    """A committed checkpoint contains that step; only going back to an older checkpoint returns it."""


D = DataPhase

DATA = Machine(
    name="data",
    doc="One data shard of a queue, in one epoch.",
    states=DataPhase,
    initial=D.TODO,
    finals=(D.SAVED,),
    table=(
        Row("queue.leased", D.TODO, D.DOING),
        Row("queue.reported/done", D.DOING, D.DONE),
        Row("checkpoint.committed", D.DONE, D.SAVED),
        *rows("queue.returned", (D.DOING, D.DONE, D.SAVED), D.TODO),
    ),
    ignored=(
        Ignored("checkpoint.committed", (D.TODO, D.DOING), "it is not used up, or in a later step"),
        Ignored("queue.reported/late", tuple(D), "the lease has expired with its round, and the report does not count"),
    ),
)

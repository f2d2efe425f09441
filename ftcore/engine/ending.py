"""The end of a job: said in the log, and to people where the chain names somebody to tell."""

from ftcore.engine.turn import Turn
from ftcore.events.job import JobFinished
from ftcore.policies.alert import word_of_end


def finish(turn: Turn, finished: JobFinished, incident: str | None = None) -> None:
    """End the job.

    Args:
        turn: the turn in which it ends.
        finished: how.
        incident: the incident that ended it, if one did.
    """
    word = word_of_end(turn.state, finished)
    if word is not None:
        turn.emit(word, incident=incident)
    turn.emit(finished)

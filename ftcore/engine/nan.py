"""A loss that is not finite any more: training on is a waste, and what to do about it is for the user to say.

The remedies change what is trained on, so none of them is taken unless the policy file asks for it. In any
case an alert is raised, ``ftctl status`` shows it, and the run's end says it.
"""

from ftcore.engine.turn import Turn
from ftcore.events.policy import AlertRaised
from ftcore.events.worker import NAN_STEPS
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended

REMEDIES = (
    "`rollback_and_skip` in the policy file goes back to a checkpoint before it and leaves out the data; "
    "`recompute_step` (TRE) computes the step again, which this ftcore cannot have a script do yet"
)
"""Both are off unless a policy file names them."""

NAN_TITLE = "loss is NaN"


def warn_of_nan(turn: Turn) -> None:
    """Raise an alert if the turn's fact is that the loss was not finite for many steps in a row."""
    state = turn.state
    if state.nan is None or state.nan.seq != turn.fact.seq or has_ended(state):
        return
    text = f"the loss is NaN or infinite since step {state.nan.since}, for {NAN_STEPS} steps in a row; {REMEDIES}"
    turn.emit(AlertRaised(severity="critical", title=f"{state.job}: {NAN_TITLE}", text=text))


def end_of_nan(state: JobState) -> str:
    """What the reason of a run's end says besides; empty if the loss is finite as far as it is known."""
    return f"; the loss was NaN or infinite from step {state.nan.since} on" if state.nan is not None else ""

"""A loss that is NaN or infinite: raise an alert, and leave the remedy to the user.

The remedies change the training data, so they are used only if the policy file has them. In any case an alert is
raised, and ``ftctl status`` and the reason of the run's end mention the loss.
"""

from ftcore.engine.turn import Turn
from ftcore.events.policy import AlertRaised
from ftcore.events.worker import NAN_STEPS
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended
from ftcore.states.revisions import IN_PROCESS, follows

REMEDIES = (
    "the policy `rollback_and_skip` goes back to an earlier checkpoint and skips data; `recompute_step` (TRE) computes "
    "a step with an abnormal gradient norm again"
)
"""Both are off unless a policy file has them."""

_EARLIER = REMEDIES.replace(
    "a step with an abnormal gradient norm again", "the step again, but is not implemented in this release"
)
"""The text of masters before revision 17."""

NAN_TITLE = "loss is NaN"


def warn_of_nan(turn: Turn) -> None:
    """Raise an alert if the turn's fact is that the loss was not finite for many steps in a row."""
    state, nan = turn.state, turn.state.training.nan
    if nan is None or nan.seq != turn.fact.seq or has_ended(state):
        return
    remedies = REMEDIES if follows(state, IN_PROCESS) else _EARLIER
    text = f"the loss is NaN or infinite since step {nan.since}, for {NAN_STEPS} steps in a row; {remedies}"
    turn.emit(AlertRaised(severity="critical", title=f"{state.job}: {NAN_TITLE}", text=text))


def nan_note(state: JobState) -> str:
    """The suffix for the reason of a run's end; empty unless the loss is known to be NaN or infinite."""
    nan = state.training.nan
    return f"; the loss was NaN or infinite from step {nan.since} on" if nan is not None else ""

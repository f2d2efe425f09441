"""What the interval between two saves to storage is chosen from: cost of a save, time trained, failures, step time.

The time trained begins with a round, and ends with a fault or with the next plan for a round. A paused job counts as
training. The cost of a save is averaged with half of the weight on the newest one, the time of a step over the newest
samples.
"""

from ftcore.events import checkpoint
from ftcore.events.envelope import Event
from ftcore.ids import SECOND
from ftcore.states.fold.base import Changes, on
from ftcore.states.model import JobState
from ftcore.states.training import SavingState

OLDER = 0.95
"""Weight of the samples before, for each new one: about the newest twenty count."""


@on(checkpoint.IntervalChosen)
def _interval_chosen(state: JobState, event: Event, data: checkpoint.IntervalChosen, changes: Changes) -> None:
    state.training.saved.pace.chosen = data


def training_began(state: JobState, now: int) -> None:
    """The workers train from now on."""
    pace = state.training.saved.pace
    pace.since = pace.since or now


def training_ended(state: JobState, now: int) -> None:
    """The workers do not train any more."""
    pace = state.training.saved.pace
    if pace.since:
        pace.trained_s += (now - pace.since) / SECOND
        pace.since = 0
    pace.sample = None


def failed(state: JobState, now: int) -> None:
    """Count a failure."""
    training_ended(state, now)
    state.training.saved.pace.failures += 1


def stepped(state: JobState, step: int, now: int) -> None:
    """Measure the time of a step between two samples of progress without an incident."""
    pace = state.training.saved.pace
    if state.incident is not None:
        return
    before, pace.sample = pace.sample, (step, now)
    if before is not None and step > before[0]:
        pace.steps = OLDER * pace.steps + step - before[0]
        pace.seconds = OLDER * pace.seconds + (now - before[1]) / SECOND


def saved(state: JobState, saving: SavingState) -> None:
    """Measure the cost of a complete checkpoint."""
    pace, cost_s = state.training.saved.pace, max(saving.seconds.values(), default=0.0)
    pace.cost_s = cost_s if pace.cost_s is None else (pace.cost_s + cost_s) / 2

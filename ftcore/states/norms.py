"""Abnormal global gradient norms: the threshold that ranks compare with, and the values that they reported. Pure.

A rank whose norm is at or over the threshold stops the step before the optimizer changes the state, and reports it
(``fault.observed`` of kind ``norm``). So does one whose loss is not finite: no norm of its gradients can be. A policy
has the step computed again, or its batch left out. If the step is tolerated and abnormal again, the rank continues and
reports it with ``again`` among the values: that opens no incident.
"""

import math
from typing import Final

from ftcore.events.worker import FaultObserved
from ftcore.ids import seconds
from ftcore.states.model import JobState
from ftcore.states.revisions import STOPPED_BY_RANK, follows
from ftcore.states.training import NormState

NORM: Final = "norm"
"""Kind of ``fault.observed``: the global gradient norm of a step is at or over a threshold."""

RANK: Final = "worker"
"""Source of a report of a rank that has stopped its step."""

THRESHOLD: Final = "global_norm_spike_threshold"
"""The option of a policy that takes stopped steps: the threshold that ranks compare the norm with."""

RECOMPUTED, SKIPPED = "max_recomputed", "max_skipped"
"""The options that limit how many steps such a policy takes in its ``window``."""

NORMS_MAX: Final = 1024
"""Abnormal steps that are kept, the newest ones."""


def norm_threshold(state: JobState) -> float | None:
    """The threshold that the ranks of the next round compare the norm with.

    None: no policy takes abnormal steps, or its attempts are spent. Then no rank stops a step for which no plan would
    follow.
    """
    chain = state.policy.chain
    for number, entry in enumerate(chain):
        options = entry.options
        if options.get(THRESHOLD) and NORM in options.get("on", ()):
            since = state.time - seconds(float(options["window"]))
            made = sum(1 for time in state.history.attempts.get(entry.policy, ()) if time > since)
            left = made < int(options.get(RECOMPUTED, options.get(SKIPPED, 0)))
            # What follows a skipped batch goes back further: a rollback, a lower learning rate.
            followed = SKIPPED in options and any(NORM in later.options.get("on", ()) for later in chain[number + 1 :])
            return float(options[THRESHOLD]) if left or followed else None
    return None


def stops_step(state: JobState, kind: str, source: str) -> bool:
    """Whether ranks that report this kind have stopped their step, and wait for a plan.

    A detector reports steps that are complete.
    """
    stopped = kind == NORM and (source == RANK or not follows(state, STOPPED_BY_RANK))
    return stopped and any(
        entry.options.get(THRESHOLD) and NORM in entry.options.get("on", ()) for entry in state.policy.chain
    )


def step_of(step: int | None, values: dict[str, float]) -> int | None:
    """The number of the abnormal step that a report is about; None: not known.

    Args:
        step: the last step that was completed before it.
        values: the values of the report.
    """
    if "at" in values:
        return int(values["at"])
    return None if step is None else step + 1


def note_norm(state: JobState, data: FaultObserved) -> bool:
    """Record the value of an abnormal norm.

    Returns:
        Whether the step was accepted: it is abnormal again after it was computed again, and the training continues.
    """
    again, step = bool(data.values.get("again")), step_of(data.step, data.values)
    if step is None or not (again or stops_step(state, data.kind, data.source)):
        return again
    norms, value = state.training.norms, data.values.get(NORM)
    if value is not None and not math.isfinite(value):
        value = None
    known = norms.get(step)
    if known is not None and len(known.values) == 1 and (again or data.round > known.round):
        known.round, known.values = data.round, (*known.values, value)
    elif known is None or (not again and data.round > known.round):
        norms.pop(step, None)
        norms[step] = NormState(round=data.round, values=(value,))
        if len(norms) > NORMS_MAX:
            del norms[next(iter(norms))]
    return again

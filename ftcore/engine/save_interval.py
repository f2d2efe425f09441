"""The interval between two saves to storage: Young's formula with Daly's correction, from the job's own figures. Pure.

A save costs C seconds, and a failure costs the steps since the last save. With a mean time between failures of M
seconds, the sum of both costs is least for an interval of about sqrt(2 C M) (J. W. Young, "A first order approximation
to the optimum checkpoint interval", Communications of the ACM 17(9), 1974). If C is not small against M, Daly's
correction applies (J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22(3), 2006).

- C is the time to stage and write the shards of the slowest node. Training goes on meanwhile, so the true cost is
  smaller, and the interval rather too long: it also bounds the load of the storage.
- M is the time trained, divided by the number of failures. Before the first failure, it is assumed: see ``ASSUMED_S``.
- Before the first save, C is not known, and the shortest permitted interval is used.

Workers save after steps whose number is a multiple of the interval in steps, so all ranks save the same step without an
agreement. A change takes effect at a step that no worker has reached yet; a node that receives it later leaves out the
saves until then, and the checkpoints of these steps are not complete.

House rules: the interval is chosen anew at each sample of the progress, and changes only by more than ``DAMPING``.
"""

import math
from typing import Final

from ftcore.commands import PaceSaves
from ftcore.engine.dispatch import order
from ftcore.engine.turn import Turn
from ftcore.events.checkpoint import IntervalChosen
from ftcore.events.job import JobProgressed
from ftcore.ids import SECOND, Round
from ftcore.policies.base import Ability
from ftcore.policies.file.job_options import CheckpointOptions
from ftcore.states.model import JobState

ASSUMED_S: Final = 237 * 86_400.0
"""Assumed seconds between two failures of a node, before the job has failed: 466 interruptions in 54 days on 2,048
nodes ("The Llama 3 Herd of Models", 2024, section 3.3.4)."""

DAMPING: Final = 1.2
"""An interval that is longer or shorter by less than this factor is not changed: it costs at most 2 % more."""

SIGNS: Final = 4
"""A change takes effect after so many of the longest pauses between two messages to an agent, or later."""

PACE_S: Final = 60.0
"""Timeout in seconds of the order to the agents."""


def best_interval(cost_s: float, mtbf_s: float) -> float:
    """The interval in seconds with the least expected cost.

    Args:
        cost_s: seconds that a save takes.
        mtbf_s: mean seconds between two failures.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    half = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - cost_s


def choose(state: JobState) -> IntervalChosen | None:
    """The interval for the workers of the newest world; None: the time of a step is not known yet."""
    pace, world = state.training.saved.pace, state.rounds.world
    if world is None or not pace.step_s:
        return None
    trained_s = pace.trained_s + ((state.time - pace.since) / SECOND if pace.since else 0.0)
    assumed_s = max(ASSUMED_S / len(world.members), trained_s)
    mtbf_s = trained_s / pace.failures if pace.failures else assumed_s
    declared, defaults = state.policy.declared.checkpoints, CheckpointOptions()
    least_s = declared.min_interval or defaults.min_interval
    most_s = declared.max_interval or defaults.max_interval
    interval_s, bound = _bounded(pace.cost_s, mtbf_s, least_s, most_s)
    return IntervalChosen(
        steps=max(1, round(interval_s / pace.step_s)),
        interval_s=round(interval_s, 3),
        bound=bound,
        step_s=max(round(pace.step_s, 6), 1e-6),
        cost_s=None if pace.cost_s is None else round(pace.cost_s, 3),
        mtbf_s=round(mtbf_s, 3),
        failures=pace.failures,
        trained_s=round(trained_s, 3),
        least_s=least_s,
        most_s=most_s,
    )


def _bounded(cost_s: float | None, mtbf_s: float, least_s: float, most_s: float) -> tuple[float, str]:
    """The interval in seconds, and what limits it."""
    if cost_s is None:
        return least_s, "min"
    best_s = best_interval(cost_s, mtbf_s)
    interval_s = min(max(best_s, least_s), most_s)
    if interval_s < cost_s:
        return cost_s, "cost"
    return interval_s, "min" if interval_s > best_s else "max" if interval_s < best_s else ""


def advance_interval(turn: Turn) -> bool:
    """Choose the interval between two saves to storage, and order it from the workers, after a sample of progress."""
    state, data = turn.state, turn.fact.data
    if not isinstance(data, JobProgressed) or not state.training.step_absolute or not state.can(Ability.INTERVAL):
        return False
    world, found = state.rounds.world, choose(state)
    if world is None or data.round != world.round:
        return False
    if found is None or _is_close(found, state.training.saved.pace.chosen):
        return False
    turn.emit(found)
    assert state.spec is not None
    first = data.step + math.ceil(SIGNS * state.spec.timing.sign_s / found.step_s) + 1
    since = -(-first // found.steps) * found.steps
    order(turn, PaceSaves(round=Round(world.round), every=found.steps, since=since), (), PACE_S)
    return True


def _is_close(found: IntervalChosen, before: IntervalChosen | None) -> bool:
    if before is None:
        return False
    ratio = (found.interval_s / found.step_s) / (before.interval_s / before.step_s)
    return found.steps == before.steps or 1 / DAMPING <= ratio <= DAMPING

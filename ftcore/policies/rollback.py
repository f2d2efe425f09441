"""What policies that go back to an earlier checkpoint share: options, and queries on the folded state."""

from collections.abc import Collection
from typing import Annotated, Final, Literal

from ftcore.commands import CommitCheckpoint
from ftcore.events.policy import CHECKPOINTS_KEPT
from ftcore.events.worker import CURVES
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability
from ftcore.policies.budget import StartOptions
from ftcore.policies.options import OptionRule, Text, number, says
from ftcore.policies.situation import all_workers_alive, class_of, kind_of
from ftcore.states.model import IncidentState, JobState
from ftcore.states.revisions import IN_PROCESS, NEWER_FIRST, follows


class RollbackOptions(StartOptions):
    """Options of every policy that goes back after an observation of the loss or the gradients."""

    on: Annotated[tuple[Text, ...], says("Kinds of observations that the policy handles.", words="kinds")] = tuple(
        kind for kind in CURVES if kind != "norm"
    )
    back: Annotated[
        Literal["steps", "latest"],
        says("Go back by `before` steps (`steps`), or to the latest checkpoint before the fault (`latest`)."),
    ] = "steps"
    before: Annotated[int, number("Minimum number of steps to go back, for `back: steps`.")] = 100


BEFORE_RULE: Final = OptionRule(
    options=("before", "back"),
    broken=lambda o: o.back == "latest",
    text="before ({before}) has no effect with back: latest",
    given=("before",),
)


def nothing_to_undo(incident: IncidentState, job: JobState, on: Collection[str]) -> str:
    """Why a rollback is no remedy for the incident; empty if it may be one.

    Args:
        incident: the open incident.
        job: the folded state.
        on: kinds of observations that the policy handles.
    """
    if class_of(incident) is not FaultClass.NUMERIC or kind_of(incident, job) not in on:
        return f"not an observation in `on`: {', '.join(on)}"
    if incident.fault.step is None or not incident.fault.absolute:
        return "the step of the fault, counted from the start of the training, is not known"
    return ""


def goes_back_in_place(job: JobState) -> bool:
    """Whether the processes can go back as they are."""
    return follows(job, IN_PROCESS) and job.can(Ability.RETRY) and all_workers_alive(job)


def newest_kept(job: JobState, latest: int) -> int | None:
    """The newest checkpoint of step ``latest`` or before that is there when a plan wants it; None: there is none."""
    return max((kept for kept in _staying(job) if kept <= latest), default=None)


def nothing_kept(job: JobState, latest: int) -> str:
    """Why ``newest_kept`` finds nothing."""
    if not _staying(job):
        return "no checkpoint is known to be kept"
    return (
        f"no checkpoint at or before step {latest} is kept, the oldest is of step {min(_staying(job))}: "
        "keep more checkpoints, or reduce `before`"
    )


def _staying(job: JobState) -> list[int]:
    """The checkpoints that stay; a manifest that is being written removes the oldest one, if there are as many."""
    found = job.training.checkpoints
    kept = job.policy.declared.checkpoints.kept or CHECKPOINTS_KEPT
    commits = any(isinstance(ordered.command, CommitCheckpoint) for ordered in job.orders.open.values())
    return found[1:] if commits and len(found) >= kept and follows(job, NEWER_FIRST) else found

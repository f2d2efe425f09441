"""What policies that go back to an earlier checkpoint ask of the folded state."""

from typing import Final

from ftcore.commands import CommitCheckpoint
from ftcore.events.policy import CHECKPOINTS_KEPT
from ftcore.policies.base import Ability
from ftcore.policies.situation import all_workers_alive
from ftcore.states.model import JobState
from ftcore.states.revisions import IN_PROCESS, NEWER_FIRST, follows

STEP_UNKNOWN: Final = "the step of the fault, counted from the start of the training, is not known"


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

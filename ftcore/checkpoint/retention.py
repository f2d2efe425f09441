"""Which checkpoints are no longer needed.

House rules: pure. Only checkpoints of one job are removed, and never the newest complete one. Unfinished ones are
removed when a newer one is complete and nothing has been written to them for ``ABANDONED_S``.
"""

from collections.abc import Collection, Iterable
from typing import Final

from ftcore.checkpoint.directory import FoundCheckpoint, by_age
from ftcore.checkpoint.problems import ProblemKind

ABANDONED_S: Final = 3600.0
"""Age in seconds at which an unfinished checkpoint counts as abandoned."""

_KEPT: Final = {ProblemKind.NEWER, ProblemKind.UNREADABLE, ProblemKind.FOREIGN}
"""Problems of checkpoints that this ftcore knows too little about to remove them."""


def to_remove(
    found: Iterable[FoundCheckpoint],
    keep_last: int,
    keep_every: int = 0,
    tagged: Collection[str] = (),
    *,
    job: str,
) -> list[str]:
    """Return the directories to remove, the oldest one first.

    Kept are the newest ``keep_last`` complete checkpoints, and, of each log, the first one of every ``keep_every``
    steps. Checkpoints that a rollback made useless do not count: they are removed if they are not tagged.

    Args:
        found: the checkpoints in the storage.
        keep_last: how many of the newest ones to keep; at least the newest one is kept.
        keep_every: number of steps, for example 1000: the first one from step 0, 1000, 2000, ...; 0: none.
        tagged: directories to keep.
        job: the job whose checkpoints may be removed.
    """
    mine = by_age([each for each in found if each.job == job])
    complete = [each for each in mine if each.complete]
    if not complete:
        return []
    live = newest_first(complete)
    kept = {each.directory for each in live[: max(keep_last, 1)]} | set(tagged)
    if keep_every > 0:
        kept |= {each.directory for each in _milestones(live, keep_every)}
    newest = mine.index(complete[-1])
    abandoned = {
        each.directory
        for each in mine[:newest]
        if not each.complete and each.problem not in _KEPT and (each.age_s or 0.0) >= ABANDONED_S
    }
    useless = {each.directory for each in complete} | abandoned
    return [each.directory for each in mine if each.directory in useless - kept]


def newest_first(complete: Iterable[FoundCheckpoint]) -> list[FoundCheckpoint]:
    """The checkpoints that no rollback made useless, from the newest to the oldest one.

    Within a log, a checkpoint is useless if one of a later round has no higher step.

    Args:
        complete: complete checkpoints of one job.
    """
    found: list[FoundCheckpoint] = []
    lowest: dict[str, int] = {}
    for each in reversed(by_age(list(complete))):
        if each.step < lowest.get(each.log, each.step + 1):
            lowest[each.log] = each.step
            found.append(each)
    return found


def _milestones(live: list[FoundCheckpoint], keep_every: int) -> list[FoundCheckpoint]:
    """The first checkpoint of every so many steps, of each log."""
    return list({(each.log, each.step // keep_every): each for each in live}.values())

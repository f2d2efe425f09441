"""Revisions of the rules of decision: a log is decided again by the rules that it was decided by.

A master records in ``master.elected`` which revision it decides by. Code that decides otherwise than an earlier
revision asks ``follows``, so logs of earlier masters still verify (``ftctl replay --verify``). Facts and fields that
earlier logs do not have need no revision: decisions that rest on them alone do not occur there.

| revision | since then |
|---|---|
| 0 | logs without this record |
| 1 | a policy that the job is not able to carry out passes in an event once, not in every incident |
| 2 | a node that trains and is to leave goes once another one is ready for its place, where one can come |
| 3 | a run has no stores of the run before; nodes already there, or that join while it is stuck, open its join window |
"""

from typing import Final

from ftcore.states.model import JobState

LACK_ONCE: Final = 1

READY_FIRST: Final = 2

RUN_ANEW: Final = 3

NEWEST: Final = 3
"""What masters of this ftcore decide by."""


def follows(job: JobState, revision: int) -> bool:
    """Whether the master in office decides by that revision of the rules, or a later one."""
    return job.master is not None and job.master.decides >= revision

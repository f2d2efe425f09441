"""Revisions of the decision rules: a log is replayed with the rules under which it was written.

A master records its revision in ``master.elected``. Code that decides differently from an earlier revision calls
``follows``, so logs of earlier masters still verify (``ftctl replay --verify``). A decision that depends only on facts
or fields that earlier logs lack needs no revision.

| revision | change |
|---|---|
| 0 | logs without this record |
| 1 | a policy for which the job lacks an ability records its pass once, not in every incident |
| 2 | a training node that is to leave does so once a replacement is ready, if a replacement is possible |
| 3 | a run has no stores of the run before; nodes that joined before it, or while it is stuck, open its join window |
| 4 | gloo's message about a connection that a peer closed is evidence of that peer's end, not of a hang |
| 5 | a job that was stopped before its first run can begin one; its nodes are not released |
| 6 | alerts and the reason of a failed job name and advise by the detail of a fault, not only by its class |
| 7 | workers pause and save at one step boundary, which an order before finds |
| 8 | ``world.formed`` has the number of ranks of the world before |
| 9 | the order to write shards names their writers; another number of ranks can resume from shards on any nodes |
| 10 | a plan that stops healthy workers has them save at one step boundary, if the script registered its state |
| 11 | disruptions, as storage that refuses checkpoints, open warnings; a job is paused again after a node was drained |
| 12 | a round waits for a manifest that is being written, of a later step than it would resume from |
| 13 | a manifest that was not written is ordered again after a delay, without limit, unless a later round has saved |
| 14 | the job is paused only while a worker waits at a step boundary: one whose workers have all finished ends |
| 15 | between two tries of the newest manifest one older one is ordered, not all; a plan waits for its newest alone |
| 16 | after a rollback, a round resumes from a checkpoint committed since, also before the plan has succeeded |
| 17 | policies that compute a step again or swap a process need only what the running script reports |
| 18 | a fault of a round whose workers are being started waits until all are, if the script can leave its round |
| 19 | a growth is offered once a new node can start its workers at once; until then the job trains |
| 20 | an attempt for a fault of no node is charged to none; a worker's report of a memory error precedes the driver's |
| 21 | what nodes hold decides on a dying checkpoint, not a refusal; before a first step, what the round began from |
| 22 | a process is swapped on a node that keeps failing, if the job cannot run without it and no other can come |
| 23 | a fault that is no node's is no reason to check nodes before a restart |
| 24 | a norm that a detector reports is that of a complete step: a warning, and no step is computed again for it |
| 25 | a spike of the loss opens an incident once at least half of the ranks that report a loss find it |
| 26 | registered data is skipped by tokens, if the script says how many a step has |
| 27 | a dying checkpoint at a step boundary fails if a node refuses to name the boundary: it may have passed it |
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ftcore.states.model import JobState

LACK_ONCE: Final = 1

READY_FIRST: Final = 2

RUN_ANEW: Final = 3

PEER_NOT_HANG: Final = 4

FIRST_RUN_ANEW: Final = 5

BY_DETAIL: Final = 6

ONE_BOUNDARY: Final = 7

SIZE_BEFORE: Final = 8

COPIES: Final = 9

HANDOVER: Final = 10

DISRUPTIONS: Final = 11

NEWER_FIRST: Final = 12

MANIFEST_AGAIN: Final = 13

WORKERS_WAIT: Final = 14

NEWEST_MANIFEST: Final = 15

RESUME_LATER: Final = 16

IN_PROCESS: Final = 17

STARTED_FIRST: Final = 18

WARM_FIRST: Final = 19

NO_CULPRIT: Final = 20

BEGUN_FROM: Final = 21

SWAP_ON_NODE: Final = 22

NO_NODE_AT_FAULT: Final = 23

STOPPED_BY_RANK: Final = 24

RANKS_AGREE: Final = 25

BY_TOKENS: Final = 26

FOUND_BY_ALL: Final = 27

NEWEST: Final = 27
"""The revision of masters of this ftcore."""


def follows(job: "JobState", revision: int) -> bool:
    """Whether the leading master decides by this revision of the rules or a later one."""
    return job.master is not None and job.master.decides >= revision

"""Looks up the newest checkpoints on storage, for an agent: ``python -m ftcore.runtime.keeper.search URL JOB``.

A keeper may commit a checkpoint after its agent has ended, and end itself before there is another one. So the log does
not have it. Prints a JSON list of the newest complete checkpoints of the job that no rollback made useless.

House rules: the agent neither loads a storage's library nor waits for a storage that hangs: this is another process.
"""

import sys
from typing import Final

import msgspec

NEWEST: Final = 8
"""Checkpoints that are reported."""


class FoundOnStorage(msgspec.Struct, frozen=True):
    """A complete checkpoint.

    Args:
        log: the identity of its job's log.
        round: the round in which it was staged.
        step: its step.
        where: its location.
    """

    log: str
    round: int
    step: int
    where: str


def main(url: str, job: str) -> None:
    """Print what is on storage."""
    from ftcore.checkpoint.directory import checkpoints
    from ftcore.checkpoint.retention import newest_first
    from ftcore.checkpoint.storage import Storage

    storage = Storage(url)
    mine = [each for each in checkpoints(storage) if each.complete and each.job == job]
    found = [
        FoundOnStorage(each.log, each.round, each.step, storage.where(each.directory))
        for each in newest_first(mine)[:NEWEST]
    ]
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main(*sys.argv[1:])

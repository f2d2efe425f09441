"""Problems of checkpoints: why one cannot be used."""

from enum import StrEnum

import msgspec

from ftcore.errors import CheckpointError


class ProblemKind(StrEnum):
    """Kinds of problems; ``CheckpointError.kind`` has one of them, or is empty."""

    UNFINISHED = "unfinished"
    """It has no manifest: its save was interrupted, or goes on."""
    MISSING = "missing"
    """A file, a shard of a replica group, or a part of a tensor does not exist."""
    TRUNCATED = "truncated"
    """A file is shorter or longer than it was written."""
    DAMAGED = "damaged"
    """Bytes of a file changed after they were written."""
    FOREIGN = "foreign"
    """A file belongs to another job, log, round, step or save."""
    NEWER = "newer"
    """A newer version of ftcore wrote it."""
    UNREADABLE = "unreadable"
    """The storage does not let it be read."""


class CheckpointProblem(msgspec.Struct, frozen=True):
    """One problem of a checkpoint.

    Args:
        kind: what it is.
        file: the file, relative to the storage.
        message: what, where and why, in one line.
    """

    kind: ProblemKind
    file: str
    message: str

    def __str__(self) -> str:
        return self.message


def problem_of(error: CheckpointError, file: str) -> CheckpointProblem:
    """The problem that an error reports.

    Args:
        error: the error.
        file: the file that was read.
    """
    kind = ProblemKind(error.kind) if error.kind else ProblemKind.UNREADABLE
    return CheckpointProblem(kind, file, str(error))

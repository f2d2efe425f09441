"""All public exceptions of ftcore.

House rules: no other module defines a public exception. Faults of the job (a dead node, a lost lease) are *events*,
never exceptions. Each error says what the operator should do next, and has the exit code of the command line.

Programming errors are ``assert``: they end the process, and its successor replays the log.
"""

STOPPED = 5
"""Exit code of a job that was stopped and can be resumed, and of an agent that was ordered to leave."""

INTERRUPTED = 130
"""128 + SIGINT: the exit code that a shell reports for a program ended by Ctrl-C."""


class FtcoreError(Exception):
    """Base class of all errors that ftcore raises on purpose; raise one of the subclasses.

    Args:
        message: what is wrong, where, what was expected and what to do.
    """

    exit_code = 1

    def __new__(cls, *args: object) -> "FtcoreError":
        """Refuse to instantiate the base class."""
        if cls is FtcoreError:
            raise TypeError("raise a subclass of FtcoreError that says what happened")
        return super().__new__(cls, *args)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class UsageError(FtcoreError):
    """The user's input is invalid: a flag, a file, a URL, a name, a value that ftcore does not know."""

    exit_code = 2


class StoreError(FtcoreError):
    """The log store exists but cannot be used: not a store of ftcore, damaged, or of another version."""

    exit_code = 2


class LogCorrupt(StoreError):
    """The log is inconsistent: a gap, a wrong digest, a record that cannot be decoded."""

    exit_code = 1


class UnknownEvent(StoreError):
    """An event has a type or version that this ftcore does not know, and may not be ignored.

    Args:
        message: names the event, its seq and the required version of ftcore.
    """


class NotFound(FtcoreError):
    """The requested object does not exist in a store or a log: a job, an incident, a node.

    A name that is invalid in every store (a class of faults, a preset, an option) is a ``UsageError``.
    """

    exit_code = 4


class Truncated(NotFound):
    """The requested events were moved from the live log to an archive.

    Args:
        message: the text for the user.
        floor: the last event that was removed from the live log.
    """

    def __init__(self, message: str, floor: int) -> None:
        super().__init__(message)
        self.floor = floor


class Unreachable(FtcoreError):
    """The log store or the master does not answer."""

    exit_code = 3


class StreamBroken(Unreachable):
    """A stream to another process could not be opened, or broke.

    Args:
        message: the transport's error message; may be empty.
        code: the transport's status code, for example ``UNAVAILABLE``.
        distrust: why the peer is not trusted, as a clause about the peer (``its certificate ...``); empty if it is.
    """

    def __init__(self, message: str, code: str = "", distrust: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.distrust = distrust


class LogUnavailable(Unreachable):
    """The log store did not answer in time; whether the write was committed is not known.

    ``EventLog.append`` resolves unknown outcomes itself: after this error the write has *not* been acknowledged, and a
    retry of the same call is idempotent.
    """


class LogFull(Unreachable):
    """The log store is out of space and refuses writes: free space, then retry the append."""


class Fenced(FtcoreError):
    """This writer's term is over: another master leads. Stop; do not retry."""


class Conflict(FtcoreError):
    """The log does not end where the writer expected. Read from the last known seq, then decide again.

    Args:
        message: the text for the user.
        last_seq: the last seq of the log.
    """

    def __init__(self, message: str, last_seq: int) -> None:
        super().__init__(message)
        self.last_seq = last_seq


class Refused(FtcoreError):
    """A peer refuses this process: wrong token, job, version, term or round."""

    exit_code = 2


class CheckpointError(FtcoreError):
    """A checkpoint cannot be written, read or used.

    Args:
        message: what, which file, why, and what to do.
        kind: why it cannot be used, if it is a problem of the checkpoint and not of its storage: a value of
            ``ftcore.checkpoint.problems.ProblemKind``; empty otherwise.
    """

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class StorageFull(CheckpointError):
    """The storage of checkpoints has no space, or a quota or limit is reached: free space, then the next save works."""

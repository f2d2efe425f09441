"""The closed family of ftcore's errors.

House rules: no other module defines a public exception. Faults of the job (a dead node, a lost lease) are *events*,
never exceptions. Each error says what the operator should do next, and carries the exit code of the command line.

Programming errors stay ``assert``: they end the process and the next owner folds the log.
"""

STOPPED = 5
"""Exit code of a job that was stopped and can be started again, and of an agent that was told to leave."""

INTERRUPTED = 130
"""128 + SIGINT: what a shell reports for a program ended by Ctrl-C."""


class FtcoreError(Exception):
    """Base of all errors that ftcore raises on purpose; raise one of the subclasses.

    Args:
        message: what is wrong, where, what was expected and what to do, for a person to read.
    """

    exit_code = 1

    def __new__(cls, *args: object) -> "FtcoreError":
        """Refuse to make the base class itself."""
        if cls is FtcoreError:
            raise TypeError("raise a subclass of FtcoreError that says what happened")
        return super().__new__(cls, *args)

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class UsageError(FtcoreError):
    """The user's input cannot be used: a flag, a file, a URL, a name, a word that ftcore does not know."""

    exit_code = 2


class StoreError(FtcoreError):
    """The log store exists but cannot be used as it is: not ours, damaged, of another version."""

    exit_code = 2


class LogCorrupt(StoreError):
    """The log's bytes contradict themselves: a gap, a bad digest, a record that cannot be decoded."""

    exit_code = 1


class UnknownEvent(StoreError):
    """An event of a type or version that this ftcore does not know and that may not be ignored.

    Args:
        message: names the event, its seq and the version of ftcore that is needed.
    """


class NotFound(FtcoreError):
    """What was asked for does not exist in a store or a log: a job, an incident, a node.

    A word that no store could make right (a class of faults, a preset, an option) is a ``UsageError``.
    """

    exit_code = 4


class Truncated(NotFound):
    """The events asked for were taken out of the live log; an archive has them.

    Args:
        message: for a person.
        floor: the last event that was taken out.
        archive: where they were put, if that is known.
    """

    def __init__(self, message: str, floor: int, archive: str = "") -> None:
        super().__init__(message)
        self.floor = floor
        self.archive = archive


class Unreachable(FtcoreError):
    """The log store or the master does not answer."""

    exit_code = 3


class StreamBroken(Unreachable):
    """A stream to another process could not be opened, or broke.

    Args:
        message: what the transport says of it; may be empty.
        code: the transport's short word for it, as ``UNAVAILABLE``.
        distrust: why the peer cannot be trusted, as a clause about it (``its certificate ...``); empty if it can.
    """

    def __init__(self, message: str, code: str = "", distrust: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.distrust = distrust


class LogUnavailable(Unreachable):
    """The log store did not answer in time; whether the write landed was not learned.

    ``EventLog.append`` resolves unknown outcomes itself, so after this error the write has *not* been acknowledged
    and the same call may be made again: it lands once.
    """


class LogFull(Unreachable):
    """The log store refuses writes for want of space: free some, and the append succeeds when tried again."""


class Fenced(FtcoreError):
    """This writer's term is over: another master leads. Stop; do not try again."""


class Conflict(FtcoreError):
    """The log does not end where the writer thought. Read on from the last seq known, then decide again.

    Args:
        message: for a person.
        last_seq: where the log ends now.
    """

    def __init__(self, message: str, last_seq: int) -> None:
        super().__init__(message)
        self.last_seq = last_seq


class Refused(FtcoreError):
    """A peer does not accept us: wrong token, job, version, term or round."""

    exit_code = 2

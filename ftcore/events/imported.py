"""Events of an imported log: where its facts come from. A job that runs under ftcore writes none of them.

No decision follows from these facts. ``cause`` of an imported fact is the ``source.cited`` before it.
"""

from ftcore.events.payload import Payload
from ftcore.events.registry import fact

IMPORTER = "import"
"""Host of the only master of a log that was made of files, and source of the facts about these files."""

FILES_MAX = 64
"""Most files that ``log.imported`` names."""


@fact("log.imported", ignorable=True)
class LogImported(Payload, frozen=True, kw_only=True):
    """The following facts were read from the log files of a job that did not run under ftcore.

    Args:
        source: how the files were read: ``torchrun``, ``text``, ``slurm`` or ``kubectl``.
        files: names of the files with at least one fact, at most ``FILES_MAX``.
        file_count: number of files that were read.
        lines: number of lines that were read.
        notes: what was assumed and what was not found, one sentence each.
    """

    source: str
    files: tuple[str, ...]
    file_count: int
    lines: int
    notes: tuple[str, ...] = ()


@fact("source.cited", ignorable=True)
class SourceCited(Payload, frozen=True, kw_only=True):
    """Where the next facts were read.

    Args:
        place: ``FILE:LINE``; a file alone if the whole file is the source; empty: it follows from other facts.
        basis: source of the time: ``line`` (its own time stamp), ``field`` (a field of a record), ``between`` (a line
            before it; the next time stamp is ``error_s`` later), ``after`` (the next time stamp of its file) or
            ``bound`` (only an order is known: the time is that of the nearest fact).
        error_s: the fact may be this many seconds earlier or later; None: not known.
        clock: the host whose clock the time is of; empty: not known.
        shift_s: seconds that were added to the time of that clock.
        text: the line, truncated to 512 bytes.
    """

    place: str
    basis: str
    error_s: float | None = None
    clock: str = ""
    shift_s: float = 0.0
    text: str = ""


@fact("gap.found", ignorable=True)
class GapFound(Payload, frozen=True, kw_only=True):
    """No file has a line with a time stamp in a period: nothing is known of it.

    Args:
        begin: nanoseconds since the epoch: the last line before it.
        end: likewise: the first line after it.
        place: ``FILE:LINE`` of the last line before it.
    """

    begin: int
    end: int
    place: str

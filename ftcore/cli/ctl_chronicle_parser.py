"""The arguments of the commands that read a run as a story: ``note``, ``logbook``."""

from collections.abc import Callable
from typing import Any

from ftcore.cli.ctl_types import BOUND_HELP, bound


def add_chronicle(commands: Any, reading: Callable[..., Any]) -> None:
    """Add the commands.

    Args:
        commands: the subparsers.
        reading: adds a command that reads a log.
    """
    note = reading(
        commands,
        "note",
        "Record a note of yours in the log of a job, running or ended; `ftctl logbook` shows it where it was written.",
        "ftctl note 'loss looks odd since the weekend; data team informed'\n"
        "ftctl --job demo note 'cause was the fan of node17' --format json\nftctl note - < postmortem.txt",
    )
    note.add_argument("text", metavar="TEXT", help="the note, at most 4000 characters; - for standard input")
    _add_logbook(commands, reading)


def _add_logbook(commands: Any, reading: Callable[..., Any]) -> None:
    logbook = reading(
        commands,
        "logbook",
        "Write the chronicle of a run in Markdown: a summary, then dated entries for incidents and their cost, "
        "checkpoints, changes of size, pauses, operators' requests and notes.",
        "ftctl logbook\nftctl logbook -o demo.md\nftctl logbook --since 12h\nftctl logbook --format json | jq .summary",
    )
    logbook.add_argument("-o", "--output", metavar="FILE", help="output file; default: standard output")
    logbook.add_argument("--since", type=bound, metavar="SEQ|TIME|AGO", help=f"first entry: {BOUND_HELP}")
    logbook.add_argument("--until", type=bound, metavar="SEQ|TIME|AGO", help="last entry, as --since")

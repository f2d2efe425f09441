"""The arguments of the commands that read a run as a story: ``note``, ``logbook``, ``failures``, ``logs``."""

from collections.abc import Callable
from typing import Any

from ftcore.cli.ctl_types import BOUND_HELP, bound, line_count


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
    _add_failures(commands, reading)


def _add_logbook(commands: Any, reading: Callable[..., Any]) -> None:
    logbook = reading(
        commands,
        "logbook",
        "Write the chronicle of a run in Markdown: a summary, then dated entries for incidents and their cost, "
        "checkpoints, changes of size, pauses, operators' requests and notes.",
        "ftctl logbook\nftctl logbook -o demo.md\nftctl logbook --since 12h --format json | jq .overview",
    )
    logbook.add_argument("-o", "--output", metavar="FILE", help="output file; default: standard output")
    logbook.add_argument("--since", type=bound, metavar="SEQ|TIME|AGO", help=f"first entry: {BOUND_HELP}")
    logbook.add_argument("--until", type=bound, metavar="SEQ|TIME|AGO", help="last entry, as --since")


def _add_failures(commands: Any, reading: Callable[..., Any]) -> None:
    failures = reading(
        commands,
        "failures",
        "Show in one line which process of which node failed first, and with what.",
        "ftctl failures\nftctl failures i2\nftctl failures --all\nftctl failures --format json | jq .first.rank",
    )
    failures.add_argument("incident", nargs="?", metavar="INCIDENT", help="incident, as i2; default: the newest fault")
    failures.add_argument("--all", action="store_true", help="a line for each fault of the log")
    failures.add_argument(
        "--since", type=bound, metavar="SEQ|TIME|AGO", help=f"a line for each fault since then: {BOUND_HELP}"
    )
    logs = reading(
        commands,
        "logs",
        "Show the ends of the log files of all ranks of an incident, the rank that failed first at the top, or copy "
        "the files. Files are read on this host; those of other hosts are named. Known kinds of secrets are replaced "
        "by [redacted], control characters are shown as escapes.",
        "ftctl logs\nftctl logs i2 --lines 50\nftctl logs i2 -o i2-logs\n"
        "ftctl logs i2 --format json | jq '.files[].path'",
    )
    logs.add_argument("incident", nargs="?", metavar="INCIDENT", help="incident, as i2; default: the newest failure")
    logs.add_argument(
        "--lines", type=line_count, default=20, metavar="N", help="last lines of each file; default: %(default)s"
    )
    logs.add_argument("--all", action="store_true", help="show every rank; default: the first 16 ranks")
    logs.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="copy the whole files into this new or empty directory",
    )

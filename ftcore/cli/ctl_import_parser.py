"""The arguments of ``ftctl import``."""

import argparse
from collections.abc import Callable
from typing import Any

from ftcore.cli.ctl_futures import FORMATS

IMPORT = """\
ftctl import ./logs -o job.ftlog
ftctl import ./logs torchrun.out -o job.ftlog --from torchrun
ftctl import slurm-4711.out sacct.txt -o job.ftlog --steps 'it=(\\d+)'
ftctl import ./logs -o job.ftlog && ftctl --store file:job.ftlog incidents"""

SOURCES = ("torchrun", "slurm", "kubectl", "text")


def add_import(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: the subparsers.
        command: adds a command without a log.
    """
    parser = command(
        commands,
        "import",
        "Make an event log of the log files of a job that did not run under ftcore; other commands then read it.",
        IMPORT,
    )
    parser.add_argument("path", nargs="+", metavar="FOLDER|FILE", help="folder with log files, or single files")
    parser.add_argument(
        "-o", "--out", required=True, metavar="FILE.ftlog", help="the log; an existing archive is overwritten"
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=SOURCES,
        help="what wrote the files: torchrun --log-dir, Slurm (sacct -P, job and daemon logs), kubectl (get events or "
        "pods -o json, pod logs), or text: any log; default: detected",
    )
    parser.add_argument(
        "--steps", metavar="REGEX", help="pattern of a line with a completed step; its first group is the step's number"
    )
    parser.add_argument("--format", choices=FORMATS, default="table", help="default: table")

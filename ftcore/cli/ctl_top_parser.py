"""The arguments of ``ftctl top``."""

import argparse
from collections.abc import Callable
from typing import Any

_KEYS = (
    "keys: q quit; n nodes one by one, worst first; e events; m or Esc main page; arrows, j, k, PgUp, PgDn, Home, End "
    "scroll; space freeze; ? list of keys"
)


def add_top(commands: Any, reading: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the command.

    Args:
        commands: what ``add_subparsers`` returned.
        reading: adds a command that reads a log, with ``--store``, ``--job`` and ``--format``.
    """
    top = reading(
        commands,
        "top",
        "Watch a job: state, step and rate, the open incident with the running clock of its phase, who is asked next, "
        "nodes by state, spares, last events. Waits if the job does not exist yet or the log store is unavailable.",
        "ftctl top\nftctl --job demo top --once\nftctl top --once --format json | jq .incident\n"
        "ftctl top --link https://head:9401   # the page of ftrun --observe page://0.0.0.0:9401",
    )
    top.description = f"{top.description} {_KEYS}."
    top.add_argument(
        "--once", action="store_true", help="print one screen and end, as if standard output is not a terminal"
    )
    top.add_argument(
        "--plain",
        action="store_true",
        help="print one screen, then a line for each event: for screen readers, and for terminals that cannot move the "
        "cursor (TERM=dumb)",
    )
    top.add_argument(
        "--link",
        metavar="URL",
        help="print the address of the job's page at this URL, with a token that permits to read the page and nothing "
        "else, and end",
    )

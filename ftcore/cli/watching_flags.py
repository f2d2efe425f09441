"""The flags of ``ftrun`` about watching a job from outside; see ``runtime/observers.py``.

House rule: imported before the warm process is started (``ftrun.py``), so it imports nothing heavy.
"""

import argparse
import os
from collections.abc import Callable

from ftcore.runtime.log_format import FORMAT_ENV, FORMATS

OBSERVE_ENV = "FTCORE_OBSERVE"


def add_watching(parser: argparse.ArgumentParser, add: Callable[..., None]) -> None:
    """Add the flags.

    Args:
        parser: of ``ftrun``.
        add: adds an option in both spellings.
    """
    group = parser.add_argument_group("watching the job")
    add(
        group,
        "--log-format",
        choices=FORMATS,
        default=os.environ.get(FORMAT_ENV, FORMATS[0]),
        help="text, or json: ftcore's own messages and the narration as JSON lines with job, node, round and incident; "
        f"default: ${FORMAT_ENV}, else text",
    )
    add(
        group,
        "--observe",
        action="append",
        metavar="URL",
        help="observer of an installed package that runs beside the master, as prometheus://0.0.0.0:9400; may be "
        f"repeated (default: ${OBSERVE_ENV}, URLs separated by spaces)",
    )


def set_log_format(parser: argparse.ArgumentParser, given: str) -> None:
    """Set the format for this process and those that it starts; argparse checks no default from the environment."""
    if given not in FORMATS:
        parser.error(f"${FORMAT_ENV}: found {given!r}; expected {' or '.join(FORMATS)}")
    os.environ[FORMAT_ENV] = given


def observed(given: list[str] | str | None) -> tuple[str, ...]:
    """The URLs of ``--observe``, of ``PET_OBSERVE`` as one text, or of the environment, in order, each once."""
    urls = os.environ.get(OBSERVE_ENV, "") if given is None else given
    return tuple(dict.fromkeys(urls.split() if isinstance(urls, str) else urls))

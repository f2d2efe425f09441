"""Completes ``ftctl`` commands in messages, so that users can run them as printed.

Messages of the log, the engine and the stores contain commands without store and job, as ``ftctl resume``. Both are
added before the message is printed.
"""

import argparse
import os
import re
import shlex

from ftcore.logs import default_store_url

_COMMAND = re.compile(
    r"\bftctl (?=(?:jobs|status|events|incidents|explain|goodput|samples|report|replay|bisect|export|observe|salvage"
    r"|whatif|pause|resume|drain|evict|admit|checkpoints?|stop|note|logbook|failures|logs|top)\b)"
)


def completed(text: str, store: str | None, job: str | None) -> str:
    """The text with ``--store`` and ``--job`` added to each ``ftctl`` command that reads a log.

    Args:
        text: the message.
        store: URL of the store; None for the default store, which needs no flag.
        job: the job; None if not known.
    """
    flags = f"--store {shlex.quote(store)} " if store else ""

    def complete(found: re.Match[str]) -> str:
        named = re.match(r"[^;`\n]*--job\b", text[found.end() :])
        return f"ftctl {flags}{f'--job {shlex.quote(job)} ' if job and not named else ''}"

    return _COMMAND.sub(complete, text)


def elsewhere(store: str) -> str | None:
    """The store's URL if ``ftctl`` needs ``--store`` here; None if it is the default of ``ftctl``."""
    return None if store == (os.environ.get("FTCORE_STORE") or default_store_url()) else store


def hinted(text: str, args: argparse.Namespace) -> str:
    """The text completed with store and job of these arguments; see ``completed``."""
    return completed(text, getattr(args, "store", None), getattr(args, "job", None))

"""Hints: commands in messages, completed so that they run as they are printed.

Messages of the log, the engine and the stores name a command without knowing how this user reaches the job, as
``ftctl resume``. Before such a text is printed, the store and the job are put into it.
"""

import argparse
import os
import re
import shlex

from ftcore.logs import default_store_url

_COMMAND = re.compile(
    r"\bftctl (?=(?:jobs|status|events|incidents|explain|replay|export|salvage|whatif|pause|resume|drain|evict|admit"
    r"|checkpoint|stop)\b)"
)


def completed(text: str, store: str | None, job: str | None) -> str:
    """The text with ``--store`` and ``--job`` in each ``ftctl`` command that reads a log.

    Args:
        text: the message.
        store: URL of the store; None: the default one, which needs no flag.
        job: the job; None: not known.
    """
    flags = f"--store {shlex.quote(store)} " if store else ""

    def complete(found: re.Match[str]) -> str:
        named = re.match(r"[^;`\n]*--job\b", text[found.end() :])
        return f"ftctl {flags}{f'--job {shlex.quote(job)} ' if job and not named else ''}"

    return _COMMAND.sub(complete, text)


def elsewhere(store: str) -> str | None:
    """The store, if ``ftctl`` has to be told of it here; None if it is the one that it takes by itself.

    Args:
        store: URL of the store.
    """
    return None if store == (os.environ.get("FTCORE_STORE") or default_store_url()) else store


def hinted(text: str, args: argparse.Namespace) -> str:
    """The text with the store and the job that these arguments name; see ``completed``."""
    return completed(text, getattr(args, "store", None), getattr(args, "job", None))

"""The format of log lines: ``text`` or ``json``. House rule: imports nothing else, because ``ftrun`` parses with it."""

import os

FORMAT_ENV = "FTCORE_LOG_FORMAT"
"""Inherited by masters, observers and agents, not by workers."""

FORMATS = ("text", "json")


def is_json() -> bool:
    """Whether this process writes JSON lines."""
    return os.environ.get(FORMAT_ENV) == "json"

"""Whom an alert goes to: URLs of apprise, and references that keep them out of the log. Pure.

A policy file stands in the log, whole, for everybody who may read it; the URL of a chat often *is* the secret that lets
one write there. So a target may be ``env:NAME`` or ``file:/path`` instead: it is read where and when a message is sent,
on the master's host, and may hold several URLs, one to a line. Of a URL that stands in a policy file all the same, only
the scheme is shown.
"""

import re
from typing import Any

from ftcore.events.policy import ChainEntry

ENV, FILE = "env:", "file:"

_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://[^\s\"'\\\],}]+")


def targets(chain: tuple[ChainEntry, ...]) -> tuple[str, ...]:
    """Whom a chain's alerts go to."""
    return tuple(dict.fromkeys(to for entry in chain if entry.policy == "alert" for to in entry.options.get("to", ())))


def is_reference(target: str) -> bool:
    """Whether the target names a place to read it from."""
    return target.startswith(ENV) or (target.startswith(FILE) and not target.startswith("file://"))


def shown(target: str) -> str:
    """The target as people may see it."""
    if is_reference(target):
        return target
    scheme, sign, _ = target.partition("://")
    return f"{scheme}://…" if sign else "…"


def hidden(value: Any) -> Any:
    """Plain JSON without what follows the scheme of a URL, in any string of it."""
    if isinstance(value, str):
        return _URL.sub(r"\1://…", value)
    if isinstance(value, dict):
        return {key: hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item) for item in value]
    return value

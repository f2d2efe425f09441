"""Whom an alert goes to: URLs of apprise, and references that keep them out of the log. Pure.

A policy file stands in the log, whole, for everybody who may read it; the URL of a chat often *is* the secret that lets
one write there. So a target may be ``env:NAME`` or ``file:/path`` instead: it is read where and when a message is sent,
on the master's host, and may hold several URLs, one to a line. Of a URL that stands in a policy file all the same, only
the scheme is shown.
"""

import difflib
import re
from typing import Any

from ftcore.events.policy import ChainEntry
from ftcore.policies.traits import Trait, having, options_of

ENV, FILE = "env:", "file:"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_A_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://\S+")
_URL = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]*)://[^\s\"'\\\],}]+")


def targets(chain: tuple[ChainEntry, ...]) -> tuple[str, ...]:
    """Whom a chain's alerts go to."""
    return tuple(dict.fromkeys(to for entry in having(chain, Trait.ALERTS) for to in options_of(entry).to))


def is_reference(target: str) -> bool:
    """Whether the target names a place to read it from."""
    return target.startswith(ENV) or (target.startswith(FILE) and not target.startswith("file://"))


def wrong_target(target: str) -> str:
    """Why nobody could be told through this target; empty if it may be one. No part of what may be a secret is told."""
    if target.startswith(ENV):
        name = target.removeprefix(ENV)
        if _VARIABLE.fullmatch(name) is None:
            return f"found {target[:60]!r}; expected the name of an environment variable behind `env:`, as env:CHAT_URL"
        return ""
    if target.startswith(FILE) and not target.startswith("file://"):
        path = target.removeprefix(FILE)
        return "" if path.startswith("/") and path != "/" else f"found {target[:60]!r}; expected file:/ABSOLUTE/PATH"
    if _A_URL.match(target) is not None and not target.startswith("file://"):
        return ""
    scheme = target.partition(":")[0]
    near = difflib.get_close_matches(scheme.lower(), ("env", "file"), n=1, cutoff=0.5) if scheme != target else []
    hint = f"; did you mean '{near[0]}:'?" if near else ""
    return f"found {_veiled(target)}, which is no target; expected env:NAME, file:/PATH or a URL, as json://host{hint}"


def _veiled(target: str) -> str:
    """The beginning of what may be a mistyped secret."""
    return repr(target if len(target) <= 12 else f"{target[:4]}…")


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

"""Targets of alerts: URLs for apprise, and references that keep these URLs out of the log. Pure.

The event log contains the whole policy file, and a webhook URL is usually a secret. So a target may be ``env:NAME`` or
``file:/path``: the master reads it on its own host when it sends an alert. It may hold several URLs, one per line. If a
policy file contains a URL itself, outputs show only its scheme.
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
    """The alert targets of a chain, without duplicates."""
    return tuple(dict.fromkeys(to for entry in having(chain, Trait.ALERTS) for to in options_of(entry).to))


def is_reference(target: str) -> bool:
    """Whether the target is a reference (``env:``, ``file:``) and not a URL."""
    return target.startswith(ENV) or (target.startswith(FILE) and not target.startswith("file://"))


def wrong_target(target: str) -> str:
    """Why a target is invalid; empty if it is valid. The message does not reveal what may be a secret."""
    if target.startswith(ENV):
        name = target.removeprefix(ENV)
        if _VARIABLE.fullmatch(name) is None:
            return f"found {target[:60]!r}; expected env:NAME with the name of an environment variable, as env:CHAT_URL"
        return ""
    if target.startswith(FILE) and not target.startswith("file://"):
        path = target.removeprefix(FILE)
        return "" if path.startswith("/") and path != "/" else f"found {target[:60]!r}; expected file:/ABSOLUTE/PATH"
    if _A_URL.match(target) is not None and not target.startswith("file://"):
        return ""
    scheme = target.partition(":")[0]
    near = difflib.get_close_matches(scheme.lower(), ("env", "file"), n=1, cutoff=0.5) if scheme != target else []
    hint = f"; did you mean '{near[0]}:'?" if near else ""
    return f"found {_abbreviated(target)}; expected env:NAME, file:/PATH or a URL, as json://host{hint}"


def _abbreviated(target: str) -> str:
    """The start of a target; the rest may be a mistyped secret."""
    return repr(target if len(target) <= 12 else f"{target[:4]}…")


def shown(target: str) -> str:
    """The target as shown to users: of a URL only the scheme."""
    if is_reference(target):
        return target
    scheme, sign, _ = target.partition("://")
    return f"{scheme}://…" if sign else "…"


def hidden(value: Any) -> Any:
    """JSON data in which every URL is cut behind its scheme."""
    if isinstance(value, str):
        return _URL.sub(r"\1://…", value)
    if isinstance(value, dict):
        return {key: hidden(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item) for item in value]
    return value

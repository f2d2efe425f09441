"""Sends one alert through apprise; runs in a separate process (``alert_child.py``).

House rule: secrets are read here and sent only to their service. An error message names a target as the policy file
does and contains no part of a URL.
"""

import logging
import os
import re
from pathlib import Path
from typing import Any

import msgspec

from ftcore.policies.targets import ENV, FILE, is_reference, shown

LIMIT_S = 20.0
"""Timeout of one message, in seconds."""

INSTALL = "apprise is not installed where the master runs: pip install 'ftcore[alerts]'"

_KINDS = {"info": "info", "warning": "warning", "critical": "failure"}
_PIECE_MIN = 4
"""Shorter pieces of a URL are not treated as secrets."""


class Message(msgspec.Struct, frozen=True):
    """An alert to send.

    Args:
        to: targets, as in the policy file.
        title: one line.
        text: the message.
        severity: ``info``, ``warning`` or ``critical``.
        first_failure: what failed first, as ``ftctl failures --format json`` prints it; a field of the JSON that
            ``json://`` and ``jsons://`` targets receive. Other services have the line in the text.
    """

    to: tuple[str, ...]
    title: str
    text: str
    severity: str = "warning"
    first_failure: dict[str, Any] | None = None


class Delivery(msgspec.Struct, frozen=True):
    """The result of sending.

    Args:
        failed: errors, by index of the target.
        missing: apprise is not installed.
    """

    failed: dict[int, str] = {}
    missing: bool = False


def urls(target: str) -> list[str]:
    """The URLs of a target.

    Raises:
        ValueError: the referenced variable or file has none.
    """
    if not is_reference(target):
        return [target]
    if target.startswith(ENV):
        name = target.removeprefix(ENV)
        text = os.environ.get(name, "")
        if not text.strip():
            raise ValueError(f"the environment of the master has no {name}")
    else:
        try:
            text = Path(target.removeprefix(FILE)).read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise ValueError(f"cannot be read on the master's host: {reason}") from error
    found = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not found:
        raise ValueError("contains no URL")
    return found


def send(message: Message) -> Delivery:
    """Send a message to its targets, one after the other."""
    try:
        import apprise
    except ImportError:
        return Delivery(missing=True)
    warnings = _LastWarning()
    logging.getLogger("apprise").addHandler(warnings)
    logging.getLogger("apprise").propagate = False
    failed = {}
    for number, target in enumerate(message.to):
        try:
            for url in urls(target):
                warnings.last = ""
                service = apprise.Apprise()
                if not service.add(url):
                    raise ValueError("not a URL that apprise supports (https://appriseit.com/services)")
                _add_fields(service, message)
                if not service.notify(body=message.text, title=message.title, notify_type=_KINDS[message.severity]):
                    raise ValueError(_without(warnings.last, url) or "the service rejected the message")
        except ValueError as error:
            failed[number] = f"{shown(target)}: {error}"
        except Exception as error:  # of a plugin; its text may contain secrets
            failed[number] = f"{shown(target)}: {type(error).__name__} in apprise"
    return Delivery(failed=failed)


def _add_fields(service: Any, message: Message) -> None:
    """Add the first failure to what a JSON webhook receives; a field of that name in its URL has precedence."""
    if message.first_failure is None:
        return
    for target in service:
        if getattr(target, "secure_protocol", "") == "jsons" and isinstance(
            extras := getattr(target, "payload_extras", None), dict
        ):
            extras.setdefault("first_failure", message.first_failure)


class _LastWarning(logging.Handler):
    """Keeps the last warning of apprise, which has the reason of a failure."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Store the message."""
        self.last = " ".join(record.getMessage().split())[:300]


def _without(text: str, url: str) -> str:
    """The text without any piece of the URL, its scheme aside."""
    pieces = re.split(r"[/:@?&=,#]+", url.partition("://")[2])
    for piece in sorted((piece for piece in pieces if len(piece) >= _PIECE_MIN), key=len, reverse=True):
        text = text.replace(piece, "…")
    return text

"""What each log line of a process says about its place in the job.

The fields are those of the process, not of a task: a change is seen by every task and thread.
"""

from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import Any

import msgspec

_about: dict[str, Any] = {}


def describe(**fields: Any) -> None:
    """Set fields of all later lines: ``job``, ``node``, ``round``, ``incident``. None or empty: unknown, left out."""
    for name, value in fields.items():
        if value or value == 0:
            _about[name] = value
        else:
            _about.pop(name, None)


def add_context(_logger: Any, _method: str, fields: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add the fields of the process to those of a line, which win; a processor of structlog."""
    return {**_about, **fields}


def json_line(time_ns: int, level: str, event: str, **fields: Any) -> str:
    """A line with the fields of the process, as structlog's JSON lines have them.

    Args:
        time_ns: nanoseconds since the epoch.
        level: ``info`` or ``warning``.
        event: the message.
        fields: further fields, which win; None: left out.
    """
    stamp = datetime.fromtimestamp(time_ns / 1e9, UTC).isoformat().replace("+00:00", "Z")
    known = {name: value for name, value in {**_about, **fields}.items() if value is not None}
    return msgspec.json.encode({"event": event, "level": level, "timestamp": stamp, **known}).decode()

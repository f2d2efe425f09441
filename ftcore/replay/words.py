"""Words and forms that all readers of a log share."""

import datetime

from ftcore.ids import SECOND

NOBODY = "nobody"
"""Who ended an incident that no policy took."""


def utc(time_ns: int) -> str:
    """RFC 3339 in UTC with microseconds."""
    whole, rest = divmod(time_ns, SECOND)
    moment = datetime.datetime.fromtimestamp(whole, datetime.UTC).replace(microsecond=rest // 1000)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment(name: str, time_ns: int | None) -> dict[str, str | int | None]:
    """A moment as JSON has it: under its name by RFC 3339, and as NAME_ns in nanoseconds since the epoch."""
    return {name: None if time_ns is None else utc(time_ns), f"{name}_ns": time_ns}

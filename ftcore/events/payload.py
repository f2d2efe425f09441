"""The base of all data of events.

House rules: it has no fields. ``attrs`` would compile a ``repr`` for each of a hundred classes at import, a quarter of
the time that importing the events takes; one for all of them is only slower when it is printed.
"""

from typing import Any

import attrs


class Payload:
    """Data of an event, or a part of it: an attrs class, made with ``repr=False``."""

    __slots__ = ()

    def __repr__(self) -> str:
        kind: Any = type(self)
        fields = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in attrs.fields(kind))
        return f"{type(self).__qualname__}({fields})"

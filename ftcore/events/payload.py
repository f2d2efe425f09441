"""The base of all data of events.

House rules: it has no fields. ``attrs`` would compile ``repr``, ``eq`` and ``hash`` for each of a hundred classes at
import, half of the time that importing the events takes. One for all of them costs as much where it is used often.
"""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any

import attrs


class Payload:
    """Data of an event, or a part of it: an attrs class, made with ``repr=False`` and ``eq=False``."""

    __slots__ = ()

    def __repr__(self) -> str:
        kind: Any = type(self)
        names = _names(kind)
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    def __eq__(self, other: object) -> bool:
        kind: Any = type(self)
        values = _values(kind)
        if type(other) is not kind:
            return NotImplemented
        return bool(values(self) == values(other))

    def __hash__(self) -> int:
        kind: Any = type(self)
        return hash((kind, _values(kind)(self)))


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in attrs.fields(kind))


@cache
def _values(kind: Any) -> Callable[[object], object]:
    """Returns a function that returns the values of all fields."""
    names = _names(kind)
    return attrgetter(*names) if names else lambda payload: ()

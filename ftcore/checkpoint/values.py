"""Python values of a checkpoint as JSON text: exact, readable, and decoded without executing code.

What JSON has is JSON. Everything else is an object with the key ``$``, which names its type:

| value | JSON |
|---|---|
| None, bool, int, finite float, str, list | itself; integers have any size |
| dict with keys that are str, none of them ``$`` | an object |
| other dict | ``{"$": "dict", "items": [[KEY, VALUE], ...]}`` |
| tuple | ``{"$": "tuple", "items": [...]}`` |
| bytes | ``{"$": "bytes", "base64": TEXT}`` |
| infinite float, NaN | ``{"$": "float", "is": "inf"}``, or ``-inf``, ``nan`` |

NumPy's scalars become numbers, an ``OrderedDict`` becomes a dict. Other types are refused by name: a value that is
loaded as another type is a fault that appears only after the next restart.

House rules: the text is ASCII. The type is the exact type, never a subclass, which could lose what it adds.
"""

import base64
import binascii
import json
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

DEPTH_MAX: Final = 200
"""Levels of nesting; a value that contains itself has no end."""

_TAG: Final = "$"
_PLAIN: Final = {type(None), bool, int, str}
_ADVICE: Final = {
    "set": "convert it with sorted()",
    "frozenset": "convert it with sorted()",
    "bytearray": "convert it with bytes()",
    "complex": "store (z.real, z.imag)",
    "ndarray": "register it as a tensor: torch.from_numpy(x)",
    "Tensor": "put it into a dict of tensors that is registered",
    "Size": "convert it with tuple()",
    "deque": "convert it with list()",
    "defaultdict": "convert it with dict()",
}
"""What to do instead, by the name of the type."""


def encode(value: object, where: str) -> str:
    """Return the JSON text of a value.

    Args:
        value: None, bool, int, float, str, bytes, list, tuple, dict, and NumPy's scalars, nested.
        where: the value's name, for errors.

    Raises:
        ValueError: something in the value has another type, or is nested more than ``DEPTH_MAX`` levels deep.
    """
    packed = _pack(value, where, 0)
    try:
        return json.dumps(packed, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    except ValueError as error:  # an integer of more digits than Python prints
        raise ValueError(f"{where} cannot be saved: {error}") from error


def decode(text: str) -> Any:
    """Return the value that ``encode`` wrote.

    Raises:
        ValueError: the text is not from ``encode``.
    """
    try:
        return _unpack(json.loads(text, parse_constant=_refuse))
    except (RecursionError, KeyError, TypeError, binascii.Error, UnicodeEncodeError) as error:
        raise ValueError(f"not a saved value: {type(error).__name__}: {error}") from error


def _refuse(constant: str) -> Any:
    raise ValueError(f"not a saved value: {constant} is not JSON")


def _pack(value: Any, where: str, depth: int) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "is": str(value)}
    if depth >= DEPTH_MAX:
        raise ValueError(f"{where} cannot be saved: more than {DEPTH_MAX} levels, or the value contains itself")
    if kind is list:
        return _pack_items(value, where, depth)
    if kind is tuple:
        return {_TAG: "tuple", "items": _pack_items(value, where, depth)}
    if kind is dict or kind is OrderedDict:
        return _pack_dict(value, where, depth)
    if kind is bytes:
        return {_TAG: "bytes", "base64": base64.b64encode(value).decode("ascii")}
    if kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(value, "item"):
        number = value.item()
        if type(number) is not kind:  # a longdouble has no number of Python
            return _pack(number, where, depth + 1)
    raise ValueError(
        f"{where} cannot be saved: it is a {kind.__module__}.{kind.__qualname__}; expected None, bool, int, float, "
        f"str, bytes, list, tuple, dict or a tensor; {_ADVICE.get(kind.__name__, 'convert it in state_dict()')}"
    )


def _pack_items(items: Any, where: str, depth: int) -> list[Any]:
    if set(map(type, items)) <= _PLAIN:  # a sampler's list of a million numbers
        return list(items)
    return [_pack(item, f"{where}[{number}]", depth + 1) for number, item in enumerate(items)]


def _pack_dict(value: dict[Any, Any], where: str, depth: int) -> dict[str, Any]:
    if _TAG not in value and all(type(key) is str for key in value):
        return {key: _pack(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()}
    items = [
        [_pack(key, f"a key of {where}", depth + 1), _pack(item, f"{where}[{key!r}]", depth + 1)]
        for key, item in value.items()
    ]
    return {_TAG: "dict", "items": items}


def _unpack(value: Any) -> Any:
    kind = type(value)
    if kind is list:
        if set(map(type, value)) <= _PLAIN:
            return value
        return [_unpack(item) for item in value]
    if kind is not dict:
        return value
    if _TAG not in value:
        return {key: _unpack(item) for key, item in value.items()}
    return _tagged(value)


def _tagged(value: dict[str, Any]) -> Any:
    readers: dict[Any, Callable[[], Any]] = {
        "tuple": lambda: tuple(_unpack(item) for item in value["items"]),
        "dict": lambda: {_unpack(key): _unpack(item) for key, item in value["items"]},
        "bytes": lambda: base64.b64decode(value["base64"].encode("ascii"), validate=True),
        "float": lambda: {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}[value["is"]],
    }
    tag = value[_TAG]
    if type(tag) is not str or tag not in readers:
        raise ValueError(f"not a saved value: unknown type {tag!r}; a newer ftcore may have written it")
    return readers[tag]()

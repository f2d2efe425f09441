"""Resource quantities: ``500m``, ``2Gi``, ``1e3``. Source: Kubernetes documentation, "Quantity"."""

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

_PATTERN = re.compile(r"([+-]?[0-9.]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?")
_FACTORS = {unit: Decimal(1024) ** (at + 1) for at, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))} | {
    unit: Decimal(10) ** power
    for unit, power in {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}.items()
}


def amount(value: str | float) -> Decimal:
    """A quantity as a number; raises ValueError."""
    if not isinstance(value, str):
        return Decimal(str(value))
    found = _PATTERN.fullmatch(value.strip())
    if found is None:
        raise ValueError(value)
    number, unit = Decimal(found[1]), found[2] or ""
    if unit[:1] in ("e", "E") and len(unit) > 1:
        return number * Decimal(10) ** int(unit[1:])
    return number * _FACTORS.get(unit, Decimal(1))


def written(value: Decimal) -> str:
    """A number as a quantity."""
    if value == value.to_integral_value():
        return str(int(value))
    return f"{int(value * 1000)}m"


Amounts = dict[str, Decimal]


def added(first: Mapping[str, Decimal], second: Mapping[str, Decimal], sign: int = 1) -> Amounts:
    """The sum of two sets of amounts, or with ``sign=-1`` the difference."""
    zero = Decimal(0)
    return {key: first.get(key, zero) + sign * second.get(key, zero) for key in {**first, **second}}


def requests(pod: Mapping[str, Any], kind: str = "requests") -> Amounts:
    """What a pod asks for: its containers' sum, or more if an init container asks for more."""
    spec = pod["spec"]

    def of(containers: Iterable[Mapping[str, Any]]) -> list[Amounts]:
        return [{k: amount(v) for k, v in _asked(each, kind).items()} for each in containers]

    total: Amounts = {}
    for each in of(spec["containers"]):
        total = added(total, each)
    inits = spec.get("initContainers") or ()
    for each in of(one for one in inits if one.get("restartPolicy") == "Always"):
        total = added(total, each)
    for each in of(one for one in inits if one.get("restartPolicy") != "Always"):
        total = {key: max(total.get(key, Decimal(0)), each.get(key, Decimal(0))) for key in {**total, **each}}
    return total


def _asked(container: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    return limits if kind == "limits" else {**limits, **(resources.get("requests") or {})}

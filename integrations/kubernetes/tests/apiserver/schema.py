"""Structural schemas of custom resources: prune unknown fields, fill in defaults, check.

Source: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions". Rules in CEL
(``x-kubernetes-validations``) are not evaluated.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .status import Cause, Json, prohibited, required, shown, unsupported, wrong

PRESERVE = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}


def pruned(schema: Mapping[str, Any], value: Any, path: str = "", unknown: list[str] | None = None) -> Any:
    """A copy without the fields that the schema does not know; their paths are added to ``unknown``."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        return [pruned(items, each, f"{path}[{at}]", unknown) for at, each in enumerate(value)]
    if not isinstance(value, dict):
        return value
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    found = {}
    for key, each in value.items():
        where = f"{path}.{key}" if path else key
        if key in known:
            found[key] = pruned(known[key], each, where, unknown)
        elif isinstance(more, dict):
            found[key] = pruned(more, each, where, unknown)
        elif more or schema.get(PRESERVE) or _embedded(schema, key):
            found[key] = each
        elif unknown is not None:
            unknown.append(where)
    return found


def _embedded(schema: Mapping[str, Any], key: str) -> bool:
    return bool(schema.get("x-kubernetes-embedded-resource")) and key in ("apiVersion", "kind", "metadata")


def defaulted(schema: Mapping[str, Any], value: Any) -> Any:
    """Fill in the defaults of absent fields, and of nulls that are not allowed; changes ``value``."""
    if isinstance(value, list):
        items = schema.get("items") or {}
        for each in value:
            defaulted(items, each)
    elif isinstance(value, dict):
        for key, each in (schema.get("properties") or {}).items():
            null = key in value and value[key] is None and not each.get("nullable")
            if "default" in each and (key not in value or null):
                value[key] = copy.deepcopy(each["default"])
            elif null:
                del value[key]
            if key in value:
                defaulted(each, value[key])
        more = schema.get("additionalProperties")
        if isinstance(more, dict):
            for key, each in value.items():
                if key not in (schema.get("properties") or {}):
                    defaulted(more, each)
    return value


def _name_of_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next(name for name, types in TYPES.items() if isinstance(value, types))


def problems(schema: Mapping[str, Any], value: Any, path: str = "") -> Iterator[Cause]:
    """What the schema does not allow in ``value``."""
    if value is None and schema.get("nullable"):
        return
    if schema.get(INT_OR_STRING):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield _of_type(path, value, "integer,string")
        return
    kind = schema.get("type", "")
    if kind and not _is_a(kind, value):
        yield _of_type(path, value, kind)
        return
    if (allowed := schema.get("enum")) is not None and value not in allowed:
        yield unsupported(path, value, [str(each) for each in allowed])
    if isinstance(value, dict):
        yield from _object(schema, value, path)
    elif isinstance(value, list):
        yield from _array(schema, value, path)
    elif isinstance(value, str):
        yield from _string(schema, value, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _number(schema, value, path)
    yield from _junctors(schema, value, path)


def _is_a(kind: str, value: Any) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    whole = isinstance(value, float) and value.is_integer()
    return isinstance(value, TYPES[kind]) or (kind == "integer" and whole)


def _of_type(path: str, value: Any, kind: str) -> Cause:
    name = _name_of_type(value)
    text = f"Invalid value: {shown(name)}: {path or '<nil>'} in body must be of type {kind}: {shown(name)}"
    return Cause(path or "<nil>", "FieldValueTypeInvalid", text)


def _object(schema: Mapping[str, Any], value: Json, path: str) -> Iterator[Cause]:
    known, more = schema.get("properties") or {}, schema.get("additionalProperties")
    for key in schema.get("required") or ():
        if key not in value:
            yield required(f"{path}.{key}" if path else key)
    for key, each in value.items():
        rule = known.get(key, more if isinstance(more, dict) else None)
        if rule is not None:
            yield from problems(rule, each, f"{path}.{key}" if path else key)
    if (most := schema.get("maxProperties")) is not None and len(value) > most:
        yield Cause(path, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items")
    if (least := schema.get("minProperties")) is not None and len(value) < least:
        yield wrong(path, value, f"{path} in body should have at least {least} properties")


def _array(schema: Mapping[str, Any], value: list[Any], path: str) -> Iterator[Cause]:
    for at, each in enumerate(value):
        yield from problems(schema.get("items") or {}, each, f"{path}[{at}]")
    if (most := schema.get("maxItems")) is not None and len(value) > most:
        yield Cause(path, "FieldValueTooMany", f"Too many: {len(value)}: must have at most {most} items")
    if (least := schema.get("minItems")) is not None and len(value) < least:
        yield wrong(path, len(value), f"{path} in body should have at least {least} items")
    keys = schema.get("x-kubernetes-list-map-keys")
    if keys or schema.get("x-kubernetes-list-type") == "set":
        seen: list[Any] = []
        for at, each in enumerate(value):
            mark = {key: each.get(key) for key in keys} if keys and isinstance(each, dict) else each
            if mark in seen:
                yield Cause(f"{path}[{at}]", "FieldValueDuplicate", f"Duplicate value: {shown(mark)}")
            seen.append(mark)


def _string(schema: Mapping[str, Any], value: str, path: str) -> Iterator[Cause]:
    if (most := schema.get("maxLength")) is not None and len(value) > most:
        yield Cause(path, "FieldValueTooLong", f"Too long: may not be more than {most} bytes")
    if (least := schema.get("minLength")) is not None and len(value) < least:
        yield wrong(path, value, f"{path} in body should be at least {least} chars long")
    if (pattern := schema.get("pattern")) is not None and not re.search(pattern, value):
        yield wrong(path, value, f"{path} in body should match '{pattern}'")


def _number(schema: Mapping[str, Any], value: float, path: str) -> Iterator[Cause]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and (value < low or (value == low and schema.get("exclusiveMinimum"))):
        more = "greater than" if schema.get("exclusiveMinimum") else "greater than or equal to"
        yield wrong(path, value, f"{path} in body should be {more} {low}")
    if high is not None and (value > high or (value == high and schema.get("exclusiveMaximum"))):
        less = "less than" if schema.get("exclusiveMaximum") else "less than or equal to"
        yield wrong(path, value, f"{path} in body should be {less} {high}")
    if (step := schema.get("multipleOf")) is not None and value % step:
        yield wrong(path, value, f"{path} in body should be a multiple of {step}")


def _junctors(schema: Mapping[str, Any], value: Any, path: str) -> Iterator[Cause]:
    for each in schema.get("allOf") or ():
        yield from problems(each, value, path)
    if (any_of := schema.get("anyOf")) and not any(_fits(each, value) for each in any_of):
        yield wrong(path, value, f"{path} in body must validate at least one schema (anyOf)")
    if (one_of := schema.get("oneOf")) and sum(_fits(each, value) for each in one_of) != 1:
        yield wrong(path, value, f"{path} in body must validate one and only one schema (oneOf)")
    if (other := schema.get("not")) and _fits(other, value):
        yield prohibited(path, f"{path} in body must not validate the schema (not)")


def _fits(schema: Mapping[str, Any], value: Any) -> bool:
    return next(problems(schema, value), None) is None

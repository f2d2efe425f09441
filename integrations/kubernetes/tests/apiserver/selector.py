"""Label and field selectors of list, watch and deletecollection.

Source: Kubernetes documentation, "Labels and Selectors" and "Field Selectors".
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from .resources import Resource
from .status import bad_request

Json = dict[str, Any]
Matcher = Callable[[Json], bool]
Term = Callable[[Mapping[str, str]], bool]

_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_EQUAL = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*([-A-Za-z0-9_.]*)$")
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")

FIELDS: dict[str, tuple[str, ...]] = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath", "reason",
        "reportingComponent", "source", "type",
    ),
    "nodes": ("spec.unschedulable",),
    "namespaces": ("status.phase",),
    "secrets": ("type",),
}  # fmt: skip
"""Fields that a list of these built-in resources can be selected by, besides name and namespace."""


def label_terms(text: str) -> list[Term]:
    """The terms of a label selector; raises a 400 if it cannot be read."""
    return [_term(part.strip(), text) for part in _split(text) if part.strip()]


def _split(text: str) -> list[str]:
    return re.split(r",(?![^(]*\))", text)


def _term(part: str, text: str) -> Term:
    if found := _SET.match(part):
        key, operator = found[1], found[3]
        values = {value.strip() for value in found[4].split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if found := _EQUAL.match(part):
        key, operator, value = found[1], found[3], found[4]
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if found := _EXISTS.match(part):
        key = found[2]
        if found[1]:
            return lambda labels: key not in labels
        return lambda labels: key in labels
    raise bad_request(f"unable to parse requirement: found '{part}' in label selector {text!r}")


def at(value: Any, path: str) -> Any:
    """The field of an object at a dotted path; None if there is none."""
    for key in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _field(resource: Resource, obj: Json, path: str) -> str:
    value = at(obj, path)
    if value is None and path in ("spec.unschedulable", "spec.hostNetwork"):
        return "false"
    if resource.plural == "events" and path == "source":
        return _text(at(obj, "source.component"))
    return _text(value)


def matcher(resource: Resource, labels: str, fields: str) -> Matcher | None:
    """What decides whether an object is selected; None if all are."""
    terms = label_terms(labels)
    wanted: list[tuple[str, bool, str]] = []
    known = ("metadata.name", "metadata.namespace", *resource.selectable)
    if not resource.custom:
        known += FIELDS.get(resource.plural, ())
    for part in filter(None, fields.split(",")):
        path, sign, value = re.match(r"^([^=!]*)(==|=|!=|)(.*)$", part).groups()  # type: ignore[union-attr]
        if not sign:
            raise bad_request(f"invalid field selector: can't understand '{part}'")
        if path not in known:
            raise bad_request(
                f'Unable to find "{resource.api_version}, Resource={resource.plural}" that match label selector '
                f'"{labels}", field selector "{fields}": field label not supported: {path}'
            )
        wanted.append((path, sign != "!=", value))
    if not terms and not wanted:
        return None

    def match(obj: Json) -> bool:
        found = obj["metadata"].get("labels") or {}
        return all(term(found) for term in terms) and all(
            (_field(resource, obj, path) == value) == equal for path, equal, value in wanted
        )

    return match


def requirements(selector: Mapping[str, Any] | None) -> list[Term]:
    """The terms of a ``LabelSelector`` object (``matchLabels``, ``matchExpressions``); an empty one selects all."""
    selector = selector or {}
    found: list[Term] = [_equals(key, value) for key, value in (selector.get("matchLabels") or {}).items()]
    return found + [expression(each) for each in selector.get("matchExpressions") or ()]


def _equals(key: str, value: str) -> Term:
    return lambda labels: labels.get(key) == value


def expression(each: Mapping[str, Any]) -> Term:
    """One of ``matchExpressions``, with the operators of node affinity too."""
    key, operator, values = each["key"], each["operator"], each.get("values") or []
    match operator:
        case "In":
            return lambda labels: labels.get(key) in values
        case "NotIn":
            return lambda labels: labels.get(key) not in values
        case "Exists":
            return lambda labels: key in labels
        case "DoesNotExist":
            return lambda labels: key not in labels
        case "Gt":
            return lambda labels: key in labels and int(labels[key]) > int(values[0])
        case "Lt":
            return lambda labels: key in labels and int(labels[key]) < int(values[0])
    raise bad_request(f"{operator!r} is not a valid label selector operator")

"""What happens to an object on its way into the store: defaults, the fields a client cannot set, checks.

One function each for create and update, for built-in and custom resources.
"""

import copy
from typing import Any

from . import builtin, pods, schema
from .names import metadata_problems
from .resources import Resource
from .status import Cause, Json, bad_request, invalid, prohibited, wrong

SYSTEM = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")
"""Fields of metadata that the server alone sets."""

METADATA_SCHEMA: Json = {"type": "object", schema.PRESERVE: True}
STRICT, WARN, IGNORE = "Strict", "Warn", "Ignore"


def check_form(resource: Resource, obj: Any) -> Json:
    """The body as an object with metadata; a 400 for what cannot be read as one."""
    if not isinstance(obj, dict):
        raise bad_request(
            "couldn't get version/kind; json parse error: json: cannot unmarshal into Go value of type struct"
        )
    meta = obj.setdefault("metadata", {})
    if meta is None:
        meta = obj["metadata"] = {}
    if not isinstance(meta, dict):
        raise _unreadable(resource, meta, "ObjectMeta.metadata", "v1.ObjectMeta")
    for field in ("labels", "annotations"):
        found = meta.get(field)
        if found is None:
            meta.pop(field, None)
            continue
        if not isinstance(found, dict):
            raise _unreadable(resource, found, f"ObjectMeta.metadata.{field}", "map[string]string")
        for value in found.values():
            if not isinstance(value, str):
                raise _unreadable(resource, value, f"ObjectMeta.metadata.{field}", "string")
    for field in ("data",):
        if not resource.custom and resource.plural in ("configmaps", "secrets"):
            for value in (obj.get(field) or {}).values():
                if value is not None and not isinstance(value, str):
                    raise _unreadable(resource, value, f"{resource.kind}.{field}", "string")
    if resource.key == ("", "pods"):
        pods.check_types(obj)
    return obj


def _unreadable(resource: Resource, value: Any, field: str, kind: str) -> Exception:
    name = {bool: "bool", dict: "object", list: "array", str: "string"}.get(type(value), "number")
    return bad_request(
        f'{resource.kind} in version "{resource.versions[0]}" cannot be handled as a {resource.kind}: '
        f"json: cannot unmarshal {name} into Go struct field {field} of type {kind}"
    )


def check_kind(resource: Resource, version: str, obj: Json) -> None:
    """A 400 if kind or apiVersion are not those of the URL; fills them in if a built-in's are absent."""
    want_version, want_kind = resource.served_as(version), resource.kind
    if resource.custom and not (obj.get("kind") and obj.get("apiVersion")):
        raise bad_request(
            "Object 'Kind' is missing in the body"
            if not obj.get("kind")
            else "Object 'apiVersion' is missing in the body"
        )
    found = obj.get("apiVersion", want_version), obj.get("kind", want_kind)
    if found != (want_version, want_kind):
        raise bad_request(
            f"the API version in the data ({found[0]}) does not match the expected API version ({want_version})"
            if found[0] != want_version
            else f'{found[1]} in version "{version}" cannot be handled as a {want_kind}'
        )
    obj["kind"], obj["apiVersion"] = want_kind, resource.api_version


def shaped(resource: Resource, version: str, obj: Json, field_validation: str = WARN) -> tuple[Json, list[str]]:
    """A custom object pruned and with defaults; with the unknown fields that were dropped."""
    if not resource.custom:
        return obj, []
    rules = _rules(resource, version)
    unknown: list[str] = []
    obj = schema.pruned(rules, obj, "", unknown)
    if unknown and field_validation == STRICT:
        texts = ", ".join(f'unknown field "{each}"' for each in unknown)
        raise bad_request(f"strict decoding error: {texts}")
    return schema.defaulted(rules, obj), unknown


def _rules(resource: Resource, version: str) -> Json:
    rules = dict(resource.schemas.get(version) or {"type": "object"})
    base = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": METADATA_SCHEMA}
    rules["properties"] = {**(rules.get("properties") or {}), **base}
    return rules


def before_create(resource: Resource, obj: Json, tolerated_s: int) -> None:
    """Defaults and the first status; changes ``obj``."""
    if resource.custom:
        if resource.status:
            obj.pop("status", None)
    elif resource.plural == "pods":
        if obj["spec"].get("containers") and all(each.get("image") for each in obj["spec"]["containers"]):
            pods.default(obj, tolerated_s)
            pods.begin(obj)
    else:
        builtin.default(resource, obj)
        if resource.plural in builtin.PHASES:
            status = builtin.PHASES[resource.plural]
            obj["status"] = copy.deepcopy(status)
    if resource.generation:
        obj["metadata"]["generation"] = 1


def check(resource: Resource, version: str, obj: Json, old: Json | None = None, sub: str = "") -> None:
    """Raise a 422 for an object that breaks rules."""
    causes: list[Cause] = list(metadata_problems(resource, obj["metadata"]))
    if resource.custom:
        causes += schema.problems(_rules(resource, version), obj)
    elif resource.plural == "pods":
        if sub != "status":
            causes += pods.problems(obj)
        if old is not None and not causes:
            causes += pods.change_problems(old, obj)
    else:
        causes += builtin.problems(resource, obj)
        if old is not None:
            causes += builtin.change_problems(resource, old, obj)
    if old is not None and (old["metadata"].get("deletionTimestamp")):
        had = old["metadata"].get("finalizers") or ()
        if added := [each for each in obj["metadata"].get("finalizers") or () if each not in had]:
            text = "no new finalizers can be added if the object is being deleted, found new finalizers []string{"
            causes.append(prohibited("metadata.finalizers", text + ", ".join(f'"{each}"' for each in added) + "}"))
    if causes:
        raise invalid(resource, obj["metadata"].get("name", ""), causes)


def before_update(resource: Resource, old: Json, new: Json, sub: str) -> Json:
    """The new object with all that this request cannot change taken from the old one."""
    meta = new["metadata"]
    for field in SYSTEM:
        if field in old["metadata"]:
            meta[field] = old["metadata"][field]
        else:
            meta.pop(field, None)
    meta["name"] = old["metadata"]["name"]
    if resource.namespaced:
        meta["namespace"] = old["metadata"]["namespace"]
    meta.pop("selfLink", None)
    if sub == "status":
        return _status_only(resource, old, new)
    if resource.status:
        if "status" in old:
            new["status"] = old["status"]
        else:
            new.pop("status", None)
    if not resource.custom:
        if resource.plural == "pods" and new["spec"].get("containers"):
            pods.default(new)
        elif resource.plural == "services":
            for name in ("clusterIP", "clusterIPs"):
                if name in old["spec"]:
                    new.setdefault("spec", {}).setdefault(name, old["spec"][name])
        if resource.plural != "pods":
            builtin.default(resource, new)
        if resource.plural == "namespaces":
            new["spec"] = old["spec"]
    if resource.generation and _generation_fields(old) != _generation_fields(new, status=not resource.status):
        meta["generation"] = old["metadata"].get("generation", 0) + 1
    return new


def _generation_fields(obj: Json, status: bool = False) -> Json:
    left_out = ("metadata", "kind", "apiVersion") + (() if status else ("status",))
    return {key: value for key, value in obj.items() if key not in left_out}


def _status_only(resource: Resource, old: Json, new: Json) -> Json:
    found = {key: value for key, value in old.items() if key != "status"}
    if "status" in new:
        found["status"] = new["status"]
    if resource.custom:
        found["metadata"] = dict(old["metadata"])
    else:
        found["metadata"] = new["metadata"]
        if "ownerReferences" in old["metadata"]:
            found["metadata"]["ownerReferences"] = old["metadata"]["ownerReferences"]
        else:
            found["metadata"].pop("ownerReferences", None)
    return found


def must_name_revision(resource: Resource, name: str) -> Exception:
    """The 422 for an update without resourceVersion, of resources that need one."""
    text = "must be specified for an update"
    return invalid(resource, name, [wrong("metadata.resourceVersion", 0, text)])

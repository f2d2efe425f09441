"""Built-in kinds other than pods: defaults, checks, and what of them may change."""

import base64
import binascii
from collections.abc import Iterator
from itertools import count
from typing import Any

from .names import name_problem
from .resources import Resource
from .status import Cause, Json, prohibited, required, unsupported, wrong

DATA_BYTES_MAX = 1024 * 1024
"""Largest data of a config map or secret."""

_addresses = count(1)

PHASES: dict[str, Json] = {
    "namespaces": {"phase": "Active"},
    "services": {"loadBalancer": {}},
    "persistentvolumeclaims": {"phase": "Pending"},
    "resourcequotas": {},
    "poddisruptionbudgets": {
        "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0, "observedGeneration": 1,
    },
    "customresourcedefinitions": {"acceptedNames": {"plural": "", "kind": ""}},
}  # fmt: skip
"""The status of a new object."""


def default(resource: Resource, obj: Json) -> None:
    """Fill in defaults."""
    match resource.plural:
        case "secrets":
            obj.setdefault("type", "Opaque")
            plain = obj.pop("stringData", None) or {}
            if plain:
                obj["data"] = (obj.get("data") or {}) | {
                    key: base64.b64encode(value.encode()).decode() for key, value in plain.items()
                }
        case "services":
            _default_service(obj)
        case "namespaces":
            obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
            labels = obj["metadata"].get("labels") or {}
            obj["metadata"]["labels"] = labels | {"kubernetes.io/metadata.name": obj["metadata"].get("name", "")}
        case "persistentvolumeclaims":
            obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
        case "priorityclasses":
            obj.setdefault("preemptionPolicy", "PreemptLowerPriority")
        case "rolebindings" | "clusterrolebindings":
            for each in obj.get("subjects") or ():
                if each.get("kind") != "ServiceAccount":
                    each.setdefault("apiGroup", "rbac.authorization.k8s.io")
            if "roleRef" in obj:
                obj["roleRef"].setdefault("apiGroup", "rbac.authorization.k8s.io")
        case "customresourcedefinitions":
            spec = obj.setdefault("spec", {})
            names = spec.setdefault("names", {})
            names.setdefault("singular", names.get("kind", "").lower())
            names.setdefault("listKind", names.get("kind", "") + "List")
            spec.setdefault("conversion", {"strategy": "None"})


def _default_service(obj: Json) -> None:
    spec = obj.setdefault("spec", {})
    spec.setdefault("type", "ClusterIP")
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("internalTrafficPolicy", "Cluster")
    if spec["type"] != "ExternalName":
        spec.setdefault("ipFamilies", ["IPv4"])
        spec.setdefault("ipFamilyPolicy", "SingleStack")
        if not spec.get("clusterIP"):
            number = next(_addresses)
            spec["clusterIP"] = f"10.96.{number // 250 % 256}.{number % 250 + 1}"
        spec["clusterIPs"] = [spec["clusterIP"]]
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        port.setdefault("targetPort", port.get("port"))


def problems(resource: Resource, obj: Json) -> Iterator[Cause]:
    """What is wrong with an object."""
    match resource.plural:
        case "configmaps":
            size = sum(len(value.encode()) for value in (obj.get("data") or {}).values())
            size += sum(len(value) * 3 // 4 for value in (obj.get("binaryData") or {}).values())
            yield from _too_long("", size)
        case "secrets":
            yield from _secret_problems(obj)
        case "services":
            yield from _service_problems(obj["spec"])
        case "rolebindings" | "clusterrolebindings":
            if not (obj.get("roleRef") or {}).get("name"):
                yield required("roleRef.name")
        case "leases":
            duration = (obj.get("spec") or {}).get("leaseDurationSeconds")
            if duration is not None and duration <= 0:
                yield wrong("spec.leaseDurationSeconds", duration, "must be greater than 0")
        case "persistentvolumeclaims":
            if not obj["spec"].get("accessModes"):
                yield required("spec.accessModes", "at least 1 access mode is required")
            if not (obj["spec"].get("resources") or {}).get("requests", {}).get("storage"):
                yield required("spec.resources[storage]")
        case "customresourcedefinitions":
            yield from _definition_problems(obj)


def _too_long(field: str, size: int) -> Iterator[Cause]:
    if size > DATA_BYTES_MAX:
        yield Cause(field or "[]", "FieldValueTooLong", f"Too long: may not be more than {DATA_BYTES_MAX} bytes")


def _secret_problems(obj: Json) -> Iterator[Cause]:
    size = 0
    for key, value in (obj.get("data") or {}).items():
        try:
            size += len(base64.b64decode(value or "", validate=True))
        except binascii.Error:
            yield wrong(f"data[{key}]", "<secret contents redacted>", "illegal base64 data")
    yield from _too_long("data", size)


def _service_problems(spec: Json) -> Iterator[Cause]:
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec["type"] != "ExternalName":
        yield required("spec.ports")
    kinds = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
    if spec["type"] not in kinds:
        yield unsupported("spec.type", spec["type"], kinds)
    several = len(spec.get("ports") or ()) > 1
    for at, port in enumerate(spec.get("ports") or ()):
        if several and not port.get("name"):
            yield required(f"spec.ports[{at}].name")
        if not isinstance(port.get("port"), int) or not 1 <= port["port"] <= 65535:
            yield wrong(f"spec.ports[{at}].port", port.get("port") or 0, "must be between 1 and 65535, inclusive")


def _definition_problems(obj: Json) -> Iterator[Cause]:
    spec, names = obj["spec"], obj["spec"]["names"]
    expected = f"{names.get('plural', '')}.{spec.get('group', '')}"
    if obj["metadata"].get("name") != expected:
        yield wrong("metadata.name", obj["metadata"].get("name", ""), 'must be spec.names.plural+"."+spec.group')
    for name, value in (("spec.group", spec.get("group")), ("spec.names.plural", names.get("plural")),
                        ("spec.names.kind", names.get("kind"))):  # fmt: skip
        if not value:
            yield required(name)
    if spec.get("scope") not in ("Cluster", "Namespaced"):
        yield unsupported("spec.scope", spec.get("scope", ""), ("Cluster", "Namespaced"))
    versions = spec.get("versions") or []
    if sum(bool(each.get("storage")) for each in versions) != 1:
        yield wrong(
            "spec.versions",
            [each.get("name") for each in versions],
            "must have exactly one version marked as storage version",
        )
    for at, each in enumerate(versions):
        field = f"spec.versions[{at}]"
        if found := name_problem(f"{field}.name", each.get("name", ""), "label-1035"):
            yield found
        schema = (each.get("schema") or {}).get("openAPIV3Schema")
        if schema is None:
            yield required(f"{field}.schema.openAPIV3Schema", "schemas are required")
        else:
            yield from _structural_problems(schema, f"{field}.schema.openAPIV3Schema", True)


def _structural_problems(schema: Json, field: str, root: bool = False) -> Iterator[Cause]:
    special = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if root and schema.get("type") != "object":
        yield wrong(f"{field}.type", schema.get("type", ""), "must be object at the root")
    elif not schema.get("type") and not special:
        yield required(f"{field}.type", "must not be empty for specified object fields")
    if schema.get("properties") and isinstance(schema.get("additionalProperties"), dict | bool):
        yield prohibited(f"{field}.additionalProperties", "additionalProperties and properties are mutual exclusive")
    for name, each in (schema.get("properties") or {}).items():
        yield from _structural_problems(each, f"{field}.properties[{name}]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _structural_problems(schema["additionalProperties"], f"{field}.additionalProperties")
    if schema.get("type") == "array":
        if not isinstance(schema.get("items"), dict):
            yield required(f"{field}.items", "must be specified")
        else:
            yield from _structural_problems(schema["items"], f"{field}.items")


def change_problems(resource: Resource, old: Json, new: Json) -> Iterator[Cause]:
    """What of a change is not allowed."""
    match resource.plural:
        case "configmaps" | "secrets":
            if old.get("immutable"):
                if not new.get("immutable"):
                    yield prohibited("immutable", "field is immutable when `immutable` is set")
                for field in ("data", "binaryData"):
                    if (old.get(field) or {}) != (new.get(field) or {}):
                        yield prohibited(field, "field is immutable when `immutable` is set")
            yield from _immutable(old, new, "type")
        case "services":
            for name in ("clusterIP",):
                if old["spec"].get(name) != new["spec"].get(name) and new["spec"].get("type") != "ExternalName":
                    yield wrong(f"spec.{name}", new["spec"].get(name, ""), "field is immutable")
        case "rolebindings" | "clusterrolebindings":
            if old.get("roleRef") != new.get("roleRef"):
                yield wrong("roleRef", new.get("roleRef"), "cannot change roleRef")
        case "priorityclasses":
            if old.get("value") != new.get("value"):
                yield prohibited("value", "may not be changed in an update.")
        case "customresourcedefinitions":
            for name in ("group", "scope"):
                if old["spec"].get(name) != new["spec"].get(name):
                    yield wrong(f"spec.{name}", new["spec"].get(name), "field is immutable")


def _immutable(old: Json, new: Json, field: str) -> Iterator[Cause]:
    first: Any = old.get(field)
    if first != new.get(field):
        yield wrong(field, new.get(field), "field is immutable")

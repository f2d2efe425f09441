"""The custom resource definition, made from the classes of the job file. Pure.

A structural schema (``apiextensions.k8s.io/v1``, "Specifying a structural schema") has no references, no type below
``anyOf`` and no ``additionalProperties`` beside ``properties``; unknown fields are pruned or refused by the server.
"""

from typing import Any, Final

import msgspec

from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.job_file import GROUP, KIND, PLURAL, VERSION, JobFileSpec

_ANY: Final[KubeObject] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}

_STATUS: Final[KubeObject] = {
    "type": "object",
    "properties": {
        "phase": {"type": "string"},
        "observedGeneration": {"type": "integer", "format": "int64"},
        "replicas": {"type": "integer"},
        "ready": {"type": "integer"},
        "message": {"type": "string"},
        "conditions": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
            "items": {
                "type": "object",
                "required": ["type", "status"],
                "properties": {
                    name: {"type": "string"} for name in ("type", "status", "reason", "message", "lastTransitionTime")
                },
            },
        },
    },
}

_COLUMNS: Final = [
    ("Phase", "string", ".status.phase"),
    ("Ready", "integer", ".status.ready"),
    ("Replicas", "integer", ".spec.replicas"),
    ("Message", "string", ".status.message"),
    ("Age", "date", ".metadata.creationTimestamp"),
]


def custom_resource_definition() -> KubeObject:
    """The definition of ``ElasticTrainJob``."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": KIND, "plural": PLURAL, "singular": KIND.lower(), "shortNames": ["etj"]},
            "versions": [
                {
                    "name": VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        {"name": name, "type": kind, "jsonPath": path} for name, kind, path in _COLUMNS
                    ],
                    "schema": {"openAPIV3Schema": resource_schema()},
                }
            ],
        },
    }


def resource_schema() -> KubeObject:
    """The structural schema of the resource."""
    return {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec_schema(),
            "status": _STATUS,
        },
    }


def spec_schema() -> KubeObject:
    """The structural schema of ``spec``."""
    (root,), parts = msgspec.json.schema_components([JobFileSpec], ref_template="{name}")
    return _structural(root, parts)


def _structural(schema: dict[str, Any], parts: dict[str, Any]) -> KubeObject:
    if "$ref" in schema:
        return _structural(parts[schema["$ref"]], parts)
    if "anyOf" in schema:
        return _union([_structural(each, parts) for each in schema["anyOf"]])
    if schema.get("type") == "object" and "properties" not in schema:
        of = schema.get("additionalProperties")
        return {"type": "object", "additionalProperties": of} if of else dict(_ANY)
    if schema.get("type") == "array":
        return {"type": "array", "items": _structural(schema["items"], parts)} | _kept(schema, ("minItems",))
    if "enum" in schema:
        kind = "integer" if isinstance(schema["enum"][0], int) else "string"
        return {"type": kind, "enum": schema["enum"]}
    found = _kept(schema, ("type", "minimum", "required"))
    if "properties" in schema:
        found["properties"] = {name: _structural(each, parts) for name, each in schema["properties"].items()}
    if "description" in schema and "properties" in schema:
        found["description"] = schema["description"].partition("\n")[0]
    return found


def _kept(schema: dict[str, Any], names: tuple[str, ...]) -> KubeObject:
    return {name: schema[name] for name in names if schema.get(name)}


def _union(members: list[KubeObject]) -> KubeObject:
    some = [each for each in members if each.get("type") != "null"]
    if len(some) == 1:
        return some[0] | {"nullable": True}
    return {"x-kubernetes-int-or-string": True}

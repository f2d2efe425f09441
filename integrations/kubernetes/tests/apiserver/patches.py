"""The four patch types, as functions from an object and a patch to a new object; the given ones are not changed.

Sources: RFC 7386 (merge), RFC 6902 (JSON patch), Kubernetes documentation "Update API Objects in Place Using kubectl
patch" (strategic merge).
"""

import copy
from typing import Any

from .status import ApiError, Json, bad_request

JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"

MERGE_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "ephemeralContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "ports": ("containerPort", "port"),
    "conditions": ("type",),
    "taints": ("key",),
    "addresses": ("type",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey",),
    "schedulingGates": ("name",),
    "containerStatuses": ("name",),
    "podIPs": ("ip",),
    "secrets": ("name",),
}
"""Lists that are merged by a key rather than replaced. Of several keys the first that the elements have is used."""

PRIMITIVE_LISTS = frozenset({"finalizers", "podCIDRs"})
"""Lists of plain values that are merged as sets."""


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


def merge_key(name: str, elements: list[Any]) -> str | None:
    """The key by which a list of that name is merged; None: it is replaced."""
    for key in MERGE_KEYS.get(name, ()):
        if elements and all(isinstance(each, dict) and key in each for each in elements):
            return key
    return None


def strategic(target: Any, patch: Any) -> Any:
    """Strategic merge, with ``$patch: replace|delete``, ``$deleteFromPrimitiveList`` and ``$retainKeys``."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    if patch.get("$patch") == "delete":
        return {}
    found = dict(target) if isinstance(target, dict) else {}
    if (keep := patch.get("$retainKeys")) is not None:
        found = {key: value for key, value in found.items() if key in keep}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            found[name] = [each for each in found.get(name) or [] if each not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            found.pop(key, None)
        elif isinstance(value, list):
            found[key] = _strategic_list(key, found.get(key) or [], value)
        else:
            found[key] = strategic(found.get(key), value)
    return found


def _strategic_list(name: str, old: list[Any], new: list[Any]) -> list[Any]:
    if any(isinstance(each, dict) and each.get("$patch") == "replace" for each in new):
        return [each for each in new if "$patch" not in each]
    if name in PRIMITIVE_LISTS:
        return old + [each for each in new if each not in old]
    key = merge_key(name, new)
    if key is None or not all(isinstance(each, dict) for each in old):
        return [each for each in new if not (isinstance(each, dict) and "$patch" in each)]
    found = {each.get(key): each for each in old}
    for each in new:
        if each.get("$patch") == "delete":
            found.pop(each[key], None)
        else:
            found[each[key]] = strategic(found.get(each[key]), each)
    return list(found.values())


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902. A failed operation is a 422, an unreadable one a 400, as from the API server."""
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    found = copy.deepcopy(target)
    for each in operations:
        try:
            found = _operate(found, each)
        except _Missing as missing:
            raise _failed(f"{missing}") from None
        except (KeyError, TypeError, AttributeError):
            raise bad_request(f"error decoding patch: {each}") from None
    return found


class _Missing(Exception):
    pass


def _failed(text: str) -> ApiError:
    return ApiError(422, "Invalid", f"the server rejected our request due to an error in our request: {text}")


def _operate(document: Any, operation: Json) -> Any:
    name, path = operation["op"], operation["path"]
    match name:
        case "test":
            if _get(document, path) != operation.get("value"):
                raise _Missing(f"testing value {path} failed: test failed")
        case "add":
            return _set(document, path, copy.deepcopy(operation["value"]), replace=False)
        case "replace":
            return _set(document, path, copy.deepcopy(operation["value"]), replace=True)
        case "remove":
            _pop(document, path)
        case "move":
            value = _pop(document, operation["from"])
            return _set(document, path, value, replace=False)
        case "copy":
            return _set(document, path, copy.deepcopy(_get(document, operation["from"])), replace=False)
        case _:
            raise bad_request(f"Unexpected kind: {name}")
    return document


def _parts(path: str) -> list[str]:
    if path == "":
        return []
    if not path.startswith("/"):
        raise _Missing(f"path {path!r}: missing value")
    return [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]


def _walk(document: Any, parts: list[str], path: str) -> Any:
    for part in parts:
        if isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        elif isinstance(document, dict) and part in document:
            document = document[part]
        else:
            raise _Missing(f"operation does not apply: doc is missing path: {path}: missing value")
    return document


def _get(document: Any, path: str) -> Any:
    return _walk(document, _parts(path), path)


def _set(document: Any, path: str, value: Any, *, replace: bool) -> Any:
    parts = _parts(path)
    if not parts:
        return value
    parent, last = _walk(document, parts[:-1], path), parts[-1]
    if replace:
        _walk(parent, [last], path)
    if isinstance(parent, list):
        if last == "-":
            parent.append(value)
        elif not last.isdecimal() or int(last) > len(parent):
            raise _Missing(f"operation does not apply: doc is missing path: {path}: invalid index")
        elif replace:
            parent[int(last)] = value
        else:
            parent.insert(int(last), value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _Missing(f"operation does not apply: doc is missing path: {path}: missing value")
    return document


def _pop(document: Any, path: str) -> Any:
    parts = _parts(path)
    value = _walk(document, parts, path)
    parent = _walk(document, parts[:-1], path)
    if isinstance(parent, list):
        parent.pop(int(parts[-1]))
    else:
        del parent[parts[-1]]
    return value

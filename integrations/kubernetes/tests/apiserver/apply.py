"""Server-side apply: merge by field, with the owner of each field in ``metadata.managedFields``.

Source: Kubernetes documentation, "Server-Side Apply". Of other writers than ``Apply`` no ownership is recorded.
"""

from typing import Any

from .names import stamp
from .patches import merge_key
from .resources import Resource
from .status import ApiError, Json, bad_request

Path = tuple[str, ...]
"""Steps to a field, as in ``fieldsV1``: ``f:spec``, ``k:{"name":"c"}``."""


def fields(value: Any, name: str = "", resource: Resource | None = None) -> dict[Path, Any]:
    """The leaves of an applied value."""
    found: dict[Path, Any] = {}
    if isinstance(value, dict) and value:
        for key, each in value.items():
            for path, leaf in fields(each, key, resource).items():
                found[(f"f:{key}", *path)] = leaf
        return found
    key_of = merge_key(name, value) if isinstance(value, list) and not (resource and resource.custom) else None
    if key_of is None:
        return {(): value}
    for each in value:
        step = f'k:{{"{key_of}":"{each[key_of]}"}}'
        for path, leaf in fields(each, "", resource).items():
            found[(step, *path)] = leaf
    return found


def _tree(paths: set[Path]) -> Json:
    root: Json = {}
    for path in sorted(paths):
        place = root
        for step in path:
            place = place.setdefault(step, {})
    return root


def _paths(tree: Json) -> set[Path]:
    if not tree:
        return {()}
    return {(step, *rest) for step, each in tree.items() for rest in _paths(each)}


def _find(value: Any, path: Path) -> Any:
    for step in path:
        if step.startswith("f:"):
            value = value.get(step[2:]) if isinstance(value, dict) else None
        else:
            key, wanted = step[4:-2].replace('":"', '"').split('"')[:2]
            elements = value if isinstance(value, list) else ()
            value = next((each for each in elements if str(each.get(key)) == wanted), None)
    return value


def _drop(value: Any, path: Path) -> None:
    """Remove a field, and what of its parents becomes empty by that."""
    step, rest = path[0], path[1:]
    if step.startswith("f:"):
        name = step[2:]
        if not isinstance(value, dict) or name not in value:
            return
        if rest:
            _drop(value[name], rest)
        if not rest or value[name] in ({}, []):
            del value[name]
    elif isinstance(value, list):
        element = _find(value, (step,))
        if element is None:
            return
        if rest:
            _drop(element, rest)
        key = step[4:-2].split('"')[0]
        if not rest or set(element) <= {key}:
            value.remove(element)


def _merged(target: Any, patch: Any, name: str, custom: bool) -> Any:
    if isinstance(patch, dict):
        found = dict(target) if isinstance(target, dict) else {}
        for key, value in patch.items():
            found[key] = _merged(found.get(key), value, key, custom)
        return found
    if isinstance(patch, list) and not custom and isinstance(target, list):
        key_of = merge_key(name, patch)
        if key_of is not None and all(isinstance(each, dict) for each in target):
            found_list = {each.get(key_of): each for each in target}
            for each in patch:
                found_list[each[key_of]] = _merged(found_list.get(each[key_of]), each, "", custom)
            return list(found_list.values())
    return patch


def applied(resource: Resource, old: Json | None, body: Json, manager: str, force: bool, sub: str) -> Json:
    """The object after an apply; raises a 409 if another manager applied another value to a field of ``body``."""
    if "managedFields" in body["metadata"]:
        raise bad_request("metadata.managedFields must be nil")
    wanted = {key: value for key, value in body.items() if key not in ("apiVersion", "kind")}
    wanted["metadata"] = {
        key: value
        for key, value in body["metadata"].items()
        if key in ("labels", "annotations", "finalizers", "ownerReferences")
    }
    mine = {path for path in fields(wanted, "", resource) if path and path != ("f:metadata",)}
    entries = list((old or {}).get("metadata", {}).get("managedFields") or [])
    clashes: dict[str, list[Path]] = {}
    before: set[Path] = set()
    for entry in entries:
        owned = _paths(entry["fieldsV1"])
        if entry["manager"] == manager and entry.get("subresource", "") == sub:
            before = owned
            continue
        shared = {path for path in mine & owned if _find(old, path) != _find(body, path)}
        if shared and force:
            entry["fieldsV1"] = _tree(owned - shared)
        elif shared:
            clashes[entry["manager"]] = sorted(shared)
    if clashes:
        raise _clash(resource, body["metadata"].get("name", ""), clashes)
    new: Json = _merged(
        old or {}, {**wanted, "apiVersion": body["apiVersion"], "kind": body["kind"]}, "", resource.custom
    )
    new["metadata"] = {**body["metadata"], **new["metadata"]} if old is None else new["metadata"]
    if old is not None and (asked := body["metadata"].get("resourceVersion")):
        new["metadata"]["resourceVersion"] = asked
    others = [each for each in entries if (each["manager"], each.get("subresource", "")) != (manager, sub)]
    kept = set().union(*(_paths(each["fieldsV1"]) for each in others)) if others else set()
    for path in before - mine - kept:
        _drop(new, path)
    entry = {
        "manager": manager, "operation": "Apply", "apiVersion": body["apiVersion"], "time": stamp(),
        "fieldsType": "FieldsV1", "fieldsV1": _tree(mine),
    }  # fmt: skip
    previous = next((each for each in entries if each not in others), None)
    if previous is not None and previous["fieldsV1"] == entry["fieldsV1"]:
        entry["time"] = previous["time"]
    if sub:
        entry["subresource"] = sub
    new["metadata"]["managedFields"] = [*(each for each in others if each["fieldsV1"]), entry]
    return new


def _dotted(path: Path) -> str:
    return "".join(
        "." + step[2:] if step.startswith("f:") else "[" + step[3:-1].replace(":", "=", 1).replace('"', "", 2) + "]"
        for step in path
    )


def _clash(resource: Resource, name: str, clashes: dict[str, list[Path]]) -> ApiError:
    count = sum(map(len, clashes.values()))
    causes = [
        {"reason": "FieldManagerConflict", "message": f'conflict with "{manager}"', "field": _dotted(path)}
        for manager, paths in clashes.items()
        for path in paths
    ]
    texts = [f'conflict with "{manager}": {_dotted(paths[0])}' for manager, paths in clashes.items()]
    text = f"Apply failed with {count} conflict{'s' if count > 1 else ''}: " + ", ".join(texts)
    return ApiError(409, "Conflict", text, {"causes": causes})

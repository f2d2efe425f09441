"""What an HTTP request asks for: verb, resource, namespace, name, subresource, options.

Source: Kubernetes documentation, "Kubernetes API Concepts".
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from . import patches
from .objects import Options
from .resources import Catalog, Resource
from .status import ApiError, Json, bad_request, unsupported_media

BODY_BYTES_MAX = 3 * 1024 * 1024
"""Largest body of a request."""

VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get", "HEAD": "get"}


@dataclass(frozen=True, slots=True)
class Target:
    """A resource request. ``name`` is "" for a whole collection, ``sub`` for the object itself."""

    resource: Resource
    version: str
    verb: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def head(self) -> bytes:
        """The beginning of each object's JSON, in the requested version."""
        kind, version = self.resource.kind, self.resource.served_as(self.version)
        return f'{{"kind":"{kind}","apiVersion":"{version}",'.encode()


def flag(query: Mapping[str, str], name: str) -> bool:
    """Whether a boolean parameter is set."""
    return query.get(name, "").lower() in ("1", "true", "t")


def target(catalog: Catalog, method: str, path: str, query: Mapping[str, str]) -> Target | None:
    """The resource request in a method and path; None if no such resource is served."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and rest[2] not in ("status", "finalize"):
        namespace, rest = rest[1], rest[2:]
    if len(rest) > 3 or "" in rest:
        return None
    found = catalog.find(group, version, rest[0])
    if found is None or (namespace and not found.namespaced):
        return None
    name, sub = (rest[1] if len(rest) > 1 else ""), (rest[2] if len(rest) > 2 else "")
    if found.namespaced and not namespace and (name or method == "POST"):
        return None
    verb = VERBS.get(method, "")
    if not name and verb == "get":
        verb = "watch" if flag(query, "watch") else "list"
    elif not name and verb == "delete":
        verb = "deletecollection"
    return Target(found, version, verb, namespace, name, sub)


def parsed(content_type: str, raw: bytes) -> Any:
    """The body of a request; a 400 or 415 if it cannot be read."""
    kind = content_type.partition(";")[0].strip().lower()
    known = (
        "",
        "application/json",
        "application/yaml",
        patches.JSON_PATCH,
        patches.MERGE,
        patches.STRATEGIC,
        patches.APPLY,
    )
    if kind not in known:
        raise unsupported_media(("application/json", "application/yaml"))
    try:
        return msgspec.json.decode(raw)
    except msgspec.DecodeError as problem:
        if not kind.endswith("yaml"):
            raise bad_request(f"couldn't get version/kind; json parse error: {problem}") from None
    try:
        return yaml.safe_load(raw)
    except yaml.YAMLError as problem:
        raise bad_request(f"error decoding YAML: {problem}") from None


def options(query: Mapping[str, str], verb: str, body: Json | None, agent: str) -> Options:
    """The options of a write; those of a delete may be in its body."""
    found = Options(
        field_manager=query.get("fieldManager") or agent.partition("/")[0] or "unknown", force=flag(query, "force")
    )
    more: Json = body or {}
    dry = query.get("dryRun") or ",".join(more.get("dryRun") or ())
    if dry not in ("", "All"):
        raise bad_request(f'Invalid value: "{dry}": dryRun must be "All"')
    found.dry_run = bool(dry)
    found.field_validation = query.get("fieldValidation") or found.field_validation
    if verb in ("delete", "deletecollection"):
        grace = query.get("gracePeriodSeconds", more.get("gracePeriodSeconds"))
        found.grace_s = None if grace is None else number("gracePeriodSeconds", grace)
        found.propagation = query.get("propagationPolicy") or more.get("propagationPolicy") or ""
        if more.get("orphanDependents"):
            found.propagation = "Orphan"
        limits = more.get("preconditions") or {}
        found.uid, found.revision = limits.get("uid") or "", limits.get("resourceVersion") or ""
    return found


def number(name: str, value: Any) -> int:
    """A parameter that is a number; a 400 if it is not."""
    try:
        return int(value)
    except (TypeError, ValueError):
        raise bad_request(
            f'Invalid value: "{value}": {name}: strconv.ParseInt: parsing "{value}": invalid syntax'
        ) from None


def revision(query: Mapping[str, str]) -> int | None:
    """The parameter ``resourceVersion``; None if it is absent, or 0: any revision will do."""
    text = query.get("resourceVersion", "")
    return (number("resourceVersion", text) or None) if text else None


def token(revision: int, start: tuple[str, str]) -> str:
    """A token to continue a list."""
    return base64.urlsafe_b64encode(msgspec.json.encode({"rv": revision, "ns": start[0], "name": start[1]})).decode()


def continued(text: str) -> tuple[int, tuple[str, str]]:
    """The revision and the last key of a token; a 400 if it is not one."""
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(text))
        return found["rv"], (found["ns"], found["name"])
    except (binascii.Error, ValueError, KeyError, TypeError, msgspec.DecodeError):
        raise bad_request("continue key is not valid: unable to decode") from None


def too_large() -> ApiError:
    """413: the body is too large."""
    return ApiError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {BODY_BYTES_MAX}")


def of_the_future(asked: int, now: int) -> ApiError:
    """504: a list that shall not be older than a revision that has not come yet."""
    causes = [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]
    text = f"Too large resource version: {asked}, current: {now}"
    return ApiError(504, "Timeout", text, {"causes": causes, "retryAfterSeconds": 1}, {"Retry-After": "1"})

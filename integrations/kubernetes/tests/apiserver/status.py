"""Errors as ``Status`` objects: the same code, reason, message and details as a Kubernetes API server.

Source: Kubernetes API conventions, "Response Status Kind"; the messages are those of ``apimachinery/pkg/api/errors``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .resources import Resource

Json = dict[str, Any]


class ApiError(Exception):
    """A request failed: becomes a ``Status`` with ``status: Failure``.

    ``headers`` are sent with the answer, such as ``Retry-After``.
    """

    def __init__(
        self,
        code: int,
        reason: str,
        message: str,
        details: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message
        self.details, self.headers = dict(details or {}), dict(headers or {})

    def status(self) -> Json:
        """The ``Status`` object."""
        found: Json = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        found["message"] = self.message
        if self.reason:
            found["reason"] = self.reason
        if self.details:
            found["details"] = self.details
        return found | {"code": self.code}


@dataclass(frozen=True, slots=True)
class Cause:
    """One wrong field of an object: path, machine-readable reason, text."""

    field: str
    reason: str
    message: str

    def json(self) -> Json:
        """As in ``details.causes``."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


def required(field: str, text: str = "") -> Cause:
    """A field is missing."""
    return Cause(field, "FieldValueRequired", "Required value" + (f": {text}" if text else ""))


def shown(value: object) -> str:
    """A value as Go's ``%q`` or ``%v`` prints it in messages."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        import msgspec

        return msgspec.json.encode(value).decode()
    return str(value)


def wrong(field: str, value: object, text: str) -> Cause:
    """A field has a value that is not allowed."""
    return Cause(field, "FieldValueInvalid", f"Invalid value: {shown(value)}: {text}")


def unsupported(field: str, value: object, allowed: Iterable[str]) -> Cause:
    """A field has a value that is not in the list."""
    names = ", ".join(shown(each) for each in sorted(allowed))
    return Cause(field, "FieldValueNotSupported", f"Unsupported value: {shown(value)}: supported values: {names}")


def prohibited(field: str, text: str) -> Cause:
    """A field may not be set or changed."""
    return Cause(field, "FieldValueForbidden", f"Forbidden: {text}")


def _details(resource: "Resource", name: str, kind: str) -> Json:
    found = {"name": name, "group": resource.group, "kind": kind}
    return {key: value for key, value in found.items() if value}


def not_found(resource: "Resource", name: str) -> ApiError:
    """404: no object of that name."""
    return ApiError(
        404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name, resource.plural)
    )


def already_exists(resource: "Resource", name: str) -> ApiError:
    """409: an object of that name exists."""
    text = f'{resource.qualified} "{name}" already exists'
    return ApiError(409, "AlreadyExists", text, _details(resource, name, resource.plural))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(resource: "Resource", name: str, text: str = MODIFIED) -> ApiError:
    """409: the object is no longer the one the request was made for."""
    message = f'Operation cannot be fulfilled on {resource.qualified} "{name}": {text}'
    return ApiError(409, "Conflict", message, _details(resource, name, resource.plural))


def invalid(resource: "Resource", name: str, causes: Iterable[Cause]) -> ApiError:
    """422: the object breaks rules."""
    found = list(causes)
    texts = [f"{cause.field}: {cause.message}" for cause in found]
    text = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    kind = resource.kind + (f".{resource.group}" if resource.group else "")
    details = _details(resource, name, resource.kind) | {"causes": [cause.json() for cause in found]}
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details)


def forbidden(resource: "Resource", name: str, text: str, causes: Iterable[Json] = ()) -> ApiError:
    """403: not allowed, or over quota."""
    subject = resource.qualified + (f' "{name}"' if name else "")
    details = _details(resource, name, resource.plural)
    if found := list(causes):
        details["causes"] = found
    return ApiError(403, "Forbidden", f"{subject} is forbidden: {text}", details)


def bad_request(text: str) -> ApiError:
    """400."""
    return ApiError(400, "BadRequest", text)


def unauthorized() -> ApiError:
    """401: no or an unknown token."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def expired(text: str) -> ApiError:
    """410: history of that age is gone."""
    return ApiError(410, "Expired", text)


def unsupported_media(accepted: Iterable[str]) -> ApiError:
    """415: a body of a type that is not read here."""
    text = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(accepted)
    return ApiError(415, "UnsupportedMediaType", text)


def not_allowed(resource: "Resource", verb: str) -> ApiError:
    """405: the resource has no such verb."""
    text = f"{verb} is not supported on resources of kind {shown(resource.qualified)}"
    return ApiError(405, "MethodNotAllowed", text, _details(resource, "", resource.plural))


def too_many(text: str, retry_after_s: int, causes: Iterable[Json] = ()) -> ApiError:
    """429, with the time after which to try again, in seconds."""
    details: Json = {"retryAfterSeconds": retry_after_s} if retry_after_s else {}
    if found := list(causes):
        details["causes"] = found
    return ApiError(429, "TooManyRequests", text, details, {"Retry-After": str(retry_after_s)})


def success(resource: "Resource", name: str, uid: str) -> Json:
    """The answer to a delete that returns no object."""
    details = _details(resource, name, resource.plural) | {"uid": uid}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

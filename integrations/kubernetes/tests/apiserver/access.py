"""Who asks, by token, and what roles and bindings allow them.

Source: Kubernetes documentation, "Using RBAC Authorization".
"""

import secrets
import time
from collections.abc import Iterator
from typing import Any

from .names import stamp
from .objects import Objects
from .request import Target
from .resources import RBAC
from .status import ApiError, Json, forbidden, shown, unauthorized

ADMIN = "system:admin"
TOKEN_S = 3600
"""How long a token is said to be valid, in seconds. None is ever refused for its age."""


class Access:
    """``enforced``: tokens are asked for and roles are heeded; else everybody may do everything."""

    def __init__(self, objects: Objects, enforced: bool = False) -> None:
        self.objects, self.enforced = objects, enforced
        self.admin_token = secrets.token_urlsafe(24)
        self._users = {self.admin_token: ADMIN}
        self.denied: list[str] = []

    def token(self, user: str) -> str:
        """A new token for a user; ``system:serviceaccount:NAMESPACE:NAME`` is a service account."""
        found = secrets.token_urlsafe(24)
        self._users[found] = user
        return found

    def issued(self, account: Json) -> Json:
        """The answer to a TokenRequest."""
        meta = account["metadata"]
        token = self.token(f"system:serviceaccount:{meta['namespace']}:{meta['name']}")
        status = {"token": token, "expirationTimestamp": stamp(time.time() + TOKEN_S)}
        return {
            "kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "spec": {"expirationSeconds": TOKEN_S}, "status": status,
        }  # fmt: skip

    def user(self, authorization: str) -> str:
        """The user of a request; raises a 401."""
        kind, _, token = authorization.partition(" ")
        if kind.lower() == "bearer" and token in self._users:
            return self._users[token]
        if not self.enforced:
            return ADMIN
        if authorization:
            raise unauthorized()
        return "system:anonymous"

    def check(self, user: str, wanted: Target, fields: str = "") -> None:
        """Raise a 403 if a user may not do that; a field selector for one name makes a list a request for that name."""
        if not self.enforced or user == ADMIN:
            return
        resource = wanted.resource
        name = resource.plural + (f"/{wanted.sub}" if wanted.sub else "")
        if self.allows(user, wanted.verb, resource.group, name, wanted.namespace, wanted.name or _selected(fields)):
            return
        where = f'in the namespace "{wanted.namespace}"' if wanted.namespace else "at the cluster scope"
        what = f"resource {shown(name)} in API group {shown(resource.group)}"
        text = f"User {shown(user)} cannot {wanted.verb} {what} {where}"
        self.denied.append(text)
        raise forbidden(resource, wanted.name, text)

    def allows(self, user: str, verb: str, group: str, resource: str, namespace: str, name: str) -> bool:
        """Whether some role bound to the user allows it."""
        return (
            user == ADMIN
            or not self.enforced
            or any(_allows(rule, verb, group, resource, name) for rule in self._rules(user, namespace))
        )

    def _rules(self, user: str, namespace: str) -> Iterator[Json]:
        catalog, store = self.objects.catalog, self.objects.store
        bindings = [(each, "") for each in store.all(catalog.get("clusterrolebindings", RBAC))]
        if namespace:
            bindings += [(each, namespace) for each in store.all(catalog.get("rolebindings", RBAC), namespace)]
        for binding, where in bindings:
            if not any(_is(subject, user, where) for subject in binding.object.get("subjects") or ()):
                continue
            ref = binding.object["roleRef"]
            plural, place = ("clusterroles", "") if ref["kind"] == "ClusterRole" else ("roles", where)
            role = store.get(catalog.get(plural, RBAC), place, ref["name"])
            if role is not None:
                yield from role.object.get("rules") or ()

    def review(self, plural: str, body: Json, user: str) -> Json:
        """The answer to a review of oneself."""
        if plural == "selfsubjectreviews":
            return body | {"status": {"userInfo": {"username": user, "groups": _groups(user)}}}
        spec = (body.get("spec") or {}).get("resourceAttributes")
        if spec is None:
            raise ApiError(422, "Invalid", "spec.resourceAttributes: Required value")
        resource = spec.get("resource", "") + (f"/{spec['subresource']}" if spec.get("subresource") else "")
        allowed = self.allows(
            user, spec.get("verb", ""), spec.get("group", ""), resource, spec.get("namespace", ""), spec.get("name", "")
        )
        return body | {"status": {"allowed": allowed}}


def _selected(fields: str) -> str:
    """The name in ``metadata.name=NAME`` ("Using RBAC Authorization", referring to resources)."""
    key, _, name = fields.partition("=")
    return name.lstrip("=") if key == "metadata.name" and "," not in name else ""


def _groups(user: str) -> list[str]:
    if user == ADMIN:
        return ["system:masters", "system:authenticated"]
    if user.startswith("system:serviceaccount:"):
        namespace = user.split(":")[2]
        return ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
    return ["system:unauthenticated" if user == "system:anonymous" else "system:authenticated"]


def _is(subject: Json, user: str, namespace: str) -> bool:
    match subject.get("kind"):
        case "ServiceAccount":
            return user == f"system:serviceaccount:{subject.get('namespace') or namespace}:{subject.get('name')}"
        case "Group":
            return subject.get("name") in _groups(user)
    return subject.get("name") == user


def _allows(rule: Json, verb: str, group: str, resource: str, name: str) -> bool:
    def has(field: str, value: str) -> bool:
        found: Any = rule.get(field) or ()
        return "*" in found or value in found

    return (
        has("verbs", verb)
        and has("apiGroups", group)
        and (
            has("resources", resource)
            or ("/" in resource and f"*/{resource.partition('/')[2]}" in (rule.get("resources") or ()))
        )
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
    )

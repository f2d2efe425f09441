"""The resources that are served: the built-in ones, and those of custom resource definitions; their discovery."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]

VERSION: Json = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "0" * 40, "gitTreeState": "clean",
    "buildDate": "2026-06-09T00:00:00Z", "goVersion": "go1.26", "compiler": "gc", "platform": "linux/amd64",
}  # fmt: skip
"""What ``/version`` says: the server whose answers the tests hold this one to."""

VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects. ``versions``: served, the storage version first. ``schemas``: by version, of custom ones."""

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str
    namespaced: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    status: bool = False
    generation: bool = False
    custom: bool = False
    unconditional: bool = True
    create_on_update: bool = False
    returns_deleted: bool = False
    selectable: tuple[str, ...] = ()
    schemas: Mapping[str, Json] = field(default_factory=dict, compare=False, hash=False)
    list_kind: str = ""
    singular: str = ""

    @property
    def key(self) -> tuple[str, str]:
        """Group and plural: one table of objects."""
        return self.group, self.plural

    @property
    def qualified(self) -> str:
        """As messages name it: ``leases.coordination.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """Group and storage version."""
        return self.served_as(self.versions[0])

    def served_as(self, version: str) -> str:
        """``apiVersion`` of its objects in one of its versions."""
        return f"{self.group}/{version}" if self.group else version

    @property
    def kind_of_list(self) -> str:
        """Kind of a list of them."""
        return self.list_kind or f"{self.kind}List"


def _core(plural: str, kind: str, *short: str, **more: Any) -> Resource:
    return Resource("", ("v1",), plural, kind, short_names=short, **more)


RBAC = "rbac.authorization.k8s.io"

BUILT_IN = (
    _core("namespaces", "Namespace", "ns", namespaced=False, status=True),
    _core("nodes", "Node", "no", namespaced=False, status=True),
    _core("pods", "Pod", "po", categories=("all",), status=True, generation=True, returns_deleted=True),
    _core("configmaps", "ConfigMap", "cm"),
    _core("secrets", "Secret"),
    _core("services", "Service", "svc", categories=("all",), status=True, returns_deleted=True),
    _core("serviceaccounts", "ServiceAccount", "sa", returns_deleted=True),
    _core("events", "Event", "ev", create_on_update=True),
    _core("resourcequotas", "ResourceQuota", "quota", status=True, returns_deleted=True),
    _core("persistentvolumeclaims", "PersistentVolumeClaim", "pvc", status=True, returns_deleted=True),
    Resource("coordination.k8s.io", ("v1",), "leases", "Lease", unconditional=False, create_on_update=True),
    Resource("batch", ("v1",), "jobs", "Job", categories=("all",), status=True, generation=True),
    Resource("apps", ("v1",), "statefulsets", "StatefulSet", short_names=("sts",), categories=("all",), status=True,
             generation=True),
    Resource("policy", ("v1",), "poddisruptionbudgets", "PodDisruptionBudget", short_names=("pdb",), status=True,
             generation=True, unconditional=False),
    Resource("scheduling.k8s.io", ("v1",), "priorityclasses", "PriorityClass", namespaced=False, short_names=("pc",)),
    Resource(RBAC, ("v1",), "roles", "Role"),
    Resource(RBAC, ("v1",), "rolebindings", "RoleBinding"),
    Resource(RBAC, ("v1",), "clusterroles", "ClusterRole", namespaced=False),
    Resource(RBAC, ("v1",), "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource("apiextensions.k8s.io", ("v1",), "customresourcedefinitions", "CustomResourceDefinition", namespaced=False,
             short_names=("crd", "crds"), categories=("api-extensions",), status=True, generation=True,
             unconditional=False),
)  # fmt: skip

SUBRESOURCES: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "pods": (
        ("binding", "", "Binding", "create"),
        ("eviction", "policy/v1", "Eviction", "create"),
        ("log", "", "Pod", "get"),
    ),
    "serviceaccounts": (("token", "authentication.k8s.io/v1", "TokenRequest", "create"),),
    "namespaces": (("finalize", "", "Namespace", "update"),),
}
"""Subresources other than ``status``: name, group and version, kind, verb."""

REVIEWS = {
    "authorization.k8s.io": {"selfsubjectaccessreviews": "SelfSubjectAccessReview"},
    "authentication.k8s.io": {"selfsubjectreviews": "SelfSubjectReview"},
}
"""Kinds that are answered and not stored, by group."""


def of_definition(crd: Mapping[str, Any]) -> Resource:
    """The resource that a custom resource definition makes."""
    spec, names = crd["spec"], crd["spec"]["names"]
    stored = [each["name"] for each in spec["versions"] if each.get("storage")]
    served = [each["name"] for each in spec["versions"] if each.get("served") and each["name"] not in stored]
    return Resource(
        spec["group"],
        (*stored, *served),
        names["plural"],
        names["kind"],
        namespaced=spec["scope"] == "Namespaced",
        short_names=tuple(names.get("shortNames", ())),
        categories=tuple(names.get("categories", ())),
        status=any("status" in (each.get("subresources") or {}) for each in spec["versions"]),
        generation=True,
        custom=True,
        unconditional=False,
        selectable=tuple(
            each["jsonPath"].lstrip(".")
            for version in spec["versions"][:1]
            for each in version.get("selectableFields") or ()
        ),
        schemas={
            each["name"]: (each.get("schema") or {}).get("openAPIV3Schema", {"type": "object"})
            for each in spec["versions"]
        },
        list_kind=names.get("listKind", ""),
        singular=names.get("singular", ""),
    )


class Catalog:
    """The resources served now."""

    def __init__(self, resources: Iterable[Resource] = BUILT_IN) -> None:
        self._by_key: dict[tuple[str, str], Resource] = {}
        self._by_path: dict[tuple[str, str, str], Resource] = {}
        for each in resources:
            self.add(each)

    def __iter__(self) -> Iterator[Resource]:
        return iter(list(self._by_key.values()))

    def add(self, resource: Resource) -> None:
        """Serve a resource; replaces an earlier form of it."""
        self.remove(resource.key)
        self._by_key[resource.key] = resource
        for version in resource.versions:
            self._by_path[resource.group, version, resource.plural] = resource

    def remove(self, key: tuple[str, str]) -> None:
        """Serve it no longer."""
        if (old := self._by_key.pop(key, None)) is not None:
            for version in old.versions:
                self._by_path.pop((old.group, version, old.plural), None)

    def find(self, group: str, version: str, plural: str) -> Resource | None:
        """By the parts of a URL."""
        return self._by_path.get((group, version, plural))

    def get(self, plural: str, group: str = "") -> Resource:
        """By name; raises KeyError."""
        return self._by_key[group, plural]

    def of_kind(self, group: str, kind: str) -> Resource | None:
        """By kind."""
        return next((each for each in self._by_key.values() if (each.group, each.kind) == (group, kind)), None)

    def discovery(self, parts: list[str]) -> Json | None:
        """The document for ``/api...`` or ``/apis...``; None if there is no such group or version."""
        match parts:
            case ["api"]:
                addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": "127.0.0.1"}]
                return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": addresses}
            case ["apis"]:
                groups = [self._group(name) for name in self._groups()]
                return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
            case ["apis", group] if group in self._groups():
                return {"kind": "APIGroup", "apiVersion": "v1"} | self._group(group)
            case ["api", version]:
                return self._resources("", version)
            case ["apis", group, version]:
                return self._resources(group, version)
        return None

    def _groups(self) -> list[str]:
        found = dict.fromkeys(each.group for each in self._by_key.values() if each.group)
        return [*found, *REVIEWS]

    def _group(self, name: str) -> Json:
        versions = dict.fromkeys(
            version for each in self._by_key.values() if each.group == name for version in each.versions
        )
        found = [{"groupVersion": f"{name}/{each}", "version": each} for each in versions or ("v1",)]
        return {"name": name, "versions": found, "preferredVersion": found[0]}

    def _resources(self, group: str, version: str) -> Json | None:
        found: list[Json] = []
        for each in self._by_key.values():
            if each.group == group and version in each.versions:
                found += _described(each)
        if version == "v1":
            for plural, kind in REVIEWS.get(group, {}).items():
                found.append(
                    {"name": plural, "singularName": "", "namespaced": False, "kind": kind, "verbs": ["create"]}
                )
        if not found:
            return None
        name = f"{group}/{version}" if group else version
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": name, "resources": found}


def _described(resource: Resource) -> list[Json]:
    base: Json = {"singularName": resource.singular or resource.kind.lower(), "namespaced": resource.namespaced}
    first = base | {"name": resource.plural, "kind": resource.kind, "verbs": VERBS}
    if resource.short_names:
        first["shortNames"] = list(resource.short_names)
    if resource.categories:
        first["categories"] = list(resource.categories)
    found = [first]
    sub = {"singularName": "", "namespaced": resource.namespaced, "kind": resource.kind}
    if resource.status:
        found.append(sub | {"name": f"{resource.plural}/status", "verbs": ["get", "patch", "update"]})
    if not resource.custom:
        for name, api_version, kind, verb in SUBRESOURCES.get(resource.plural, ()):
            group, _, version = api_version.rpartition("/")
            more = {"group": group, "version": version} if group else {}
            found.append(sub | {"name": f"{resource.plural}/{name}", "kind": kind, "verbs": [verb]} | more)
    return found

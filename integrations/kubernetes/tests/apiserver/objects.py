"""Create, update, patch, delete: what a request does to the store. Nothing here waits, so each call is atomic."""

import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from . import names, patches, pods, strategy
from .apply import applied
from .resources import Catalog, Resource
from .status import ApiError, Json, already_exists, bad_request, conflict, forbidden, not_found, unsupported_media
from .store import Store, Stored


@dataclass(slots=True)
class Options:
    """What a write request says besides the object."""

    dry_run: bool = False
    field_manager: str = "unknown"
    field_validation: str = strategy.WARN
    force: bool = False
    grace_s: int | None = None
    propagation: str = ""
    uid: str = ""
    revision: str = ""
    warnings: list[str] = field(default_factory=list)


class Objects:
    """The operations. ``admission``: called with each new object before it is stored; raises to refuse it."""

    def __init__(
        self, store: Store, catalog: Catalog, seed: int | None = None, tolerated_s: int = pods.TOLERATED_S
    ) -> None:
        self.store, self.catalog, self.tolerated_s = store, catalog, tolerated_s
        self.chance = random.Random(seed)
        self.admission: list[Callable[[Resource, Json], None]] = []

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        """One object; raises a 404."""
        found = self.store.get(resource, namespace, name)
        if found is None:
            raise not_found(resource, name)
        return found

    def create(
        self, resource: Resource, namespace: str, body: Any, options: Options | None = None, version: str = ""
    ) -> Stored:
        """Store a new object."""
        options, version = options or Options(), version or resource.versions[0]
        obj = strategy.check_form(resource, body)
        strategy.check_kind(resource, version, obj)
        meta = obj["metadata"]
        if meta.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        self._place(resource, namespace, meta)
        obj, unknown = strategy.shaped(resource, version, obj, options.field_validation)
        options.warnings += [f'unknown field "{each}"' for each in unknown]
        meta = obj["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = names.generated(meta["generateName"], self.chance)
        for each in (*strategy.SYSTEM, "selfLink", "managedFields"):
            meta.pop(each, None)
        strategy.before_create(resource, obj, self.tolerated_s)
        meta["uid"], meta["creationTimestamp"] = (
            str(uuid.UUID(int=self.chance.getrandbits(128), version=4)),
            names.stamp(),
        )
        if resource.namespaced:
            self._check_namespace(resource, namespace, meta.get("name", ""))
        for admit in self.admission:
            admit(resource, obj)
        strategy.check(resource, version, obj)
        if self.store.get(resource, namespace, meta["name"]) is not None:
            raise already_exists(resource, meta["name"])
        return self._put(resource, obj, options)

    def _place(self, resource: Resource, namespace: str, meta: Json) -> None:
        if not resource.namespaced:
            meta.pop("namespace", None)
            return
        if meta.setdefault("namespace", namespace) not in (namespace, ""):
            raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
        meta["namespace"] = namespace

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        namespaces = self.catalog.get("namespaces")
        found = self.get(namespaces, "", namespace)
        if found.meta.get("deletionTimestamp"):
            text = f"unable to create new content in namespace {namespace} because it is being terminated"
            cause = {
                "reason": "NamespaceTerminating",
                "message": f"namespace {namespace} is being terminated",
                "field": "metadata.namespace",
            }
            raise forbidden(resource, name, text, [cause])

    def _put(self, resource: Resource, obj: Json, options: Options) -> Stored:
        if options.dry_run:
            return Stored(obj, self.store.revision)
        return self.store.put(resource, obj)

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Any,
        options: Options | None = None,
        version: str = "",
        sub: str = "",
    ) -> Stored:
        """Replace an object (PUT)."""
        options, version = options or Options(), version or resource.versions[0]
        new = strategy.check_form(resource, body)
        strategy.check_kind(resource, version, new)
        found = new["metadata"].get("name")
        if found != name:
            if not found:
                raise bad_request("name must be provided")
            raise bad_request(f"the name of the object ({found}) does not match the name on the URL ({name})")
        if self.store.get(resource, namespace, name) is None and resource.create_on_update and not sub:
            return self.create(resource, namespace, new, options, version)
        old = self.get(resource, namespace, name)
        if not new["metadata"].get("resourceVersion") and not resource.unconditional:
            raise strategy.must_name_revision(resource, name)
        return self._write(resource, old, new, options, version, sub)

    def patch(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        kind: str,
        body: Any,
        options: Options | None = None,
        version: str = "",
        sub: str = "",
    ) -> Stored:
        """Change an object (PATCH); ``kind``: the content type."""
        options, version = options or Options(), version or resource.versions[0]
        if kind == patches.APPLY:
            return self._apply(resource, namespace, name, body, options, version, sub)
        old = self.get(resource, namespace, name)
        if kind == patches.MERGE:
            new = patches.merge(old.copy(), body)
        elif kind == patches.STRATEGIC and not resource.custom:
            new = patches.strategic(old.copy(), body)
        elif kind == patches.JSON_PATCH:
            new = patches.json_patch(old.copy(), body)
        else:
            accepted = [patches.JSON_PATCH, patches.MERGE, patches.STRATEGIC, patches.APPLY]
            raise unsupported_media(each for each in accepted if not (resource.custom and each == patches.STRATEGIC))
        new = strategy.check_form(resource, new)
        if new["metadata"].get("name") != name:
            raise bad_request(
                f"the name of the object ({new['metadata'].get('name')}) does not match the name on the URL ({name})"
            )
        new["kind"], new["apiVersion"] = resource.kind, resource.api_version
        return self._write(resource, old, new, options, version, sub)

    def _apply(
        self, resource: Resource, namespace: str, name: str, body: Any, options: Options, version: str, sub: str
    ) -> Stored:
        body = strategy.check_form(resource, body)
        strategy.check_kind(resource, version, body)
        old = self.store.get(resource, namespace, name)
        if old is None:
            body["metadata"].setdefault("name", name)
            if sub:
                raise not_found(resource, name)
            first = applied(resource, None, body, options.field_manager, options.force, sub)
            owned = first["metadata"].pop("managedFields")
            body = first
            stored = self.create(resource, namespace, body, Options(dry_run=True), version)
            stored.object["metadata"]["managedFields"] = owned
            return self._put(resource, stored.object, options)
        new = applied(resource, old.copy(), body, options.field_manager, options.force, sub)
        return self._write(resource, old, new, options, version, sub)

    def _write(self, resource: Resource, old: Stored, new: Json, options: Options, version: str, sub: str) -> Stored:
        name, meta = old.meta["name"], new["metadata"]
        if (uid := meta.get("uid")) and uid != old.meta["uid"]:
            text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {old.meta['uid']}"
            raise conflict(resource, name, text)
        if meta.get("resourceVersion") and meta["resourceVersion"] != old.meta["resourceVersion"]:
            raise conflict(resource, name)
        new, unknown = strategy.shaped(resource, version, new, options.field_validation)
        options.warnings += [f'unknown field "{each}"' for each in unknown]
        new = strategy.before_update(resource, old.object, new, sub)
        strategy.check(resource, version, new, old.object, sub)
        meta = new["metadata"]
        meta["resourceVersion"] = old.meta["resourceVersion"]
        for each in ("labels", "annotations", "finalizers", "ownerReferences"):
            if each in meta and not meta[each]:
                del meta[each]
        if new == old.object:
            return old
        held = meta.get("finalizers") or meta.get("deletionGracePeriodSeconds") or self._namespace_held(resource, new)
        if meta.get("deletionTimestamp") and not held:
            return Stored(new, old.revision) if options.dry_run else self.store.remove(resource, old.key, new)
        return self._put(resource, new, options)

    def _namespace_held(self, resource: Resource, obj: Json) -> bool:
        return resource.key == ("", "namespaces") and bool(obj["spec"].get("finalizers"))

    def delete(
        self, resource: Resource, namespace: str, name: str, options: Options | None = None
    ) -> tuple[Stored, bool]:
        """Delete, or begin to; True if the object is gone."""
        options = options or Options()
        old = self.get(resource, namespace, name)
        self._check_preconditions(resource, old, options)
        new, meta = old.copy(), None
        meta = new["metadata"]
        finalizers = self._finalizers(meta, options.propagation)
        grace = 0
        if resource.key == ("", "pods"):
            grace = pods.grace_s(new, options.grace_s)
            if (pending := meta.get("deletionGracePeriodSeconds")) is not None:
                grace = min(grace, pending)
        if resource.key == ("", "namespaces"):
            new.setdefault("status", {})["phase"] = "Terminating"
        held = bool(finalizers) or grace > 0 or self._namespace_held(resource, new)
        if not held:
            return (old if options.dry_run else self.store.remove(resource, old.key)), True
        if finalizers != (meta.get("finalizers") or []):
            meta["finalizers"] = finalizers
        if not meta.get("deletionTimestamp"):
            meta["deletionTimestamp"] = names.stamp(time.time() + grace)
            if "generation" in meta:
                meta["generation"] += 1
            meta["deletionGracePeriodSeconds"] = grace
        elif grace < (meta.get("deletionGracePeriodSeconds") or 0):
            meta["deletionGracePeriodSeconds"] = grace
            meta["deletionTimestamp"] = names.stamp(time.time() + grace)
        if new == old.object:
            return old, False
        return self._put(resource, new, options), False

    def _finalizers(self, meta: Json, propagation: str) -> list[str]:
        found = list(meta.get("finalizers") or ())
        wanted = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
        if propagation:
            found = [each for each in found if each not in ("foregroundDeletion", "orphan") or each == wanted]
        if wanted and wanted not in found:
            found.append(wanted)
        return found

    def _check_preconditions(self, resource: Resource, old: Stored, options: Options) -> None:
        name, meta = old.meta["name"], old.meta
        if options.uid and options.uid != meta["uid"]:
            text = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {meta['uid']}"
            raise conflict(resource, name, text)
        if options.revision and options.revision != meta["resourceVersion"]:
            text = (
                f"Precondition failed: ResourceVersion in precondition: {options.revision}, "
                f"ResourceVersion in object meta: {meta['resourceVersion']}"
            )
            raise conflict(resource, name, text)

    def change(
        self, resource: Resource, key: tuple[str, str], how: Callable[[Json], None], sub: str = "status"
    ) -> Stored | None:
        """Change an object from inside, as controllers and kubelets do; None if it is gone."""
        old = self.store.get(resource, *key)
        if old is None:
            return None
        new = old.copy()
        how(new)
        try:
            return self._write(resource, old, new, Options(), resource.versions[0], sub)
        except ApiError as problem:
            raise RuntimeError(f"{resource.qualified} {key}: {problem.message}") from problem

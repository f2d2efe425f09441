"""What a control plane does by itself: custom resources are served, namespaces emptied, dependents collected."""

import asyncio
from collections import defaultdict, deque

from .handlers import set_condition
from .objects import Objects, Options
from .resources import Resource, of_definition
from .status import ApiError, Json, forbidden
from .store import Change, Stored

CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
SYSTEM_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")


class Controllers:
    """Definitions, namespaces, service accounts, priorities, garbage collection; they act in a task of their own."""

    def __init__(self, objects: Objects) -> None:
        self.objects, self.store, self.catalog = objects, objects.store, objects.catalog
        self._work: deque[tuple[Resource, Change]] = deque()
        self._wake = asyncio.Event()
        self._enabled = asyncio.Event()
        self._enabled.set()
        self._uids: dict[str, tuple[Resource, tuple[str, str]]] = {}
        self._dependents: dict[str, set[str]] = defaultdict(set)
        self.store.listeners.append(self._seen)
        objects.admission.append(self._admit)

    def _seen(self, resource: Resource, change: Change) -> None:
        if resource.plural == "customresourcedefinitions":
            self._serve(change)
        uid, key = change.stored.meta["uid"], change.stored.key
        if change.type == "DELETED":
            self._uids.pop(uid, None)
        else:
            self._uids[uid] = (resource, key)
        for each in change.stored.meta.get("ownerReferences") or ():
            self._dependents[each["uid"]].add(uid)
        self._work.append((resource, change))
        self._wake.set()

    def _admit(self, resource: Resource, obj: Json) -> None:
        if resource.key != ("", "pods"):
            return
        spec = obj["spec"]
        if name := spec.get("priorityClassName"):
            found = self.store.get(self.catalog.get("priorityclasses", "scheduling.k8s.io"), "", name)
            if found is not None:
                spec["priority"] = found.object.get("value", 0)
                spec["preemptionPolicy"] = found.object.get("preemptionPolicy", "PreemptLowerPriority")
            elif name not in ("system-cluster-critical", "system-node-critical"):
                pods, pod = resource, obj["metadata"].get("name", "")
                raise forbidden(pods, pod, f"no PriorityClass with name {name} was found")
        account = spec.get("serviceAccountName", "default")
        place = obj["metadata"]["namespace"]
        if self.store.get(self.catalog.get("serviceaccounts"), place, account) is None and account != "default":
            text = f'error looking up service account {place}/{account}: serviceaccount "{account}" not found'
            raise forbidden(resource, obj["metadata"].get("name", ""), text)

    async def run(self) -> None:
        """Do what changes ask for, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._work:
                await self._enabled.wait()
                resource, change = self._work.popleft()
                try:
                    self._act(resource, change)
                except ApiError as problem:  # the object changed or went meanwhile
                    if problem.code not in (404, 409):
                        raise

    def pause(self) -> None:
        """Do nothing until ``resume()``: a real cluster's controllers can be seconds late."""
        self._enabled.clear()

    def resume(self) -> None:
        """Do what was left, and go on."""
        self._enabled.set()

    def _act(self, resource: Resource, change: Change) -> None:
        stored, meta = change.stored, change.stored.meta
        if resource.plural == "namespaces" and not resource.group:
            if change.type == "ADDED":
                account: Json = {"metadata": {"name": "default"}}
                if self.store.get(self.catalog.get("serviceaccounts"), meta["name"], "default") is None:
                    self.objects.create(self.catalog.get("serviceaccounts"), meta["name"], account)
            elif change.type == "MODIFIED" and meta.get("deletionTimestamp"):
                self._empty(meta["name"])
        elif resource.plural == "customresourcedefinitions" and change.type == "MODIFIED":
            self._clean(stored)
        if change.type == "DELETED":
            self._collect(meta["uid"])
            self._unblock(stored)
            if resource.namespaced:
                self._finish(meta.get("namespace", ""))
            if resource.custom:
                definition = self.store.get(
                    self.catalog.get("customresourcedefinitions", "apiextensions.k8s.io"), "", resource.qualified
                )
                if definition is not None:
                    self._clean(definition)
            return
        if meta.get("ownerReferences"):
            self._check_owners(resource, stored)
        if meta.get("deletionTimestamp"):
            self._release(resource, stored)

    # custom resource definitions

    def _serve(self, change: Change) -> None:
        stored, key = change.stored, of_definition(change.stored.object).key
        if change.type == "DELETED":
            self.catalog.remove(key)
            return
        served = self.catalog._by_key.get(key)
        if served is not None and not served.custom:
            return
        self.catalog.add(of_definition(stored.object))
        if change.type == "ADDED":
            asyncio.get_running_loop().call_soon(self._establish, stored.key)

    def _establish(self, key: tuple[str, str]) -> None:
        resource = self.catalog.get("customresourcedefinitions", "apiextensions.k8s.io")

        def accept(crd: Json) -> None:
            crd["status"]["acceptedNames"] = crd["spec"]["names"]
            crd["status"]["storedVersions"] = [each["name"] for each in crd["spec"]["versions"] if each["storage"]]
            set_condition(crd, "NamesAccepted", "True", "NoConflicts", "no conflicts found")
            set_condition(crd, "Established", "True", "InitialNamesAccepted", "the initial names have been accepted")

        self.objects.change(resource, key, accept)
        stored = self.store.get(resource, *key)
        if stored is not None and CLEANUP not in (stored.meta.get("finalizers") or ()):
            new = stored.copy()
            new["metadata"].setdefault("finalizers", []).append(CLEANUP)
            self.store.put(resource, new)

    def _clean(self, stored: Stored) -> None:
        """A definition that is being deleted goes when its objects are gone."""
        if not stored.meta.get("deletionTimestamp") or CLEANUP not in (stored.meta.get("finalizers") or ()):
            return
        made = of_definition(stored.object)
        for each in list(self.store.all(made)):
            if not each.meta.get("deletionTimestamp"):
                self.objects.delete(made, *each.key)
        if next(self.store.all(made), None) is None:
            self._without(self.catalog.get("customresourcedefinitions", "apiextensions.k8s.io"), stored.key, CLEANUP)

    # namespaces

    def _empty(self, namespace: str) -> None:
        for resource in self.catalog:
            if resource.namespaced:
                for each in list(self.store.all(resource, namespace)):
                    if not each.meta.get("deletionTimestamp") and self.store.get(resource, *each.key) is not None:
                        self.objects.delete(resource, *each.key)
        self._finish(namespace)

    def _finish(self, namespace: str) -> None:
        resource = self.catalog.get("namespaces")
        found = self.store.get(resource, "", namespace)
        if found is None or not found.meta.get("deletionTimestamp"):
            return
        if any(next(self.store.all(each, namespace), None) for each in self.catalog if each.namespaced):
            return
        new = found.copy()
        new["spec"]["finalizers"] = []
        if new["metadata"].get("finalizers"):
            self.store.put(resource, new)
        else:
            self.store.remove(resource, found.key, new)

    # garbage collection

    def _alive(self, uid: str) -> bool:
        return uid in self._uids

    def _collect(self, owner: str) -> None:
        for uid in list(self._dependents.pop(owner, ())):
            if (found := self._uids.get(uid)) is not None:
                stored = self.store.get(found[0], *found[1])
                if stored is not None and stored.meta["uid"] == uid:
                    self._check_owners(found[0], stored)

    def _check_owners(self, resource: Resource, stored: Stored) -> None:
        owners = stored.meta.get("ownerReferences") or []
        if not owners or any(self._alive(each["uid"]) for each in owners) or stored.meta.get("deletionTimestamp"):
            self._unblock(stored)
            return
        if self.store.get(resource, *stored.key) is not None:
            self.objects.delete(resource, *stored.key, Options(uid=stored.meta["uid"], propagation="Background"))

    def _unblock(self, stored: Stored) -> None:
        """An owner that waits for its dependents may go now."""
        for each in stored.meta.get("ownerReferences") or ():
            if (found := self._uids.get(each["uid"])) is not None:
                owner = self.store.get(found[0], *found[1])
                if owner is not None and owner.meta.get("deletionTimestamp"):
                    self._release(found[0], owner)

    def _release(self, resource: Resource, stored: Stored) -> None:
        """Carry out the propagation policy of an object that is being deleted."""
        finalizers, uid = stored.meta.get("finalizers") or (), stored.meta["uid"]
        if "orphan" not in finalizers and "foregroundDeletion" not in finalizers:
            return
        waiting = False
        for each in list(self._dependents.get(uid, ())):
            found = self._uids.get(each)
            dependent = self.store.get(found[0], *found[1]) if found is not None else None
            if found is None or dependent is None:
                self._dependents[uid].discard(each)
                continue
            refs = [one for one in dependent.meta.get("ownerReferences") or () if one["uid"] == uid]
            if not refs:
                continue
            if "orphan" in finalizers:
                new = dependent.copy()
                new["metadata"]["ownerReferences"] = [
                    one for one in new["metadata"]["ownerReferences"] if one["uid"] != uid
                ]
                self.store.put(found[0], new)
            else:
                waiting = waiting or bool(refs[0].get("blockOwnerDeletion"))
                if not dependent.meta.get("deletionTimestamp"):
                    self.objects.delete(found[0], *dependent.key, Options(propagation="Foreground"))
                    waiting = waiting and self.store.get(found[0], *dependent.key) is not None
        if not waiting:
            for name in ("orphan", "foregroundDeletion"):
                self._without(resource, stored.key, name)

    def _without(self, resource: Resource, key: tuple[str, str], finalizer: str) -> None:
        found = self.store.get(resource, *key)
        if found is None or finalizer not in (found.meta.get("finalizers") or ()):
            return
        new = found.copy()
        new["metadata"]["finalizers"].remove(finalizer)
        if new["metadata"]["finalizers"] or new["metadata"].get("deletionGracePeriodSeconds"):
            self.store.put(resource, new)
        else:
            del new["metadata"]["finalizers"]
            self.store.remove(resource, key, new)


def first_objects(objects: Objects, namespaces: tuple[str, ...]) -> None:
    """The namespaces of a new cluster."""
    for name in (*SYSTEM_NAMESPACES, *namespaces):
        if objects.store.get(objects.catalog.get("namespaces"), "", name) is None:
            objects.create(objects.catalog.get("namespaces"), "", {"metadata": {"name": name}})

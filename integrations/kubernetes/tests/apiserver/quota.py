"""Resource quotas: what would exceed one is refused, and their status says what is used.

Source: Kubernetes documentation, "Resource Quotas". Scopes are not heeded.
"""

import asyncio
from collections.abc import Mapping
from decimal import Decimal

from .objects import Objects
from .quantity import Amounts, added, amount, requests, written
from .resources import Resource
from .status import Json, forbidden
from .store import Change


def charges(resource: Resource, obj: Json) -> Amounts:
    """What an object uses, by the names that a quota has for it."""
    one = Decimal(1)
    found: Amounts = {f"count/{resource.qualified}": one}
    if not resource.group:
        found[resource.plural] = one
    if resource.key == ("", "pods"):
        for kind in ("requests", "limits"):
            for name, value in requests(obj, kind).items():
                found[f"{kind}.{name}"] = value
                if kind == "requests" and name in ("cpu", "memory"):
                    found[name] = value
    return found


def counts(resource: Resource, obj: Json) -> bool:
    """Whether an object is charged: pods that ended are not."""
    return resource.key != ("", "pods") or (obj.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


class Quotas:
    """The admission plugin and the controller."""

    def __init__(self, objects: Objects) -> None:
        self.objects, self.store, self.catalog = objects, objects.store, objects.catalog
        self.resource = objects.catalog.get("resourcequotas")
        self._due: set[str] = set()
        objects.admission.append(self._admit)
        self.store.listeners.append(self._seen)

    def _used(self, namespace: str, names: Mapping[str, str]) -> Amounts:
        found: Amounts = {name: Decimal(0) for name in names}
        for resource in self.catalog:
            if not resource.namespaced:
                continue
            ours = {resource.plural, f"count/{resource.qualified}"}
            if resource.plural == "pods":
                ours |= {"cpu", "memory"} | {name for name in names if name.startswith(("requests.", "limits."))}
            if not ours & set(names):
                continue
            for each in self.store.all(resource, namespace):
                if counts(resource, each.object):
                    found = added(found, charges(resource, each.object))
        return {name: found[name] for name in names}

    def _admit(self, resource: Resource, obj: Json) -> None:
        namespace, name = obj["metadata"].get("namespace", ""), obj["metadata"].get("name", "")
        if not namespace or resource is self.resource:
            return
        for quota in self.store.all(self.resource, namespace):
            hard = (quota.object.get("spec") or {}).get("hard") or {}
            wanted = {key: value for key, value in charges(resource, obj).items() if key in hard}
            if resource.key == ("", "pods"):
                self._check_named(quota.meta["name"], hard, obj, resource, name)
            if not wanted:
                continue
            used = self._used(namespace, hard)
            over = sorted(key for key, value in wanted.items() if value and used[key] + value > amount(hard[key]))
            if over:
                asked = ",".join(f"{key}={written(wanted[key])}" for key in over)
                had = ",".join(f"{key}={written(used[key])}" for key in over)
                most = ",".join(f"{key}={hard[key]}" for key in over)
                text = f"exceeded quota: {quota.meta['name']}, requested: {asked}, used: {had}, limited: {most}"
                raise forbidden(resource, name, text)

    def _check_named(self, quota: str, hard: Mapping[str, str], pod: Json, resource: Resource, name: str) -> None:
        for key in hard:
            kind, _, what = key.rpartition(".")
            if what not in ("cpu", "memory") or kind not in ("", "requests", "limits"):
                continue
            without = [
                each["name"]
                for each in pod["spec"].get("containers") or ()
                if what not in ((each.get("resources") or {}).get(kind or "requests") or {})
            ]
            if without:
                raise forbidden(resource, name, f"failed quota: {quota}: must specify {key} for: {','.join(without)}")

    def _seen(self, resource: Resource, change: Change) -> None:
        namespace = change.stored.meta.get("namespace", "")
        if namespace and namespace not in self._due and self.store.table(self.resource).objects:
            self._due.add(namespace)
            asyncio.get_running_loop().call_soon(self._account, namespace)

    def _account(self, namespace: str) -> None:
        self._due.discard(namespace)
        for quota in list(self.store.all(self.resource, namespace)):
            hard = (quota.object.get("spec") or {}).get("hard") or {}
            used = {key: written(value) for key, value in self._used(namespace, hard).items()}

            def fill(each: Json, hard: Json = hard, used: Json = used) -> None:
                each["status"] = {"hard": hard, "used": used}

            self.objects.change(self.resource, quota.key, fill)

"""Answers to resource requests, but for watches: get, list, and the writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from . import request as asked
from .names import stamp
from .objects import Objects, Options
from .request import Target
from .resources import Resource
from .selector import matcher, requirements
from .status import ApiError, Json, bad_request, expired, not_allowed, not_found, success, too_many
from .store import Stored, encode


@dataclass(slots=True)
class Answer:
    """An HTTP answer with a JSON body."""

    code: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def whole(wanted: Target, stored: Stored) -> bytes:
    """An object's JSON in the requested version."""
    return wanted.head + stored.rest


def listed(wanted: Target, items: list[Stored], revision: int, more: Json) -> bytes:
    """A list's JSON."""
    resource = wanted.resource
    meta = encode({"resourceVersion": str(revision)} | more)
    head = wanted.head if resource.custom else b"{"
    version = resource.served_as(wanted.version)
    begin = f'{{"kind":"{resource.kind_of_list}","apiVersion":"{version}","metadata":'.encode()
    return begin + meta + b',"items":[' + b",".join([head + each.rest for each in items]) + b"]}"


class Handlers:
    """Answers from the objects."""

    def __init__(self, objects: Objects) -> None:
        self.objects, self.store = objects, objects.store

    def answer(self, wanted: Target, query: Mapping[str, str], content_type: str, raw: bytes, agent: str) -> Answer:
        """Answer a request other than a watch; raises ApiError."""
        resource = wanted.resource
        if wanted.sub and not (wanted.sub == "status" and resource.status):
            return self._subresource(wanted, query, raw, content_type, agent)
        match wanted.verb:
            case "get":
                return Answer(200, whole(wanted, self.objects.get(resource, wanted.namespace, wanted.name)))
            case "list":
                return self.list(wanted, query)
            case "delete" | "deletecollection" if not wanted.sub:
                body = asked.parsed(content_type, raw) if raw.strip() else None
                options = asked.options(query, wanted.verb, body, agent)
                return self._delete(wanted, options) if wanted.name else self._delete_all(wanted, query, options)
        if wanted.verb not in ("create", "update", "patch") or (wanted.verb == "create") == bool(wanted.name):
            raise not_allowed(resource, wanted.verb)
        body, options = asked.parsed(content_type, raw), asked.options(query, wanted.verb, None, agent)
        where = (resource, wanted.namespace)
        code = 200
        if wanted.verb == "create":
            stored, code = self.objects.create(*where, body, options, wanted.version), 201
        elif wanted.verb == "update":
            new = self.store.get(*where, wanted.name) is None
            stored = self.objects.update(*where, wanted.name, body, options, wanted.version, wanted.sub)
            code = 201 if new else 200
        else:
            kind = content_type.partition(";")[0].strip().lower()
            new = self.store.get(*where, wanted.name) is None
            stored = self.objects.patch(*where, wanted.name, kind, body, options, wanted.version, wanted.sub)
            code = 201 if new else 200
        headers = (
            {"Warning": ", ".join(f'299 - "{_quoted(each)}"' for each in options.warnings)} if options.warnings else {}
        )
        return Answer(code, whole(wanted, stored), headers)

    def list(self, wanted: Target, query: Mapping[str, str], stale_revision: int = 0) -> Answer:
        """A list, or a part of it; ``stale_revision``: as it was then."""
        resource, store = wanted.resource, self.store
        match = matcher(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        limit = asked.number("limit", query["limit"]) if query.get("limit") else 0
        revision, start = asked.revision(query), None
        if query.get("continue"):
            if revision is not None:
                raise bad_request("specifying resource version is not allowed when using continue")
            at, start = asked.continued(query["continue"])
            try:
                found = store.past(resource, at, wanted.namespace)
            except ApiError:
                raise expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start a "
                    "new list without the continue parameter."
                ) from None
        elif stale_revision:
            at, found = stale_revision, store.past(resource, stale_revision, wanted.namespace)
        elif query.get("resourceVersionMatch") == "Exact" and revision is not None:
            at, found = revision, store.past(resource, revision, wanted.namespace)
        else:
            if revision is not None and revision > store.revision:
                raise asked.of_the_future(revision, store.revision)
            at, found = store.revision, list(store.all(resource, wanted.namespace))
        if match is not None:
            found = [each for each in found if match(each.object)]
        if start is not None:
            found = [each for each in found if each.key > start]
        more: Json = {}
        if 0 < limit < len(found):
            more["continue"] = asked.token(at, found[limit - 1].key)
            if match is None:
                more["remainingItemCount"] = len(found) - limit
            found = found[:limit]
        return Answer(200, listed(wanted, found, at, more))

    def _delete(self, wanted: Target, options: Options) -> Answer:
        resource = wanted.resource
        stored, gone = self.objects.delete(resource, wanted.namespace, wanted.name, options)
        if gone and not resource.returns_deleted:
            return Answer(200, encode(success(resource, wanted.name, stored.meta["uid"])))
        return Answer(200, whole(wanted, stored))

    def _delete_all(self, wanted: Target, query: Mapping[str, str], options: Options) -> Answer:
        resource = wanted.resource
        match = matcher(resource, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        found = [each for each in self.store.all(resource, wanted.namespace) if match is None or match(each.object)]
        for each in found:
            if self.store.get(resource, *each.key) is not None:
                self.objects.delete(resource, *each.key, options)
        return Answer(200, listed(wanted, found, self.store.revision, {}))

    def _subresource(
        self, wanted: Target, query: Mapping[str, str], raw: bytes, content_type: str, agent: str
    ) -> Answer:
        resource = wanted.resource
        match resource.key, wanted.sub, wanted.verb:
            case ("", "pods"), "binding", "create":
                return self._bind(wanted, asked.parsed(content_type, raw))
            case ("", "pods"), "eviction", "create":
                body = asked.parsed(content_type, raw)
                options = asked.options(query, "delete", body.get("deleteOptions"), agent)
                options.dry_run = options.dry_run or query.get("dryRun") == "All"
                return self._evict(wanted, options)
            case ("", "namespaces"), "finalize", "update":
                body = asked.parsed(content_type, raw)
                self.objects.get(resource, "", wanted.name)

                def finalize(namespace: Json) -> None:
                    namespace["spec"]["finalizers"] = (body.get("spec") or {}).get("finalizers") or []

                stored = self.finalize(resource, wanted.name, finalize)
                return Answer(200, whole(wanted, stored))
        raise ApiError(404, "NotFound", "the server could not find the requested resource")

    def finalize(self, resource: Resource, name: str, how: Any) -> Stored:
        """Change a namespace's finalizers; the last one gone, a namespace that is being deleted is."""
        old = self.objects.get(resource, "", name)
        new = old.copy()
        how(new)
        if new["metadata"].get("deletionTimestamp") and not new["spec"].get("finalizers"):
            return self.store.remove(resource, old.key, new)
        return self.store.put(resource, new)

    def _bind(self, wanted: Target, body: Json) -> Answer:
        pod = self.objects.get(wanted.resource, wanted.namespace, wanted.name)
        node = (body.get("target") or {}).get("name")
        if not node:
            raise bad_request("target.name is required")
        if bound := pod.object["spec"].get("nodeName"):
            subject = f'Operation cannot be fulfilled on pods/binding "{wanted.name}"'
            text = f'{subject}: pod {wanted.name} is already assigned to node "{bound}"'
            raise ApiError(409, "Conflict", text)
        self.bind(pod, node)
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Answer(201, encode(done))

    def bind(self, pod: Stored, node: str) -> Stored:
        """Assign a pod to a node."""
        new = pod.copy()
        new["spec"]["nodeName"] = node
        set_condition(new, "PodScheduled", "True")
        return self.store.put(self.objects.catalog.get("pods"), new)

    def _evict(self, wanted: Target, options: Options) -> Answer:
        pod = self.objects.get(wanted.resource, wanted.namespace, wanted.name)
        for budget in self.store.all(self.objects.catalog.get("poddisruptionbudgets", "policy"), wanted.namespace):
            self._check_budget(budget.object, pod, wanted.namespace)

        def mark(each: Json) -> None:
            set_condition(each, "DisruptionTarget", "True", "EvictionByEvictionAPI", "Eviction API: evicting")

        if not options.dry_run:
            self.objects.change(wanted.resource, pod.key, mark)
        self.objects.delete(wanted.resource, wanted.namespace, wanted.name, options)
        done = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
        return Answer(201, encode(done))

    def _check_budget(self, budget: Json, pod: Stored, namespace: str) -> None:
        spec, name = budget["spec"], budget["metadata"]["name"]
        terms = requirements(spec.get("selector"))
        if not all(term(pod.meta.get("labels") or {}) for term in terms):
            return
        chosen = [
            each
            for each in self.store.all(self.objects.catalog.get("pods"), namespace)
            if all(term(each.meta.get("labels") or {}) for term in terms)
        ]
        healthy = sum(is_ready(each.object) and "deletionTimestamp" not in each.meta for each in chosen)
        if "minAvailable" in spec:
            needed = _share(spec["minAvailable"], len(chosen))
        else:
            needed = len(chosen) - _share(spec.get("maxUnavailable", 1), len(chosen))
        if is_ready(pod.object) and healthy - 1 < needed:
            text = f"The disruption budget {name} needs {needed} healthy pods and has {healthy} currently"
            cause = {"reason": "DisruptionBudget", "message": text}
            raise too_many("Cannot evict pod as it would violate the pod's disruption budget.", 0, [cause])


def _share(value: int | str, total: int) -> int:
    return -(-int(value[:-1]) * total // 100) if isinstance(value, str) else value


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def condition(obj: Json, kind: str) -> Json | None:
    """A condition of an object."""
    found = (obj.get("status") or {}).get("conditions") or ()
    return next((each for each in found if each["type"] == kind), None)


def is_ready(pod: Json) -> bool:
    """Whether a pod is ready."""
    found = condition(pod, "Ready")
    return found is not None and found["status"] == "True"


def set_condition(obj: Json, kind: str, status: str, reason: str = "", message: str = "") -> None:
    """Set a condition; the time of its last transition changes only with its status."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    found = condition(obj, kind)
    if found is None:
        found = {"type": kind, "status": "", "lastProbeTime": None, "lastTransitionTime": None}
        if obj.get("kind") != "Pod":
            del found["lastProbeTime"]
        conditions.append(found)
    if found["status"] != status:
        found["lastTransitionTime"] = stamp()
    found["status"] = status
    for key, value in (("reason", reason), ("message", message)):
        if value:
            found[key] = value
        else:
            found.pop(key, None)


__all__ = ["Answer", "Handlers", "condition", "is_ready", "not_found", "set_condition", "whole"]

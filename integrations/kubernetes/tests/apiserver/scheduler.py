"""Assigns pods to nodes that have room; says so in the pod's condition if none has.

Source: Kubernetes documentation, "Kubernetes Scheduler", "Assigning Pods to Nodes", "Taints and Tolerations".
Required node affinity and pod anti-affinity by host are heeded; preferences, topology spread and preemption are not.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from .handlers import Handlers, condition, set_condition
from .quantity import Amounts, added, amount, requests
from .resources import Resource
from .selector import expression, requirements
from .status import Json
from .store import Change, Stored

HOSTNAME = "kubernetes.io/hostname"


def tolerates(pod: Json, taint: Mapping[str, Any]) -> bool:
    """Whether some toleration of the pod covers a taint."""
    return toleration(pod, taint) is not None


def toleration(pod: Json, taint: Mapping[str, Any]) -> Json | None:
    """The toleration that covers a taint."""
    for each in pod["spec"].get("tolerations") or ():
        if each.get("effect") not in (None, "", taint["effect"]):
            continue
        if each.get("operator", "Equal") == "Exists":
            if each.get("key") in (None, "", taint["key"]):
                return dict(each)
        elif each.get("key") == taint["key"] and each.get("value", "") == taint.get("value", ""):
            return dict(each)
    return None


class Room:
    """A node as the scheduler sees it: what it has in all."""

    __slots__ = ("name", "node", "revision", "room")

    def __init__(self, stored: Stored) -> None:
        self.name, self.node, self.revision = stored.meta["name"], stored.object, stored.revision
        status = stored.object.get("status") or {}
        found = status.get("allocatable") or status.get("capacity") or {}
        self.room = {key: amount(value) for key, value in found.items()}


class Scheduler:
    """The scheduler ``default-scheduler``."""

    def __init__(self, handlers: Handlers) -> None:
        self.handlers, self.store = handlers, handlers.store
        self.pods, self.nodes = (handlers.objects.catalog.get(each) for each in ("pods", "nodes"))
        self._pending: dict[tuple[str, str], None] = {}
        self._placed: dict[str, tuple[str, Amounts]] = {}
        self._used: dict[str, Amounts] = defaultdict(dict)
        self._count: Counter[str] = Counter()
        self._known: dict[str, Room] = {}
        self._wake = asyncio.Event()
        self.store.listeners.append(self._seen)

    def _seen(self, resource: Resource, change: Change) -> None:
        if resource is self.nodes:
            self._wake.set()
        if resource is not self.pods:
            return
        pod, uid, key = change.stored.object, change.stored.meta["uid"], change.stored.key
        gone = change.type == "DELETED" or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
        node = pod["spec"].get("nodeName")
        if node and not gone and uid not in self._placed:
            self._place(uid, node, requests(pod))
        elif gone and uid in self._placed:
            where, amounts = self._placed.pop(uid)
            self._used[where] = added(self._used[where], amounts, -1)
            self._count[where] -= 1
            self._wake.set()
        ours = pod["spec"].get("schedulerName", "default-scheduler") == "default-scheduler"
        if gone or node or not ours or pod["spec"].get("schedulingGates") or pod["metadata"].get("deletionTimestamp"):
            self._pending.pop(key, None)
        elif key not in self._pending:
            self._pending[key] = None
            self._wake.set()
        elif change.previous is None or change.previous.object["spec"] != pod["spec"]:
            self._wake.set()

    def _place(self, uid: str, node: str, amounts: Amounts) -> None:
        self._placed[uid] = (node, amounts)
        self._used[node] = added(self._used[node], amounts)
        self._count[node] += 1

    async def run(self) -> None:
        """Schedule, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self._pass()

    def _pass(self) -> None:
        nodes = [self._rooms(each) for each in self.store.all(self.nodes)]
        waiting = [pod for key in self._pending if (pod := self.store.get(self.pods, *key)) is not None]
        for pod in sorted(waiting, key=lambda each: -each.object["spec"].get("priority", 0)):
            self._schedule(pod, nodes)

    def _rooms(self, node: Stored) -> Room:
        found = self._known.get(node.meta["name"])
        if found is None or found.revision != node.revision:
            found = self._known[node.meta["name"]] = Room(node)
        return found

    def _schedule(self, pod: Stored, nodes: list[Room]) -> None:
        wanted, reasons, fitting = requests(pod.object), Counter[str](), []
        for node in nodes:
            problems = self._problems(pod.object, node, wanted)
            if problems:
                reasons.update(problems)
            else:
                fitting.append(node.name)
        if fitting:
            self.handlers.bind(pod, min(fitting, key=lambda name: (self._count[name], name)))
            return
        text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
        message = f"0/{len(nodes)} nodes are available: {text}." if nodes else "no nodes available to schedule pods"
        old = condition(pod.object, "PodScheduled")
        if old is None or old.get("message") != message:

            def unschedulable(each: Json) -> None:
                set_condition(each, "PodScheduled", "False", "Unschedulable", message)

            self.handlers.objects.change(self.pods, pod.key, unschedulable)

    def _problems(self, pod: Json, place: Room, wanted: Amounts) -> list[str]:
        name, node, room = place.name, place.node, place.room
        spec = node.get("spec") or {}
        if spec.get("unschedulable") and not tolerates(
            pod, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        ):
            return ["node(s) were unschedulable"]
        for taint in spec.get("taints") or ():
            if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
                shown = taint["key"] + (f"={taint['value']}" if taint.get("value") else "")
                return [
                    f"node(s) had untolerated taint {{{shown}: }}"
                    if "=" not in shown
                    else f"node(s) had untolerated taint {{{shown}}}"
                ]
        ready = condition(node, "Ready")
        if ready is not None and ready["status"] != "True":
            return ["node(s) were not ready"]
        if not _chosen(pod, node):
            return ["node(s) didn't match Pod's node affinity/selector"]
        if self._repelled(pod, name):
            return ["node(s) didn't match pod anti-affinity rules"]
        if not room:
            return []
        found = ["Too many pods"] if "pods" in room and self._count[name] + 1 > room["pods"] else []
        used = self._used[name]
        return found + [
            f"Insufficient {key}"
            for key, value in wanted.items()
            if value and used.get(key, Decimal(0)) + value > room.get(key, Decimal(0))
        ]

    def _repelled(self, pod: Json, node: str) -> bool:
        rules = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
        for rule in rules.get("requiredDuringSchedulingIgnoredDuringExecution") or ():
            if rule.get("topologyKey") != HOSTNAME:
                continue
            terms = requirements(rule.get("labelSelector"))
            for each in self.store.all(self.pods, pod["metadata"]["namespace"]):
                here = each.object["spec"].get("nodeName") == node and each.meta["uid"] in self._placed
                if here and all(term(each.meta.get("labels") or {}) for term in terms):
                    return True
        return False


def _chosen(pod: Json, node: Json) -> bool:
    labels = node["metadata"].get("labels") or {}
    spec = pod["spec"]
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    rules = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = rules.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(expression(each)(labels) for each in term.get("matchExpressions") or ())
        and all(expression(each)(fields) for each in term.get("matchFields") or ())
        for term in required.get("nodeSelectorTerms") or ()
    )

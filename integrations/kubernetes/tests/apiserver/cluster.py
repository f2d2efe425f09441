"""The nodes and pods of the simulated cluster, and the faults that meet them."""

import asyncio
import contextlib
from collections.abc import Mapping

from .container import Exit
from .handlers import set_condition
from .kubelet import Kubelets
from .names import stamp
from .objects import Objects, Options
from .resources import Resource
from .scheduler import HOSTNAME, toleration
from .status import Json
from .store import Change, Stored

UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
CAPACITY = {"cpu": "8", "memory": "64Gi", "pods": "110", "ephemeral-storage": "100Gi"}

INFO = {
    "architecture": "amd64", "containerRuntimeVersion": "containerd://2.1.0", "kernelVersion": "6.12.0",
    "kubeProxyVersion": "", "kubeletVersion": "v1.36.2", "operatingSystem": "linux", "osImage": "Debian GNU/Linux 13",
}  # fmt: skip


class Cluster:
    """``node_grace_s``: how long a lost node counts as ready, in seconds (40 in a real cluster)."""

    def __init__(self, objects: Objects, kubelets: Kubelets, node_grace_s: float = 0.0) -> None:
        self.objects, self.store, self.kubelets, self.node_grace_s = objects, objects.store, kubelets, node_grace_s
        self.nodes, self.pods = (objects.catalog.get(each) for each in ("nodes", "pods"))
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.store.listeners.append(self._seen)

    # nodes

    def add_node(
        self, name: str, capacity: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None
    ) -> Stored:
        """A node joins; ``capacity`` such as ``{"nvidia.com/gpu": "8"}`` adds to the usual one."""
        room = CAPACITY | dict(capacity or {})
        names = {HOSTNAME: name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
        node: Json = {
            "metadata": {"name": name, "labels": names | dict(labels or {})},
            "status": {
                "capacity": room, "allocatable": dict(room),
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
                "nodeInfo": INFO | {"machineID": name, "systemUUID": name, "bootID": name},
            },
        }  # fmt: skip
        set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status")
        return self.objects.create(self.nodes, "", node)

    def lose_node(self, name: str, power: bool = True) -> None:
        """A node dies (``power``), or is cut off while its containers run on. After ``node_grace_s`` it is NotReady."""
        self.objects.get(self.nodes, "", name)
        self.kubelets.lose(name, power)
        loop = asyncio.get_running_loop()
        self._timers[name] = loop.call_later(self.node_grace_s, self._not_ready, name)

    def regain_node(self, name: str) -> None:
        """A lost node is back; its kubelet ends the pods that were deleted meanwhile."""
        if (timer := self._timers.pop(name, None)) is not None:
            timer.cancel()

        def ready(node: Json) -> None:
            set_condition(node, "Ready", "True", "KubeletReady", "kubelet is posting ready status")

        self.objects.change(self.nodes, ("", name), ready)
        self._taint(name, UNREACHABLE, add=False)
        self.kubelets.regain(name)
        for pod in self.kubelets.on(name):
            if pod.object["status"].get("phase") == "Running" and not pod.meta.get("deletionTimestamp"):
                self.objects.change(self.pods, pod.key, lambda each: set_condition(each, "Ready", "True"))

    def _not_ready(self, name: str) -> None:
        def unknown(node: Json) -> None:
            set_condition(node, "Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status.")

        if self.objects.change(self.nodes, ("", name), unknown) is None:
            return
        for pod in self.kubelets.on(name):
            if pod.object["status"].get("phase") == "Running":
                self.objects.change(self.pods, pod.key, lambda each: set_condition(each, "Ready", "False"))
        self._taint(name, UNREACHABLE, add=True)

    def _taint(self, name: str, key: str, add: bool, effects: tuple[str, ...] = ("NoSchedule", "NoExecute")) -> None:
        def change(node: Json) -> None:
            spec = node.setdefault("spec", {})
            taints = [each for each in spec.get("taints") or () if each["key"] != key]
            if add:
                taints += [{"key": key, "effect": effect, "timeAdded": stamp()} for effect in effects]
            spec["taints"] = taints
            if not taints:
                del spec["taints"]

        self.objects.change(self.nodes, ("", name), change, "")

    def _seen(self, resource: Resource, change: Change) -> None:
        """The node controller: cordons become taints, taints evict, the pods of a node that is gone are removed."""
        if resource is self.pods:
            if change.type != "DELETED" and (node := change.stored.object["spec"].get("nodeName")):
                self._judge_pod(change, node)
            return
        if resource is not self.nodes:
            return
        name = change.stored.meta["name"]
        loop = asyncio.get_running_loop()
        if change.type == "DELETED":
            self.kubelets.lose(name, power=True)
            self.kubelets.nodes.pop(name, None)
            for pod in self.kubelets.on(name):
                loop.call_soon(self._disrupt, pod, "DeletionByPodGC", "PodGC: node no longer exists", 0)
            return
        spec = change.stored.object.get("spec") or {}
        taints = spec.get("taints") or []
        cordoned = any(each["key"] == UNSCHEDULABLE for each in taints)
        if bool(spec.get("unschedulable")) != cordoned:
            loop.call_soon(self._taint, name, UNSCHEDULABLE, not cordoned, ("NoSchedule",))
        before = ((change.previous.object.get("spec") or {}).get("taints") or []) if change.previous else []
        if taints != before:
            for pod in self.kubelets.on(name):
                self._judge(pod, taints, name)

    def _judge_pod(self, change: Change, node: str) -> None:
        if change.previous is not None and change.previous.object["spec"].get("nodeName"):
            return
        found = self.store.get(self.nodes, "", node)
        if found is not None:
            self._judge(change.stored, (found.object.get("spec") or {}).get("taints") or [], node)

    def _judge(self, pod: Stored, taints: list[Json], node: str) -> None:
        """Delete a pod when the time is over for which it tolerates its node's taints."""
        loop, uid = asyncio.get_running_loop(), pod.meta["uid"]
        if (timer := self._timers.pop(uid, None)) is not None:
            timer.cancel()
        online = self.kubelets.node(node).online.is_set()
        if any(each["key"] == OUT_OF_SERVICE for each in taints) and not online:
            loop.call_soon(self._disrupt, pod, "DeletionByPodGC", "PodGC: node is out of service", 0)
            return
        limits: list[float] = []
        for taint in (each for each in taints if each["effect"] == "NoExecute"):
            found = toleration(pod.object, taint)
            if found is None:
                limits.append(0.0)
            elif found.get("tolerationSeconds") is not None:
                limits.append(max(float(found["tolerationSeconds"]), 0.0))
        if limits:
            text = "Taint manager: deleting due to NoExecute taint"
            self._timers[uid] = loop.call_later(min(limits), self._disrupt, pod, "DeletionByTaintManager", text, None)

    def _disrupt(self, pod: Stored, reason: str, text: str, grace_s: int | None) -> None:
        self._timers.pop(pod.meta["uid"], None)
        now = self.store.get(self.pods, *pod.key)
        if now is None or now.meta["uid"] != pod.meta["uid"] or (now.meta.get("deletionTimestamp") and grace_s is None):
            return
        if now.object["status"].get("phase") not in ("Succeeded", "Failed"):
            self.objects.change(
                self.pods, pod.key, lambda each: set_condition(each, "DisruptionTarget", "True", reason, text)
            )
        self.objects.delete(self.pods, *pod.key, Options(grace_s=grace_s))

    # pods

    def end_container(self, namespace: str, name: str, code: int = 0, reason: str = "", container: str = "") -> None:
        """A container ends with an exit code; ``reason``: such as OOMKilled (with code 137)."""
        found = self.kubelets.find(namespace, name).container(container)
        if found.process is None:
            raise KeyError(f"container {found.name} of pod {namespace}/{name} does not run")
        found.process.kill(Exit(code, reason))

    def evict(self, namespace: str, name: str, resource: str = "memory") -> None:
        """The kubelet evicts a pod: its node is short of a resource. The pod stays, Failed with reason Evicted."""
        text = f"The node was low on resource: {resource}. "
        self.kubelets.find(namespace, name).fail("Evicted", text, "TerminationByKubelet")

    def preempt(self, namespace: str, name: str) -> None:
        """The scheduler takes a pod's room for a more important one: marked, and deleted with its grace period."""
        text = "default-scheduler: preempting to accommodate a higher priority pod"
        self._disrupt(self.objects.get(self.pods, namespace, name), "PreemptionByScheduler", text, None)

    def miss_image(self, word: str) -> None:
        """Images whose names contain ``word`` cannot be pulled."""
        self.kubelets.missing.add(word)

    def have_image(self, word: str) -> None:
        """They can."""
        self.kubelets.missing.discard(word)
        self.kubelets.images.set()

    def close(self) -> None:
        """Forget what was to happen later."""
        for timer in self._timers.values():
            timer.cancel()
        with contextlib.suppress(KeyError):
            self._timers.clear()

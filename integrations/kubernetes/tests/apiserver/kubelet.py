"""The kubelets of all nodes: one task for each pod on a node, which starts, restarts and ends its containers.

Source: Kubernetes documentation, "Pod Lifecycle". Probes are not run: a container that runs is ready.
"""

import asyncio
import time
import uuid
from dataclasses import dataclass, field

from .container import Container, Exit, Runtime, StartError
from .handlers import set_condition
from .names import stamp
from .objects import Objects, Options
from .resources import Resource
from .status import Json
from .store import Change, Stored

Key = tuple[str, str]
BACKOFF_MAX_S = 300.0


@dataclass(slots=True)
class NodeState:
    """A node's connection. While ``online`` is not set its kubelet neither hears nor says anything."""

    name: str
    online: asyncio.Event = field(default_factory=asyncio.Event)
    powered: bool = True


class Kubelets:
    """``start_s``: time a pod needs to start; ``backoff_s``: first back-off before a restart; both in seconds.

    While not ``active`` they do nothing. Images whose name contains a word of ``missing`` cannot be pulled.
    """

    def __init__(self, objects: Objects, runtime: Runtime, start_s: float = 0.0, backoff_s: float = 10.0) -> None:
        self.objects, self.runtime, self.start_s, self.backoff_s = objects, runtime, start_s, backoff_s
        self.pods = objects.catalog.get("pods")
        self.active = True
        self.missing: set[str] = set()
        self.images = asyncio.Event()
        self.nodes: dict[str, NodeState] = {}
        self.runs: dict[str, PodRun] = {}
        self._ending: set[asyncio.Task[None]] = set()
        objects.store.listeners.append(self._seen)

    def node(self, name: str) -> NodeState:
        """A node's state; a node that is asked for the first time is online."""
        if name not in self.nodes:
            self.nodes[name] = NodeState(name)
            self.nodes[name].online.set()
        return self.nodes[name]

    def _seen(self, resource: Resource, change: Change) -> None:
        if resource is not self.pods:
            if resource.plural in ("configmaps", "secrets"):
                for run in self.runs.values():
                    if run.key[0] == change.stored.meta.get("namespace"):
                        run.volumes.set()
                        self.runtime.refresh(run.pod)
            return
        name = change.stored.object["spec"].get("nodeName")
        if name and self.active and self.node(name).online.is_set():
            self._sync(change.stored, change.type == "DELETED")

    def _sync(self, stored: Stored, deleted: bool) -> None:
        uid, pod = stored.meta["uid"], stored.object
        run = self.runs.get(uid)
        if deleted:
            if run is not None:
                run.vanished()
            return
        if run is None:
            if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                if stored.meta.get("deletionTimestamp"):
                    self._remove(stored)
                return
            run = self.runs[uid] = PodRun(self, stored)
            run.begin()
        run.pod = pod
        if stored.meta.get("deletionTimestamp"):
            run.stop()

    def _remove(self, stored: Stored) -> None:
        def remove() -> None:
            now = self.objects.store.get(self.pods, *stored.key)
            if now is not None and now.meta["uid"] == stored.meta["uid"]:
                self.objects.delete(self.pods, *stored.key, Options(grace_s=0))

        asyncio.get_running_loop().call_soon(remove)

    def ended(self, run: "PodRun") -> None:
        """A pod's task is over."""
        self.runs.pop(run.uid, None)

    def on(self, node: str) -> list[Stored]:
        """The pods of a node."""
        return [each for each in self.objects.store.all(self.pods) if each.object["spec"].get("nodeName") == node]

    def lose(self, node: str, power: bool) -> None:
        """A node's kubelet is cut off; with ``power`` its containers end as well."""
        state = self.node(node)
        state.online.clear()
        state.powered = state.powered and not power
        if power:
            for run in [each for each in self.runs.values() if each.node is state]:
                run.crash()

    def regain(self, node: str) -> None:
        """A node's kubelet is back, after a boot if power was lost."""
        state = self.node(node)
        booted, state.powered = not state.powered, True
        state.online.set()
        here = self.on(node)
        for run in [each for each in self.runs.values() if each.node is state]:
            if run.uid not in {each.meta["uid"] for each in here}:
                run.vanished()
        for stored in here:
            if booted and stored.object["status"].get("phase") == "Running":
                run = self.runs[stored.meta["uid"]] = PodRun(self, stored, rebooted=True)
                run.begin()
            self._sync(stored, False)

    def find(self, namespace: str, name: str) -> "PodRun":
        """A pod's run; raises KeyError."""
        for run in self.runs.values():
            if run.key == (namespace, name):
                return run
        raise KeyError(f"no pod {namespace}/{name} runs on a node")

    async def close(self) -> None:
        """End all containers at once."""
        runs = list(self.runs.values())
        for run in runs:
            run.crash()
        await asyncio.gather(*(run.task for run in runs if run.task is not None), return_exceptions=True)


class PodRun:
    """One pod on its node."""

    def __init__(self, kubelets: Kubelets, stored: Stored, rebooted: bool = False) -> None:
        self.kubelets, self.pod, self.key, self.uid = kubelets, stored.object, stored.key, stored.meta["uid"]
        self.node = kubelets.node(stored.object["spec"]["nodeName"])
        spec = stored.object["spec"]
        self.inits = [Container(each, init=True) for each in spec.get("initContainers") or ()]
        self.mains = [Container(each) for each in spec["containers"]]
        self.address = ""
        self.task: asyncio.Task[None] | None = None
        self.volumes = asyncio.Event()
        self._stop = asyncio.Event()
        self._gone = False
        self._verdict: tuple[str, str, str] | None = None
        self._ready_to_start = False
        if rebooted:
            self._recall()

    def _recall(self) -> None:
        before = {each["name"]: each for each in self.pod["status"].get("containerStatuses") or ()}
        self.address = self.pod["status"].get("podIP", "")
        for each in self.inits:
            each.exit = Exit(0)
        for each in self.mains:
            if (old := before.get(each.name)) is None:
                continue
            each.restarts, each.state, each.id, each.runs = (
                old["restartCount"],
                old["state"],
                old.get("containerID", ""),
                1,
            )
            if "running" in each.state:
                each.ended(Exit(255, "Unknown"))

    def begin(self) -> None:
        """Start the pod's task."""
        self.task = asyncio.get_running_loop().create_task(self._live())

    def stop(self) -> None:
        """The pod is being deleted."""
        self._stop.set()

    def fail(self, reason: str, message: str, condition: str = "") -> None:
        """End the pod as failed; ``condition``: reason of its condition DisruptionTarget."""
        self._verdict = (reason, message, condition)
        self._stop.set()

    def vanished(self) -> None:
        """The pod is no longer in the API: its containers end at once."""
        self._gone = True
        self._stop.set()
        for each in self.all:
            if each.process is not None:
                each.process.kill()

    def crash(self) -> None:
        """The node lost power."""
        self._gone = True
        for each in self.all:
            if each.process is not None:
                each.process.kill()
        if self.task is not None:
            self.task.cancel()
        self.kubelets.ended(self)

    @property
    def all(self) -> list[Container]:
        """All its containers."""
        return self.inits + self.mains

    def container(self, name: str = "") -> Container:
        """A container by name; "" is the first. Raises KeyError."""
        for each in self.mains + self.inits:
            if name in ("", each.name):
                return each
        raise KeyError(f"pod {self.key[1]} has no container {name}")

    async def _live(self) -> None:
        work = asyncio.create_task(self._work())
        stop = asyncio.create_task(self._stop.wait())
        try:
            seconds = self.pod["spec"].get("activeDeadlineSeconds")
            await asyncio.wait({work, stop}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and not self._stop.is_set():
                self.fail("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")
            if work.done():
                work.result()
                if not self._stop.is_set():
                    await self._report()
                    return
            await self._end(work)
        finally:
            for each in (work, stop):
                each.cancel()
            await asyncio.gather(work, stop, return_exceptions=True)
            self.kubelets.runtime.clear(self.pod)
            self.kubelets.ended(self)

    async def _end(self, work: asyncio.Task[None]) -> None:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await self._terminate([each for each in self.mains if each.process is not None])
        await self._terminate([each for each in self.inits if each.process is not None])
        if self._gone:
            return
        await self._report()
        if self._verdict is not None:
            return
        await self.node.online.wait()
        stored = self.kubelets.objects.store.get(self.kubelets.pods, *self.key)
        if stored is not None and stored.meta["uid"] == self.uid and stored.meta.get("deletionTimestamp"):
            self.kubelets.objects.delete(self.kubelets.pods, *self.key, Options(grace_s=0))

    async def _terminate(self, running: list[Container]) -> None:
        if not running:
            return
        began = time.monotonic()
        waits = {each.name: asyncio.create_task(each.process.wait()) for each in running if each.process is not None}
        for each in running:
            if each.process is not None:
                each.process.terminate()
        while any(not task.done() for task in waits.values()):
            left_s = self._grace_s() - (time.monotonic() - began)
            if left_s <= 0 or self._gone:
                for each in running:
                    if each.process is not None:
                        each.process.kill()
                await asyncio.wait(waits.values())
            else:  # a second delete may shorten the grace period meanwhile
                await asyncio.wait(waits.values(), timeout=min(left_s, 0.5))
        for each in running:
            each.ended(waits[each.name].result())

    def _grace_s(self) -> float:
        meta, spec = self.pod["metadata"], self.pod["spec"]
        if self._verdict is not None and not meta.get("deletionTimestamp"):
            return 0.0 if self._verdict[0] == "Evicted" else float(spec.get("terminationGracePeriodSeconds", 30))
        return float(meta.get("deletionGracePeriodSeconds") or spec.get("terminationGracePeriodSeconds", 30))

    async def _work(self) -> None:
        if self.kubelets.start_s:
            await asyncio.sleep(self.kubelets.start_s)
        await self._prepare()
        for each in self.inits:
            if each.exit is not None and each.exit.code == 0:
                continue
            if each.sidecar:
                continue
            await self._pull(each)
            await self._run(each)
            if each.exit is not None and each.exit.code != 0:
                return
        sidecars = [asyncio.create_task(self._run(each)) for each in self.inits if each.sidecar]
        for each in self.mains:
            if each.exit is None and not each.runs:
                await self._pull(each)
        try:
            await self._run_all()
        finally:
            for task in sidecars:
                task.cancel()
            await asyncio.gather(*sidecars, return_exceptions=True)
        await self._terminate([each for each in self.inits if each.process is not None])

    async def _run_all(self) -> None:
        async with asyncio.TaskGroup() as group:
            for each in self.mains:
                group.create_task(self._run(each))

    async def _prepare(self) -> None:
        while True:
            self.volumes.clear()
            try:
                self.address = self.kubelets.runtime.prepare(self.pod) or self.address
            except StartError as problem:
                for each in self.mains:
                    each.waits("ContainerCreating", str(problem))
                await self._report()
                await self.volumes.wait()
                continue
            self._ready_to_start = True
            if not any(each.runs for each in self.mains):
                await self._report()
            return

    async def _pull(self, each: Container) -> None:
        image = each.spec["image"]
        tried = False
        while any(word in image for word in self.kubelets.missing):
            text = f'failed to pull and unpack image "{image}": not found'
            each.waits(
                "ImagePullBackOff" if tried else "ErrImagePull", f'Back-off pulling image "{image}"' if tried else text
            )
            await self._report()
            if not tried:
                tried = True
                await asyncio.sleep(0.05)
                continue
            self.kubelets.images.clear()
            await self.kubelets.images.wait()
        if tried:
            each.waits("ContainerCreating")

    async def _run(self, each: Container) -> None:
        """Run a container as often as its restart policy says."""
        policy = "Always" if each.sidecar else self.pod["spec"].get("restartPolicy", "Always")
        backoff = self.kubelets.backoff_s
        while True:
            found = each.exit
            if found is None:
                began = time.monotonic()
                found = await self._once(each)
                if time.monotonic() - began > 600.0:
                    backoff = self.kubelets.backoff_s
            wanted = policy == "Always" and not (each.init and not each.sidecar)
            if not wanted and not (policy != "Never" and found.code != 0):
                await self._report()
                return
            if each.restarts == 0 or self.kubelets.backoff_s == 0:
                each.again()
            else:
                text = f"back-off {backoff:g}s restarting failed container={each.name} pod={self.key[1]}"
                each.again("CrashLoopBackOff", text)
                await self._report()
                await asyncio.sleep(backoff)
                backoff = min(2 * backoff, BACKOFF_MAX_S)

    async def _once(self, each: Container) -> Exit:
        while True:
            try:
                process = await self.kubelets.runtime.start(self.pod, each.spec, each.runs)
            except StartError as problem:
                if problem.reason == "RunContainerError":
                    found = Exit(128, "StartError", str(problem))
                    each.ended(found)
                    return found
                each.waits(problem.reason, str(problem))
                await self._report()
                self.volumes.clear()
                await self.volumes.wait()
                continue
            break
        each.started(process, uuid.uuid4().hex)
        await self._report()
        found = await process.wait()
        each.ended(found)
        return found

    async def _report(self) -> None:
        """Write the pod's status."""
        await self.node.online.wait()
        if self._gone:
            return
        store = self.kubelets.objects.store
        stored = store.get(self.kubelets.pods, *self.key)
        if stored is not None and stored.meta["uid"] == self.uid:
            changed = self.kubelets.objects.change(self.kubelets.pods, self.key, self._fill)
            if changed is not None:
                self.pod = changed.object

    def _fill(self, pod: Json) -> None:
        status = pod.setdefault("status", {})
        phase = self.phase()
        status["phase"] = phase
        status.setdefault("startTime", stamp())
        status["observedGeneration"] = pod["metadata"].get("generation", 1)
        status["hostIP"] = "127.0.0.1"
        status["hostIPs"] = [{"ip": "127.0.0.1"}]
        if self.address:
            status["podIP"], status["podIPs"] = self.address, [{"ip": self.address}]
        if self._verdict is not None:
            reason, message, condition = self._verdict
            status["reason"], status["message"] = reason, message
            if condition:
                set_condition(pod, "DisruptionTarget", "True", condition, message)
        status["containerStatuses"] = [each.status() for each in self.mains]
        if self.inits:
            status["initContainerStatuses"] = [each.status() for each in self.inits]
        names = [each.name for each in self.mains if "running" not in each.state]
        over = phase in ("Succeeded", "Failed")
        reason = ("PodCompleted" if phase == "Succeeded" else "PodFailed") if over else "ContainersNotReady"
        text = f"containers with unready status: [{' '.join(names)}]"
        initialized = all(each.exit is not None and each.exit.code == 0 for each in self.inits if not each.sidecar)
        set_condition(pod, "PodReadyToStartContainers", "True" if self._ready_to_start and not over else "False")
        set_condition(
            pod, "Initialized", "True" if initialized else "False", "" if initialized else "ContainersNotInitialized"
        )
        for kind in ("Ready", "ContainersReady"):
            if names or over:
                set_condition(pod, kind, "False", reason, "" if over else text)
            else:
                set_condition(pod, kind, "True")

    def phase(self) -> str:
        """The pod's phase."""
        if self._verdict is not None:
            return "Failed"
        failed_init = any(each.exit is not None and each.exit.code != 0 for each in self.inits if not each.sidecar)
        never = self.pod["spec"].get("restartPolicy") == "Never"
        if failed_init and never:
            return "Failed"
        if self.mains and all(each.exit is not None for each in self.mains):
            return (
                "Succeeded" if all(each.exit is not None and each.exit.code == 0 for each in self.mains) else "Failed"
            )
        return "Running" if any(each.runs for each in self.mains) else "Pending"

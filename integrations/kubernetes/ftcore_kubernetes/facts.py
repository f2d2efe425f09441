"""What a pod's and a node's status means for ftcore. Pure.

| status | report |
|---|---|
| the pod has failed or succeeded, or its object is gone | ``NodeEnded`` with reason and exit code |
| it is to be deleted, evicted or preempted, and still runs | ``NodeWarned`` within its grace period |
| its machine does not answer, or lacks memory or disk | ``NodeWarned``; heartbeats say whether it is dead |
| it waits: no machine, no image, no quota | no report of a node, which has never joined; no capacity |

Sources: "Pod Lifecycle", "Disruptions" (condition ``DisruptionTarget``), "Node-pressure Eviction", "Node Status".
"""

from datetime import datetime
from typing import Any, Final

import attrs

from ftcore import NodeEnded, NodeWarned
from ftcore_kubernetes.api import KubeObject

STUCK: Final = (
    "ImagePullBackOff",
    "ErrImagePull",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "CrashLoopBackOff",
    "RunContainerError",
)
"""Reasons of a waiting container that do not go away by waiting a little."""

LOST_WITHIN_S: Final = 300.0
"""Kubernetes deletes pods of a machine that does not answer after this time (``tolerationSeconds``)."""

PRESSURE_WITHIN_S: Final = 60.0

PRESSURES: Final = ("MemoryPressure", "DiskPressure", "PIDPressure")

OWN_CODES: Final = {0: 60.0, 1: 20.0, 2: 20.0, 5: 10.0}
"""Exit codes with which ``ftrun`` itself ends, usually with the job or because its node is released; and the seconds
for which the end of the job is waited for, before its place is filled again."""


@attrs.frozen(kw_only=True)
class PodEnd:
    """How a pod has ended.

    Args:
        reason: in a few words, as ``OOMKilled, exit code 137``.
        code: exit code of the container that trains; None: unknown.
        is_disrupted: Kubernetes ended it: an eviction, a preemption, the loss of its machine.
    """

    reason: str
    code: int | None
    is_disrupted: bool = False

    @property
    def settle_s(self) -> float:
        """Seconds to wait for the end of the job, because ``ftrun`` ended by itself."""
        return 0.0 if self.is_disrupted or self.code is None else OWN_CODES.get(self.code, 0.0)


def slim(pod: KubeObject) -> KubeObject:
    """The fields of a pod that the cache keeps, without ``managedFields`` and most of the spec."""
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept = ("name", "uid", "resourceVersion", "labels", "annotations", "deletionTimestamp", "creationTimestamp")
    more = ("deletionGracePeriodSeconds", "ownerReferences")
    return {
        "metadata": {name: metadata[name] for name in (*kept, *more) if name in metadata},
        "spec": {name: spec[name] for name in ("nodeName", "terminationGracePeriodSeconds") if name in spec}
        | {"containers": [{"name": each.get("name")} for each in spec.get("containers") or ()]},
        "status": {
            name: status[name]
            for name in (
                "phase",
                "reason",
                "message",
                "conditions",
                "containerStatuses",
                "initContainerStatuses",
                "podIP",
                "startTime",
            )
            if name in status
        },
    }


def slim_node(node: KubeObject) -> KubeObject:
    """The fields of a machine that the cache keeps."""
    metadata, status = node["metadata"], node.get("status") or {}
    conditions = [
        {name: each.get(name) for name in ("type", "status", "reason", "message")}
        for each in status.get("conditions") or ()
    ]
    return {
        "metadata": {name: metadata[name] for name in ("name", "uid", "resourceVersion") if name in metadata},
        "status": {"conditions": conditions},
    }


def end_of(pod: KubeObject) -> PodEnd | None:
    """How a pod has ended; None: it has not."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    terminated = _terminated(pod)
    code = terminated.get("exitCode") if terminated else None
    words = []
    disrupted = _condition(pod, "DisruptionTarget")
    for word in (status.get("reason"), disrupted.get("reason") if disrupted else None, _reason_of(terminated)):
        if word and word not in words and word not in ("Completed", "Error"):
            words.append(str(word))
    if not words:
        words.append("Completed" if code == 0 else "Error")
    if code is not None:
        signal = terminated.get("signal") if terminated else None
        words.append(f"exit code {code}" + (f", signal {signal}" if signal else ""))
    message = status.get("message") or (disrupted or {}).get("message") or ""
    is_disrupted = bool(status.get("reason") or disrupted or _is_being_deleted(pod))
    return PodEnd(reason=", ".join(words) + (f": {message}" if message else ""), code=code, is_disrupted=is_disrupted)


def _reason_of(terminated: KubeObject | None) -> str | None:
    return terminated.get("reason") if terminated else None


def _terminated(pod: KubeObject) -> KubeObject | None:
    """The end of the container that trains, or of an init container that failed."""
    ended: KubeObject | None = _container_state(pod).get("terminated")
    if ended is not None:
        return ended
    for each in (pod.get("status") or {}).get("initContainerStatuses") or ():
        failed: KubeObject | None = (each.get("state") or {}).get("terminated")
        if failed is not None and failed.get("exitCode"):
            return failed
    return None


def _container_state(pod: KubeObject) -> KubeObject:
    """The state of the container that trains, which is the first one; empty: unknown."""
    containers = (pod.get("spec") or {}).get("containers") or [{}]
    states = (pod.get("status") or {}).get("containerStatuses") or []
    first: list[KubeObject] = [each for each in states if each.get("name") == containers[0].get("name")] or states[:1]
    state: KubeObject = (first[0].get("state") or {}) if first else {}
    return state


def ran_s(pod: KubeObject) -> float:
    """Seconds for which the container that trains ran, from the pod's status; 0: it did not run, or that is unknown.

    A pod that was removed or disrupted before its container's end was recorded ran until its deletion was requested,
    or until the disruption.
    """
    state = _container_state(pod)
    terminated, running = state.get("terminated") or {}, state.get("running") or {}
    begun = terminated.get("startedAt") or running.get("startedAt") or (pod.get("status") or {}).get("startTime")
    disrupted = _condition(pod, "DisruptionTarget") or {}
    ended = (
        terminated.get("finishedAt") or disrupted.get("lastTransitionTime") or pod["metadata"].get("deletionTimestamp")
    )
    if not begun or not ended:
        return 0.0
    return max(0.0, (datetime.fromisoformat(str(ended)) - datetime.fromisoformat(str(begun))).total_seconds())


def waits_for(pod: KubeObject) -> str:
    """Why a pod does not start, if that does not go away by itself; empty: it runs, or starts."""
    status = pod.get("status") or {}
    if status.get("phase") not in ("Pending", None) or _is_being_deleted(pod):
        return ""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled is not None and scheduled.get("status") == "False":
        reason = str(scheduled.get("reason") or "")
        if reason in ("Unschedulable", "SchedulingGated"):
            return f"{reason}: {scheduled.get('message') or 'no machine fits'}"
    for each in [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]:
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK:
            return f"{waiting['reason']}: {waiting.get('message') or each.get('image') or each.get('name')}"
    return ""


def report_of(pod: KubeObject, node: KubeObject | None = None) -> NodeEnded | NodeWarned | None:
    """The report about a worker pod, whose name is that of its ftcore node; None: it is well, or starts.

    Args:
        pod: the pod.
        node: its machine, if it is known.
    """
    name = str(pod["metadata"]["name"])
    if (end := end_of(pod)) is not None:
        return NodeEnded(node=name, reason=end.reason)
    if not (pod.get("spec") or {}).get("nodeName"):
        return None
    if _is_being_deleted(pod):
        grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        why = _condition(pod, "DisruptionTarget")
        text = f"{why.get('reason')}: {why.get('message') or ''}".rstrip(": ") if why else "its pod is being deleted"
        return NodeWarned(node=name, reason=text, within_s=grace_s)
    disrupted = _condition(pod, "DisruptionTarget")
    if disrupted is not None and disrupted.get("status") == "True":
        grace_s = float((pod.get("spec") or {}).get("terminationGracePeriodSeconds") or 30)
        reason = f"{disrupted.get('reason')}: {disrupted.get('message') or ''}".rstrip(": ")
        return NodeWarned(node=name, reason=reason, within_s=grace_s)
    trouble = trouble_of(node) if node is not None else None
    return None if trouble is None else NodeWarned(node=name, reason=trouble[0], within_s=trouble[1])


def removal_of(pod: KubeObject) -> NodeEnded:
    """The report about a pod whose object was removed, as it was last seen."""
    end = end_of(pod)
    return NodeEnded(node=str(pod["metadata"]["name"]), reason=end.reason if end else "its pod was removed")


def trouble_of(node: KubeObject) -> tuple[str, float] | None:
    """The fault of a machine, and the seconds within which its pod may be removed; None: it is well."""
    name = node["metadata"]["name"]
    for each in (node.get("status") or {}).get("conditions") or ():
        kind, status = each.get("type"), each.get("status")
        detail = f": {each['message']}" if each.get("message") else ""
        if kind == "Ready" and status in ("False", "Unknown"):
            return f"machine {name} is not ready ({each.get('reason') or status}){detail}", LOST_WITHIN_S
        if kind in PRESSURES and status == "True":
            return f"machine {name}: {kind}{detail}", PRESSURE_WITHIN_S
    return None


def _is_being_deleted(pod: KubeObject) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def is_live(pod: KubeObject) -> bool:
    """Whether a pod runs or will run, and is not about to be deleted."""
    return not _is_being_deleted(pod) and end_of(pod) is None


def _condition(pod: KubeObject, kind: str) -> dict[str, Any] | None:
    conditions: list[dict[str, Any]] = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), None)

"""The Job controller: one pod at a time for each Job, another one after a failure, as its pod failure policy says.

Source: Kubernetes documentation, "Jobs". Not here: parallelism, completions, indexes, suspension, deadlines, TTL.
"""

import asyncio
from collections import Counter
from typing import Any

from .handlers import set_condition
from .names import stamp
from .objects import Objects
from .resources import Resource
from .status import ApiError, Json
from .store import Change, Stored

LABEL = "batch.kubernetes.io/job-name"
OVER = ("Succeeded", "Failed")


class Jobs:
    """``backoff_s``: pause before the pod that follows the first failed one; doubled each time."""

    def __init__(self, objects: Objects, backoff_s: float = 10.0) -> None:
        self.objects, self.store, self.backoff_s = objects, objects.store, backoff_s
        self.jobs, self.pods = objects.catalog.get("jobs", "batch"), objects.catalog.get("pods")
        self._failed: Counter[str] = Counter()
        self._seen_pods: set[str] = set()
        self._timers: set[asyncio.TimerHandle] = set()
        self.store.listeners.append(self._seen)

    def _seen(self, resource: Resource, change: Change) -> None:
        loop = asyncio.get_running_loop()
        if resource is self.jobs and change.type == "ADDED":
            loop.call_soon(self._create, change.stored.key)
        if resource is not self.pods:
            return
        name = (change.stored.meta.get("labels") or {}).get(LABEL)
        uid, phase = change.stored.meta["uid"], change.stored.object["status"].get("phase")
        if name is None or uid in self._seen_pods or not (change.type == "DELETED" or phase in OVER):
            return
        self._seen_pods.add(uid)
        loop.call_soon(self._ended, (change.stored.meta["namespace"], name), change.stored.object)

    def _create(self, key: tuple[str, str]) -> None:
        job = self.store.get(self.jobs, *key)
        if job is None or job.meta.get("deletionTimestamp"):
            return
        template = job.copy()["spec"]["template"]
        meta: Json = template.get("metadata") or {}
        reference: Json = {"apiVersion": "batch/v1", "kind": "Job", "name": key[1], "uid": job.meta["uid"]}
        pod = {
            "metadata": {
                "generateName": f"{key[1]}-",
                "labels": (meta.get("labels") or {}) | {LABEL: key[1]},
                "annotations": meta.get("annotations") or {},
                "ownerReferences": [reference | {"controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }
        try:
            self.objects.create(self.pods, key[0], pod)
        except ApiError:
            self._later(key, self.backoff_s)

    def _later(self, key: tuple[str, str], seconds: float) -> None:
        self._timers = {each for each in self._timers if not each.cancelled()}
        self._timers.add(asyncio.get_running_loop().call_later(seconds, self._create, key))

    def _ended(self, key: tuple[str, str], pod: Json) -> None:
        job = self.store.get(self.jobs, *key)
        if job is None or job.meta.get("deletionTimestamp"):
            return
        if pod["status"].get("phase") == "Succeeded":
            self._finish(key, "Complete", "CompletionsReached", "Reached expected number of succeeded pods")
            return
        action, why = _action(job, pod)
        if action == "FailJob":
            self._finish(key, "Failed", "PodFailurePolicy", why)
            return
        if action != "Ignore":
            self._failed[job.meta["uid"]] += 1
            if self._failed[job.meta["uid"]] > job.object["spec"].get("backoffLimit", 6):
                self._finish(key, "Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
                return
        self._later(key, self.backoff_s * 2 ** min(max(self._failed[job.meta["uid"]] - 1, 0), 5))

    def _finish(self, key: tuple[str, str], kind: str, reason: str, message: str) -> None:
        def finish(job: Json) -> None:
            set_condition(job, kind, "True", reason, message)
            if kind == "Complete":
                job["status"]["completionTime"] = stamp()

        self.objects.change(self.jobs, key, finish)

    def close(self) -> None:
        """Create no more pods."""
        for timer in self._timers:
            timer.cancel()


def _action(job: Stored, pod: Json) -> tuple[str, str]:
    """What the pod failure policy says of a failed pod, and why; the first rule that fits counts."""
    rules: list[Any] = (job.object["spec"].get("podFailurePolicy") or {}).get("rules") or []
    states = pod["status"].get("containerStatuses") or ()
    codes = {each["name"]: ((each.get("state") or {}).get("terminated") or {}).get("exitCode") for each in states}
    true = {each["type"] for each in pod["status"].get("conditions") or () if each["status"] == "True"}
    for rule in rules:
        if (wanted := rule.get("onExitCodes")) is not None:
            for name, code in codes.items():
                is_in = code in wanted["values"]
                fits = is_in if wanted["operator"] == "In" else not is_in
                if code and wanted.get("containerName") in (None, name) and fits:
                    return rule[
                        "action"
                    ], f"Container {name} failed with exit code {code} matching {rule['action']} rule"
        elif any(each["type"] in true for each in rule.get("onPodConditions") or ()):
            return rule["action"], "Pod has a condition that matches"
    return "Count", ""

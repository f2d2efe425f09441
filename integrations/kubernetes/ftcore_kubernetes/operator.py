"""The operator: an ``ElasticTrainJob`` is submitted, its edits are applied or refused, its status is kept.

It does what ``ftctl k8s submit`` does, by the same code, and nothing for a running job: that is the master's. So two
operators at once, or none for a while, are harmless. Objects are owned by the resource, and are deleted with it by
Kubernetes.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

import attrs
import kopf

from ftcore.errors import FtcoreError, Refused, Unreachable, UsageError
from ftcore_kubernetes.api import Api, ApiError
from ftcore_kubernetes.config import ApiConfig
from ftcore_kubernetes.edits import refused_edits
from ftcore_kubernetes.facts import is_live, slim, waits_for
from ftcore_kubernetes.job_file import API_VERSION, GROUP, KIND, PLURAL, VERSION, TrainJob, of_object
from ftcore_kubernetes.manifests import CLUSTER_WIDE, owner_of, possible_names, root
from ftcore_kubernetes.places import JOB, ROLE
from ftcore_kubernetes.pool import refused
from ftcore_kubernetes.submit import BeingDeleted, delete_labelled, submit, submitted_job

RESOURCE: Final = f"{PLURAL}.{GROUP}"
FINALIZER: Final = f"{GROUP}/operator"
RETRY_S: Final = 15.0
DELETED_S: Final = 2.0
"""Pause before the operator looks again whether an earlier job of a name is gone."""

WATCH_S: Final = 300


@attrs.define
class OperatorParts:
    """What the handlers share.

    Args:
        api: the API server.
        written_status: the status that was last written, by namespace and name.
    """

    api: Api
    written_status: dict[tuple[str, str], dict[str, Any]] = attrs.field(factory=dict)


async def serve(namespace: str, config: ApiConfig) -> None:
    """Run the operator until a signal comes.

    Args:
        namespace: the only one that it serves; empty: all.
        config: the API server; kopf reads the same kubeconfig or service account.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False  # conditions say it, and the right to write events is not needed
    settings.persistence.finalizer = FINALIZER
    settings.watching.server_timeout = WATCH_S
    settings.watching.client_timeout = WATCH_S + 30
    api = Api(config)
    try:
        await kopf.operator(
            settings=settings,
            standalone=True,
            clusterwide=not namespace,
            namespaces=[namespace] if namespace else [],
            memo=OperatorParts(api),
        )
    finally:
        await api.close()


@kopf.on.create(RESOURCE)
@kopf.on.resume(RESOURCE)
async def created(body: Any, memo: Any, namespace: Any, **_: Any) -> None:
    """Submit the job."""
    await _submit(body, memo.api, namespace)


async def _submit(body: Mapping[str, Any], api: Api, namespace: str) -> None:
    job = await _read(body, api)
    if job is None:
        return
    owner = owner_of({"apiVersion": API_VERSION, "kind": KIND, "metadata": body["metadata"]})
    owner |= {"controller": True, "blockOwnerDeletion": True}
    try:
        running = await submitted_job(api, job.name, namespace, owner["uid"])
        if running is not None and running.spec != job.spec:
            await _edit(api, running, job, namespace, body)
            return
        await submit(api, job, namespace, owner)
    except Refused as error:
        await _accept(api, body, "False", "Declined", str(error))
        raise kopf.TemporaryError(str(error), delay=RETRY_S) from error
    except Unreachable as error:
        raise _later(error) from error
    await _accept(api, body, "True", "Submitted", "the job's objects are created")


@kopf.on.update(RESOURCE, field="spec")
async def edited(body: Any, memo: Any, namespace: Any, **_: Any) -> None:
    """Apply an edit, or say why not."""
    job = await _read(body, memo.api)
    if job is None:
        return
    try:
        running = await submitted_job(memo.api, job.name, namespace, str(body["metadata"]["uid"]))
        if running is None:
            await _submit(body, memo.api, namespace)
        else:
            await _edit(memo.api, running, job, namespace, body)
    except Refused as error:
        await _accept(memo.api, body, "False", "Declined", str(error))
        raise _later(error) from error
    except Unreachable as error:
        raise _later(error) from error


def _later(error: FtcoreError) -> kopf.TemporaryError:
    return kopf.TemporaryError(str(error), delay=DELETED_S if isinstance(error, BeingDeleted) else RETRY_S)


@kopf.on.delete(RESOURCE)
async def deleted(name: Any, memo: Any, namespace: Any, **_: Any) -> None:
    """Delete the rights on machines, which a namespaced object cannot own; until then it has a finalizer."""
    for obj in possible_names(name, namespace):
        if obj["kind"] in CLUSTER_WIDE:
            try:
                await delete_labelled(memo.api, obj, name)
            except ApiError as error:  # without the right, it has created none either
                logging.warning("%s %s is not deleted: %s", obj["kind"], obj["metadata"]["name"], refused(error))
            except Unreachable as error:
                raise _later(error) from error
    memo.written_status.pop((namespace, name), None)


@kopf.index("pods", labels={JOB: kopf.PRESENT, ROLE: "worker"})
def workers(body: Any, namespace: Any, labels: Any, **_: Any) -> Any:
    """Worker pods by namespace and job."""
    return {(namespace, labels[JOB]): slim({key: body.get(key) or {} for key in ("metadata", "spec", "status")})}


@kopf.index("batch", "v1", "jobs", labels={JOB: kopf.PRESENT})
def outcomes(body: Any, namespace: Any, labels: Any, **_: Any) -> Any:
    """How the masters' Jobs have ended, by namespace and job; empty: not yet."""
    conditions = (body.get("status") or {}).get("conditions") or []
    ended = [each["type"] for each in conditions if each.get("status") == "True"]
    outcome = "Succeeded" if "Complete" in ended else "Failed" if "Failed" in ended else ""
    return {(namespace, labels[JOB]): outcome}


@kopf.on.event("batch", "v1", "jobs", labels={JOB: kopf.PRESENT})
@kopf.on.event("pods", labels={JOB: kopf.PRESENT})
async def observed(labels: Any, namespace: Any, memo: Any, **indexes: Any) -> None:
    """Keep the status: pods that run, what the others wait for, and how the job has ended."""
    name = labels[JOB]
    key = (namespace, name)
    status = status_of(list(indexes["workers"].get(key, [])), list(indexes["outcomes"].get(key, [])))
    if memo.written_status.get(key) == status:
        return
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/{PLURAL}/{name}/status"
    try:
        await memo.api.patch(path, {"status": status})
        memo.written_status[key] = status
    except ApiError as error:
        if error.code != 404:  # a job of `ftctl k8s submit` has no resource
            logging.warning("status of %s/%s: %s", namespace, name, refused(error))
    except Unreachable as error:
        logging.warning("status of %s/%s: %s", namespace, name, error)


def status_of(pods: list[dict[str, Any]], ended: list[str]) -> dict[str, Any]:
    """The status of a resource. Pure.

    Args:
        pods: the job's worker pods.
        ended: how the master's Job has ended; an empty text: not yet.
    """
    live = [pod for pod in pods if is_live(pod)]
    ready = sum(pod["status"].get("phase") == "Running" for pod in live)
    waiting = sorted({why for pod in live if (why := waits_for(pod))})
    phase = next(filter(None, ended), "Running" if ready else "Pending")
    return {"phase": phase, "ready": ready, "replicas": len(live), "message": "; ".join(waiting)[:500]}


async def _read(body: Mapping[str, Any], api: Api) -> TrainJob | None:
    try:
        return of_object({"metadata": dict(body["metadata"]), "spec": _plain(body.get("spec"))})
    except UsageError as error:
        await _accept(api, body, "False", "Invalid", str(error))
        return None


async def _edit(api: Api, running: TrainJob, job: TrainJob, namespace: str, body: Mapping[str, Any]) -> None:
    """Apply the edit of a submitted job as a whole, or refuse it as a whole."""
    if problems := refused_edits(running.spec, job.spec):
        text = "cannot change while the job runs; delete the job and create it again: " + "; ".join(problems)
        await _accept(api, body, "False", "EditRefused", text)
        return
    if running.spec != job.spec:
        data = root(job, namespace)["data"]
        try:
            await api.patch(f"/api/v1/namespaces/{namespace}/configmaps/{job.name}", {"data": data})
        except ApiError as error:
            raise refused(error) from error
    await _accept(api, body, "True", "EditApplied", f"replicas: {job.spec.replicas}")


async def _accept(api: Api, body: Mapping[str, Any], status: str, reason: str, message: str) -> None:
    """Write the condition ``Accepted`` of the resource as this handler has seen it.

    A later generation has an answer of its own, perhaps of another operator, and it stays.
    """
    meta = body["metadata"]
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{meta['namespace']}/{PLURAL}/{meta['name']}"
    accepted = {"type": "Accepted", "status": status, "reason": reason, "message": message[:1000]}
    while True:
        try:
            now = await api.get(path)
            if now["metadata"]["uid"] != meta["uid"] or now["metadata"]["generation"] > meta["generation"]:
                return
            known = (now.get("status") or {}).get("conditions") or ()
            written = {
                "conditions": [*(each for each in known if each["type"] != "Accepted"), accepted],
                "observedGeneration": meta["generation"],
            } | ({"message": message[:500]} if status == "False" else {})
            version = {"resourceVersion": now["metadata"]["resourceVersion"]}
            await api.patch(f"{path}/status", {"metadata": version, "status": written})
        except ApiError as error:
            if error.code == 409:  # changed meanwhile
                continue
            if error.code != 404:
                raise refused(error) from error
        return


def _plain(found: Any) -> Any:
    """kopf's views as plain objects."""
    if isinstance(found, Mapping):
        return {key: _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return found

"""Creates, shows and deletes the objects of a job at the API server; for ``ftctl k8s`` and for the operator."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import attrs

from ftcore.errors import Refused, Unreachable, UsageError
from ftcore_kubernetes.api import Api, ApiError, KubeObject
from ftcore_kubernetes.facts import end_of, waits_for
from ftcore_kubernetes.job_file import TrainJob, parse
from ftcore_kubernetes.manifests import (
    CLUSTER_WIDE,
    names_of,
    objects,
    owner_of,
    path_of,
    possible_names,
)
from ftcore_kubernetes.places import JOB, ROLE, place_of
from ftcore_kubernetes.pods import JOB_KEY
from ftcore_kubernetes.pool import declined_in, excluded, refused
from ftcore_kubernetes.secrets import own_secrets

AGAIN_S: Final = 0.5
"""Pause before ``submit`` looks again whether an object of an earlier job is gone."""


class BeingDeleted(Unreachable):
    """An object of an earlier job of this name is still being deleted; a later attempt succeeds."""


async def submit(
    api: Api, job: TrainJob, namespace: str, owner: KubeObject | None = None, patience_s: float = 0.0
) -> list[str]:
    """Create what a job needs and does not have yet; returns what was created, as ``Kind/name``.

    Args:
        api: the API server.
        job: the job.
        namespace: its namespace.
        owner: owner reference of the config map, which owns everything else; None: none.
        patience_s: seconds to wait for objects of an earlier job of this name that are being deleted.

    Raises:
        Refused: another job of this name exists, an object of a name is not the job's, or Kubernetes declines.
        BeingDeleted: objects of an earlier job are still being deleted.
        Unreachable: the API server does not answer; a repeated call goes on where this one ended.
    """
    loop, created = asyncio.get_running_loop(), list[str]()
    until = loop.time() + patience_s
    while True:
        try:
            await _create_missing(api, job, namespace, owner, created)
            return created
        except BeingDeleted:
            if loop.time() >= until:
                raise
        await asyncio.sleep(AGAIN_S)


async def _create_missing(
    api: Api, job: TrainJob, namespace: str, owner: KubeObject | None, created: list[str]
) -> None:
    root, *others = objects(job, namespace)
    if owner is not None:
        root["metadata"]["ownerReferences"] = [owner]
    is_new, present = await _create(api, root)
    if is_new:
        created.append(_text(root))
    else:
        await _check_root(api, present, job, namespace, owner)
    reference = owner_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": present["metadata"]})
    for obj in [*own_secrets(job, namespace), *others]:  # a Secret of this job is kept
        if obj["kind"] not in CLUSTER_WIDE:
            obj["metadata"]["ownerReferences"] = [reference]
        is_new, found = await _create(api, obj)
        if is_new:
            created.append(_text(obj))
        else:
            check_part(found, _text(obj), job.name, reference["uid"])


async def _create(api: Api, obj: KubeObject) -> tuple[bool, KubeObject]:
    """Create an object; returns whether that was done, and the object of its name."""
    try:
        return True, await api.create(path_of(obj, named=False), obj)
    except ApiError as error:
        if error.code == 409 and error.reason == "AlreadyExists":
            return False, await _get(api, obj)
        raise Refused(f"{_text(obj)}: {refused(error)}") from error


async def _get(api: Api, obj: KubeObject) -> KubeObject:
    try:
        return await api.get(path_of(obj, named=True))
    except ApiError as error:
        if error.code == 404:
            raise BeingDeleted(f"{_text(obj)} was deleted meanwhile") from error
        raise Refused(f"{_text(obj)}: {refused(error)}") from error


def _text(obj: KubeObject) -> str:
    return f"{obj['kind']}/{obj['metadata']['name']}"


def check_part(present: KubeObject, text: str, job: str, owner_uid: str) -> None:
    """Check that an existing object is part of a job. One without an owner is: ``kubectl apply`` has created it.

    Args:
        present: the object.
        text: its name in messages, as ``Role/llm``.
        job: the job's name.
        owner_uid: identity of what owns it; empty: anything may.

    Raises:
        BeingDeleted: it is an earlier job's, and will be deleted.
        Refused: it is not a job's.
    """
    metadata = present["metadata"]
    owners = [each.get("uid") for each in metadata.get("ownerReferences") or ()]
    if metadata.get("deletionTimestamp") or (owner_uid and owners and owner_uid not in owners):
        raise BeingDeleted(f"{text} of an earlier job {job} is still being deleted")
    if (metadata.get("labels") or {}).get(JOB) != job:
        raise Refused(
            f"{text} exists and is not part of job {job} (it has no label {JOB}={job}): delete it, or name the job "
            "differently"
        )


async def _check_root(api: Api, present: KubeObject, job: TrainJob, namespace: str, owner: KubeObject | None) -> None:
    """Check that an existing config map is this job's.

    Raises:
        BeingDeleted, Refused: as ``submit``.
    """
    owners = present["metadata"].get("ownerReferences") or []
    if owner is not None:
        _check_owned_root(present, job.name, namespace, str(owner["uid"]))
    else:
        check_part(present, f"ConfigMap/{job.name}", job.name, "")
    if owner is None and owners and not await _exists(api, owners[0], namespace):
        raise BeingDeleted(f"ConfigMap/{job.name} of an earlier job {job.name} is still being deleted")
    if job_in(present).spec != job.spec:
        raise Refused(
            f"a job {namespace}/{job.name} exists with another job file: delete it (ftctl k8s delete {job.name}), or "
            "name yours differently"
        )


def _check_owned_root(root: KubeObject, name: str, namespace: str, owner_uid: str) -> None:
    """Check that a config map is that of a resource. Raises as ``check_part``."""
    check_part(root, f"ConfigMap/{name}", name, owner_uid)
    if not root["metadata"].get("ownerReferences"):
        raise Refused(
            f"job {namespace}/{name} exists without this resource: delete it (ftctl k8s delete {name} -n {namespace}), "
            "or name the resource differently"
        )


async def _exists(api: Api, reference: KubeObject, namespace: str) -> bool:
    """Whether the owner that a reference names exists; True if this user may not read it."""
    metadata = {"name": reference["name"], "namespace": namespace}
    try:
        found = await api.get(path_of(reference | {"metadata": metadata}, named=True))
    except ApiError as error:
        return error.code != 404
    return bool(found["metadata"]["uid"] == reference["uid"])


def job_in(root: KubeObject) -> TrainJob:
    """The job in a config map.

    Raises:
        Refused: there is none.
    """
    name = str(root["metadata"]["name"])
    try:
        return parse(str((root.get("data") or {}).get(JOB_KEY)), f"config map {name}, {JOB_KEY}")
    except UsageError as error:
        raise Refused(f"config map {name} exists and holds no job: {error}") from error


async def submitted_job(api: Api, name: str, namespace: str, owner_uid: str) -> TrainJob | None:
    """The job that a resource has submitted; None: there is none yet.

    Raises:
        BeingDeleted: that of an earlier resource of this name is still there.
        Refused, Unreachable: as ``submit``.
    """
    try:
        found = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    except ApiError as error:
        if error.code == 404:
            return None
        raise refused(error) from error
    _check_owned_root(found, name, namespace, owner_uid)
    return job_in(found)


@attrs.frozen(kw_only=True)
class DeletedObjects:
    """What a deletion did.

    Args:
        deleted: what was deleted, as ``Kind/name``.
        problems: what could not be deleted, with the reasons.
    """

    deleted: list[str]
    problems: list[str]


async def delete(api: Api, name: str, namespace: str) -> DeletedObjects:
    """Delete a job: its config map, with what that owns, and all other objects of it that have its label.

    Volumes of its own etcd stay. If the config map is gone, what is left of the job is deleted.

    Raises:
        Refused: the config map is not a job's, or Kubernetes declines to delete it.
        Unreachable: as ``submit``.
    """
    first, *_ = possible_names(name, namespace)
    try:
        root = await api.get(path_of(first, named=True))
    except ApiError as error:
        if error.code != 404:
            raise refused(error) from error
        root = None
    if root is not None and (root["metadata"].get("labels") or {}).get(JOB) != name:
        raise Refused(f"config map {namespace}/{name} is not a job's: it has no label {JOB}={name}")
    try:
        wanted = names_of(job_in(root), namespace) if root is not None else possible_names(name, namespace)
    except Refused:
        wanted = possible_names(name, namespace)
    deleted, problems = list[str](), list[str]()
    for obj in wanted:
        try:
            if await delete_labelled(api, obj, name):
                deleted.append(_text(obj))
        except ApiError as error:
            if obj["kind"] == "ConfigMap":
                raise refused(error) from error
            problems.append(f"{_text(obj)}: {refused(error)}")
    return DeletedObjects(deleted=deleted, problems=problems)


async def delete_labelled(api: Api, obj: KubeObject, job: str) -> bool:
    """Delete an object if it is a job's; returns whether it was there.

    Raises:
        ApiError, Unreachable: as ``Api.get``.
    """
    try:
        found = await api.get(path_of(obj, named=True))
    except ApiError as error:
        if error.code == 404:
            return False
        raise
    metadata = found["metadata"]
    if (metadata.get("labels") or {}).get(JOB) != job:
        return False
    return await api.delete(path_of(obj, named=True), uid=metadata["uid"], propagation="Background") is not None


@attrs.frozen(kw_only=True)
class PodView:
    """A pod of a job, for people.

    Args:
        name: its name.
        role: ``worker`` or ``master``.
        place: its place; None: it has none.
        phase: as in Kubernetes, or ``Terminating``.
        machine: its machine; empty: none yet.
        detail: how it ended, or what it waits for.
    """

    name: str
    role: str
    place: int | None
    phase: str
    machine: str
    detail: str


@attrs.frozen(kw_only=True)
class JobView:
    """A job, for people.

    Args:
        pods: its pods.
        excluded: machines that it excludes.
        declined: why a pod cannot be created; empty: all are.
    """

    pods: list[PodView]
    excluded: tuple[str, ...]
    declined: str


async def job_view(api: Api, name: str, namespace: str) -> JobView:
    """A job, for people.

    Raises:
        Refused, Unreachable: as ``submit``.
    """
    try:
        root = await api.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}")
        pods = await api.get(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"{JOB}={name}")
    except ApiError as error:
        if error.code == 404:
            raise Refused(f"there is no job {namespace}/{name}") from error
        raise refused(error) from error
    found = sorted(map(view, pods.get("items") or []), key=_order)
    return JobView(pods=found, excluded=excluded(root), declined=declined_in(root))


def _order(view: PodView) -> tuple[bool, int, str]:
    return view.role != "master", view.place if view.place is not None else 1 << 30, view.name


def view(pod: KubeObject) -> PodView:
    """A pod, for people."""
    metadata: dict[str, Any] = pod["metadata"]
    end = end_of(pod)
    phase = str((pod.get("status") or {}).get("phase") or "Pending")
    return PodView(
        name=str(metadata["name"]),
        role=str((metadata.get("labels") or {}).get(ROLE, "")),
        place=place_of(pod),
        phase="Terminating" if metadata.get("deletionTimestamp") and end is None else phase,
        machine=str((pod.get("spec") or {}).get("nodeName") or ""),
        detail=end.reason if end is not None else waits_for(pod),
    )


def table(rows: Sequence[PodView]) -> str:
    """Pods as a table."""
    cells = [("POD", "ROLE", "PLACE", "PHASE", "MACHINE", "DETAIL")]
    for row in rows:
        place = str(row.place) if row.place is not None else "-"
        cells.append((row.name, row.role, place, row.phase, row.machine or "-", row.detail))
    widths = [max(len(cell[column]) for cell in cells) for column in range(5)]
    lines = [
        "  ".join([*(text.ljust(width) for text, width in zip(row[:5], widths, strict=True)), row[5]]) for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)

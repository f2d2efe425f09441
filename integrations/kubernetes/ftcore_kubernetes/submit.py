"""Creates, shows and deletes the objects of a job at the API server; for ``ftctl k8s`` and for the operator."""

from collections.abc import Sequence
from typing import Any, Final

import attrs

from ftcore.errors import Refused, Unreachable
from ftcore_kubernetes.api import Api, ApiError, KubeObject
from ftcore_kubernetes.facts import end_of, waits_for
from ftcore_kubernetes.job_file import TrainJob
from ftcore_kubernetes.manifests import RBAC, objects, owner_of, path_of
from ftcore_kubernetes.places import JOB, ROLE, place_of
from ftcore_kubernetes.pods import JOB_KEY
from ftcore_kubernetes.pool import excluded, refused
from ftcore_kubernetes.secrets import own_secrets

CLUSTER_WIDE: Final = ("ClusterRole", "ClusterRoleBinding")


async def submit(api: Api, job: TrainJob, namespace: str, owner: KubeObject | None = None) -> list[str]:
    """Create what a job needs and does not have yet; returns what was created, as ``Kind/name``.

    Args:
        api: the API server.
        job: the job.
        namespace: its namespace.
        owner: owner reference of the config map, which owns everything else; None: none.

    Raises:
        Refused: another job of this name is there, or Kubernetes declines.
        Unreachable: the API server does not answer; a repeated call goes on where this one ended.
    """
    root, *others = objects(job, namespace)
    if owner is not None:
        root["metadata"]["ownerReferences"] = [owner]
    made, config = await _create_root(api, root, job, namespace)
    found = [f"ConfigMap/{job.name}"] if made else []
    reference = owner_of({"apiVersion": "v1", "kind": "ConfigMap", "metadata": config["metadata"]})
    for obj in [*own_secrets(job, namespace), *others]:  # a Secret that is there is kept
        if obj["kind"] not in CLUSTER_WIDE:
            obj["metadata"]["ownerReferences"] = [reference]
        if await _create(api, obj):
            found.append(f"{obj['kind']}/{obj['metadata']['name']}")
    return found


async def _create_root(api: Api, root: KubeObject, job: TrainJob, namespace: str) -> tuple[bool, KubeObject]:
    try:
        return True, await api.create(path_of(root, named=False), root)
    except ApiError as error:
        if error.code != 409:
            raise refused(error) from error
    try:
        present = await api.get(path_of(root, named=True))
    except ApiError as error:
        raise refused(error) from error
    if present["metadata"].get("deletionTimestamp"):
        raise Unreachable(f"config map {namespace}/{job.name} is still being deleted")
    if (present.get("data") or {}).get(JOB_KEY) != root["data"][JOB_KEY]:
        raise Refused(
            f"a job {namespace}/{job.name} is there with another job file: delete it (ftctl k8s delete {job.name}), or "
            "name yours differently"
        )
    return False, present


async def _create(api: Api, obj: KubeObject) -> bool:
    try:
        await api.create(path_of(obj, named=False), obj)
    except ApiError as error:
        if error.code == 409 and error.reason == "AlreadyExists":
            return False
        raise Refused(f"{obj['kind']} {obj['metadata']['name']}: {refused(error)}") from error
    return True


async def delete(api: Api, name: str, namespace: str) -> bool:
    """Delete a job: its config map, and with it everything that it owns; returns whether there was one.

    Raises:
        Refused, Unreachable: as ``submit``.
    """
    try:
        path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
        found = await api.delete(path, propagation="Background")
        for plural in ("clusterrolebindings", "clusterroles"):
            await api.delete(f"/apis/{RBAC}/{plural}/ftcore-{namespace}-{name}")
    except ApiError as error:
        if error.code != 403 or "clusterrole" not in error.message:
            raise refused(error) from error
    return found is not None


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


async def views(api: Api, name: str, namespace: str) -> tuple[list[PodView], tuple[str, ...]]:
    """The pods of a job, and the machines that it excludes.

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
    return found, excluded(root)


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

"""The objects of a job, in the order of their creation: for ``ftctl k8s`` and the operator alike. Pure.

The config map is the root: it holds the job file, and owns what the job creates. It is deleted with everything.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.etcd_manifests import etcd_objects
from ftcore_kubernetes.job_file import API_VERSION, KIND, EtcdSpec, JobFileSpec, StoreSpec, TrainJob
from ftcore_kubernetes.places import JOB, ROLE
from ftcore_kubernetes.pods import JOB_KEY, POLICY_KEY, master_template, tls_secret, token_secret

QUARANTINED: Final = "ftcore.dev/quarantined"
"""Annotation of the config map: machines that the job excludes, separated by commas."""

DECLINED: Final = "ftcore.dev/not-created"
"""Annotation of the config map: why a pod of the job cannot be created, in Kubernetes' words."""

JOB_FAILED, JOB_STOPPED = 81, 82
"""Exit codes of the master's container that end the Job: the training has failed, or was stopped.

Neither Python nor ``ftrun`` uses them. Any other code is a failure of the machine, the image or the program: another
pod follows.
"""

CLUSTER_WIDE: Final = ("ClusterRole", "ClusterRoleBinding")

RBAC: Final = "rbac.authorization.k8s.io/v1"

MASTER_TRIES: Final = 1000
"""Master pods that may be lost before the job counts as failed; a disruption does not count."""


def root(job: TrainJob, namespace: str) -> KubeObject:
    """The config map with the job file and its policy."""
    data = {JOB_KEY: dump(job)} | ({POLICY_KEY: job.spec.policy} if job.spec.policy else {})
    return labelled("v1", "ConfigMap", job, namespace) | {"data": data}


def objects(job: TrainJob, namespace: str) -> list[KubeObject]:
    """All objects of a job but its Secrets; the config map first.

    Args:
        job: the job.
        namespace: its namespace.
    """
    found = [root(job, namespace), labelled("v1", "ServiceAccount", job, namespace), *_rights(job, namespace)]
    if job.spec.store.etcd is not None:
        found += [
            each | {"metadata": each["metadata"] | {"namespace": namespace, "labels": _labels(job)}}
            for each in etcd_objects(job)
        ]
    return [*found, master_job(job, namespace)]


def secret_names(job: TrainJob) -> list[str]:
    """The Secrets that are made for a job."""
    names = [] if job.spec.token_secret else [token_secret(job)]
    return names + ([tls_secret(job)] if job.spec.store.etcd is not None and not job.spec.store.tls_secret else [])


def names_of(job: TrainJob, namespace: str) -> list[KubeObject]:
    """All objects of a job, by kind and name alone: what a deletion removes; the config map first."""
    secrets = [labelled("v1", "Secret", job, namespace, name=name) for name in secret_names(job)]
    return [{key: obj[key] for key in ("apiVersion", "kind", "metadata")} for obj in objects(job, namespace) + secrets]


def possible_names(name: str, namespace: str) -> list[KubeObject]:
    """All objects that any job of a name may have, as ``names_of``: for one whose job file is gone."""
    template = {"spec": {"containers": [{"name": "any", "image": "any"}]}}
    spec = JobFileSpec(command=["any"], template=template, store=StoreSpec(etcd=EtcdSpec()), watch_nodes=True)
    return names_of(TrainJob(name=name, namespace=namespace, spec=spec), namespace)


def cluster_name(name: str, namespace: str) -> str:
    """Name of a job's cluster-wide objects. Neither part can contain a colon, so no two jobs share a name."""
    return f"ftcore:{namespace}:{name}"


def master_job(job: TrainJob, namespace: str) -> KubeObject:
    """The Job that keeps one master pod: another pod follows a lost one, none follows the end of the training."""
    ends = {"containerName": "master", "operator": "In", "values": [JOB_FAILED, JOB_STOPPED]}
    return labelled("batch/v1", "Job", job, namespace, name=f"{job.name}-master") | {
        "spec": {
            "backoffLimit": MASTER_TRIES,
            "podFailurePolicy": {
                "rules": [
                    {"action": "FailJob", "onExitCodes": ends},
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                ]
            },
            "template": master_template(job, namespace),
        }
    }


def _rights(job: TrainJob, namespace: str) -> list[KubeObject]:
    """The least rights: the namespace's pods, this job's config map; machines only if the job file asks for it."""
    rules = [
        _rule("", "pods", "get list watch create delete"),
        _rule("", "configmaps", "get list watch patch", [job.name]),
    ]
    found = [
        labelled(RBAC, "Role", job, namespace) | {"rules": rules},
        _binding("RoleBinding", "Role", job.name, job, namespace),
    ]
    if machines := _machine_rules(job):
        name = cluster_name(job.name, namespace)
        role = labelled(RBAC, "ClusterRole", job, "", name=name) | {"rules": machines}
        found += [role, _binding("ClusterRoleBinding", "ClusterRole", name, job, namespace)]
    return found


def _machine_rules(job: TrainJob) -> list[KubeObject]:
    verbs = ["get", "list", "watch"] if job.spec.watch_nodes else []
    if job.spec.quarantine in ("cordon", "taint"):
        verbs = list(dict.fromkeys([*verbs, "get", "patch"]))
    return [_rule("", "nodes", " ".join(verbs))] if verbs else []


def _rule(group: str, resource: str, verbs: str, names: list[str] | None = None) -> KubeObject:
    rule: KubeObject = {"apiGroups": [group], "resources": [resource], "verbs": verbs.split()}
    return rule | ({"resourceNames": names} if names else {})


def _binding(kind: str, role_kind: str, role: str, job: TrainJob, namespace: str) -> KubeObject:
    name = role if role_kind == "ClusterRole" else job.name
    where = "" if kind == "ClusterRoleBinding" else namespace
    return labelled(RBAC, kind, job, where, name=name) | {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": job.name, "namespace": namespace}],
    }


def labelled(api_version: str, kind: str, job: TrainJob, namespace: str, name: str = "") -> KubeObject:
    """The beginning of an object of a job, with the job's labels.

    Args:
        api_version: of its kind.
        kind: its kind.
        job: the job.
        namespace: its namespace; empty: it is cluster-wide.
        name: its name; empty: the job's.
    """
    metadata: KubeObject = {"name": name or job.name, "labels": _labels(job)}
    if namespace:
        metadata["namespace"] = namespace
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _labels(job: TrainJob) -> dict[str, str]:
    return dict(job.labels) | {JOB: job.name}


def worker_selector(name: str) -> str:
    """The label selector of a job's worker pods."""
    return f"{JOB}={name},{ROLE}=worker"


def dump(job: TrainJob) -> str:
    """A job as the text of a job file, with sorted keys: the same job is the same text."""
    spec = msgspec.to_builtins(job.spec)
    data = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": job.name, "namespace": job.namespace, "labels": job.labels},
        "spec": {key: value for key, value in spec.items() if value is not None},
    }
    return msgspec.json.format(msgspec.json.encode(data, order="sorted"), indent=1).decode()


def owner_of(obj: Mapping[str, Any]) -> KubeObject:
    """An owner reference to an object that the server has created."""
    metadata = obj["metadata"]
    return {
        "apiVersion": obj.get("apiVersion", "v1"),
        "kind": obj.get("kind", "ConfigMap"),
        "name": metadata["name"],
        "uid": metadata["uid"],
    }


def to_yaml(found: list[KubeObject]) -> str:
    """Objects as a stream of YAML documents."""
    return yaml.safe_dump_all(found, sort_keys=False, width=120, explicit_start=True)


def path_of(obj: Mapping[str, Any], *, named: bool) -> str:
    """The path of an object, or of its collection."""
    version, kind, metadata = obj["apiVersion"], obj["kind"], obj["metadata"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    space = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
    plural = kind.lower() + "s"
    return f"{base}{space}/{plural}" + (f"/{metadata['name']}" if named else "")

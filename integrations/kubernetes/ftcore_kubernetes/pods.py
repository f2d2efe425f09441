"""The pods of a job: the user's template with what ftcore needs, and the master. Pure.

The template is kept as it is, also fields that this package does not know. Added are: the first container's command,
variables and mounts; labels, annotations, an owner; ``restartPolicy: Never``; the avoidance of excluded machines.
"""

import copy
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import attrs

from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.job_file import GangSpec, TrainJob
from ftcore_kubernetes.places import ATTEMPT, EFFECT, IDENTITY, JOB, PLACE, ROLE

CONFIG_DIR: Final = "/etc/ftcore/job"
TLS_DIR: Final = "/etc/ftcore/etcd"
STATE_DIR: Final = "/var/lib/ftcore"

JOB_KEY, POLICY_KEY = "job.json", "policy.yaml"
"""Keys of the config map: the job file, and its policy."""

GRACE_S: Final = 30
"""Kubernetes' own default of ``terminationGracePeriodSeconds``."""

LEAVE_LEAST_S: Final = 5
"""A shorter grace period leaves ``ftrun`` no time to sign off."""

ETCD_PORT: Final = 2379


@attrs.frozen(kw_only=True)
class PodIdentity:
    """Which pod is to be created.

    Args:
        effect: identity of its launch.
        place: its place, or that of the node it replaces; None: none of its own.
        attempt: how often in a row its place was filled.
    """

    effect: str
    place: int | None
    attempt: int = 0

    @property
    def digest(self) -> str:
        """The effect as a label."""
        return hashlib.sha256(self.effect.encode()).hexdigest()[:20]

    def name(self, job: str) -> str:
        """The pod's name, and its ftcore node's: the same for the same effect, so a second one is refused."""
        where = f"w{self.place}" if self.place is not None else "extra"
        return f"{job}-{where}" if self.effect.startswith("start/") else f"{job}-{where}-{self.digest[:8]}"


def worker_pod(
    job: TrainJob, pod: PodIdentity, *, owner: KubeObject | None = None, avoid: Collection[str] = ()
) -> KubeObject:
    """A worker pod.

    Args:
        job: the job.
        pod: which one.
        owner: its owner reference; None: none.
        avoid: machines on which it must not run.
    """
    found = copy.deepcopy(job.spec.template)
    name = pod.name(job.name)
    labels, annotations = _gang(job)
    metadata = {key: value for key, value in (found.get("metadata") or {}).items() if key in ("labels", "annotations")}
    metadata["name"] = name
    metadata["labels"] = (
        dict(job.labels)
        | (metadata.get("labels") or {})
        | labels
        | {
            JOB: job.name,
            ROLE: "worker",
            EFFECT: pod.digest,
            PLACE: str(pod.place) if pod.place is not None else "none",
        }
    )
    metadata["annotations"] = (
        (metadata.get("annotations") or {})
        | annotations
        | {
            IDENTITY: pod.effect,
            ATTEMPT: str(pod.attempt),
        }
    )
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    spec = found["spec"]
    spec["restartPolicy"] = "Never"
    container = spec["containers"][0]
    grace_s = int(spec.get("terminationGracePeriodSeconds") or GRACE_S)
    container["command"] = worker_command(job, name, pod.place, grace_s)
    _extend(container, spec, job)
    if avoid:
        spec["affinity"] = _avoiding(spec.get("affinity") or {}, sorted(avoid))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def worker_command(job: TrainJob, node: str, place: int | None, grace_s: int) -> list[str]:
    """The command line of a node; workers never lead."""
    flags = _common_flags(job)
    flags += ["--node-id", node, "--leadership", "never", "--nproc-per-node", str(job.spec.workers_per_pod)]
    if place is not None:
        flags += ["--node-rank", str(place)]
    if grace_s >= LEAVE_LEAST_S:
        flags += ["--leave-within", f"{grace_s}s"]
    return ["ftrun", *flags, *job.spec.ftrun, *job.spec.command]


def master_command(job: TrainJob, namespace: str) -> list[str]:
    """The command line of a candidate for the master role. With this ``--role``, its image needs no torch."""
    only = [
        "--role",
        "master",
        "--leadership",
        "only",
        "--platform",
        platform_url(job.name, namespace),
        "--nproc-per-node",
        "1",
    ]
    return ["ftrun", *_common_flags(job), *only, *job.spec.ftrun, *job.spec.command]


def platform_url(name: str, namespace: str) -> str:
    """The platform of a job: its config map."""
    return f"k8s:{namespace}/{name}"


def _common_flags(job: TrainJob) -> list[str]:
    flags = ["--job", job.name, "--store", store_url(job), "--nnodes", f"{job.spec.least}:{job.spec.most}"]
    return flags + (["--policy", f"{CONFIG_DIR}/{POLICY_KEY}"] if job.spec.policy else [])


def store_url(job: TrainJob) -> str:
    """The store of the job's log."""
    etcd = job.spec.store.etcd
    if etcd is None:
        return job.spec.store.url
    name = f"{job.name}-etcd"
    members = [f"{name}-{number}.{name}:{ETCD_PORT}" for number in range(etcd.replicas)]
    return f"etcd://{','.join(members)}/{job.name}"


def token_secret(job: TrainJob) -> str:
    """Name of the Secret with the job's token."""
    return job.spec.token_secret or f"{job.name}-token"


def tls_secret(job: TrainJob) -> str:
    """Name of the Secret with the certificates for the store; empty: no TLS."""
    own = f"{job.name}-etcd-tls" if job.spec.store.etcd is not None else ""
    return job.spec.store.tls_secret or own


def _extend(container: KubeObject, pod_spec: KubeObject, job: TrainJob) -> None:
    """Add what every process of the job needs; what the user has set stays."""
    env = [_secret_env("FTCORE_TOKEN", token_secret(job), "token")]
    if user := job.spec.store.user_secret:
        env += [_secret_env("FTCORE_ETCD_USER", user, "user"), _secret_env("FTCORE_ETCD_PASSWORD", user, "password")]
    volumes, mounts = [], []
    if tls := tls_secret(job):
        env.append({"name": "FTCORE_ETCD_CA", "value": f"{TLS_DIR}/ca.crt"})
        if job.spec.store.client_certificate:
            env.append({"name": "FTCORE_ETCD_CERT", "value": f"{TLS_DIR}/tls.crt"})
            env.append({"name": "FTCORE_ETCD_KEY", "value": f"{TLS_DIR}/tls.key"})
        volumes.append({"name": "ftcore-etcd-tls", "secret": {"secretName": tls}})
        mounts.append({"name": "ftcore-etcd-tls", "mountPath": TLS_DIR, "readOnly": True})
    if job.spec.policy:
        items = [{"key": POLICY_KEY, "path": POLICY_KEY}]
        volumes.append({"name": "ftcore-job", "configMap": {"name": job.name, "items": items}})
        mounts.append({"name": "ftcore-job", "mountPath": CONFIG_DIR, "readOnly": True})
    _append(container, "env", env)
    _append(container, "volumeMounts", mounts)
    _append(pod_spec, "volumes", volumes)


def _append(holder: KubeObject, key: str, added: Sequence[KubeObject]) -> None:
    present = list(holder.get(key) or [])
    names = {each.get("name") for each in present}
    whole = present + [each for each in added if each["name"] not in names]
    if whole:
        holder[key] = whole


def _secret_env(name: str, secret: str, key: str) -> KubeObject:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def _avoiding(affinity: KubeObject, machines: Sequence[str]) -> KubeObject:
    """An affinity that also avoids these machines: terms are alternatives, so each of them gets the requirement."""
    avoided = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in machines]
    node = affinity.get("nodeAffinity") or {}
    key = "requiredDuringSchedulingIgnoredDuringExecution"
    terms = (node.get(key) or {}).get("nodeSelectorTerms") or [{}]
    terms = [term | {"matchFields": [*(term.get("matchFields") or ()), *avoided]} for term in terms]
    return affinity | {"nodeAffinity": node | {key: {"nodeSelectorTerms": terms}}}


def _gang(job: TrainJob) -> tuple[dict[str, str], dict[str, str]]:
    """Labels and annotations for a gang scheduler."""
    gang: GangSpec | None = job.spec.gang
    if gang is None:
        return {}, {}
    group = gang.group or job.name
    if gang.scheduler == "coscheduling":
        return {"scheduling.x-k8s.io/pod-group": group}, {}
    if gang.scheduler == "kueue":
        labels = {"kueue.x-k8s.io/pod-group-name": group}
        labels |= {"kueue.x-k8s.io/queue-name": gang.queue} if gang.queue else {}
        return labels, {"kueue.x-k8s.io/pod-group-total-count": str(job.spec.replicas)}
    queue = {"scheduling.volcano.sh/queue-name": gang.queue} if gang.queue else {}
    return {}, {"scheduling.k8s.io/group-name": group} | queue


def master_template(job: TrainJob, namespace: str) -> KubeObject:
    """The pod template of the master.

    Args:
        job: the job.
        namespace: its namespace.
    """
    master, workers = job.spec.master, job.spec.template["spec"]
    image = master.image or workers["containers"][0]["image"]
    own = {"XDG_STATE_HOME": STATE_DIR, "FTCORE_STORE": store_url(job), "FTCORE_JOB": job.name}  # for ftctl in the pod
    env: list[KubeObject] = [{"name": key, "value": value} for key, value in own.items()]
    container: KubeObject = {
        "name": "master",
        "image": image,
        "command": ["ftctl", "k8s", "master", f"{namespace}/{job.name}"],
        "env": env,
        "volumeMounts": [{"name": "ftcore-state", "mountPath": STATE_DIR}],
        "resources": master.resources or {"requests": {"cpu": "200m", "memory": "256Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec: KubeObject = {
        "serviceAccountName": job.name,
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "ftcore-state", "emptyDir": {}}],
        "terminationGracePeriodSeconds": 10,
    }
    _extend(container, spec, job)
    chosen: Mapping[str, Any] = {
        "priorityClassName": master.priority_class_name or workers.get("priorityClassName"),
        "nodeSelector": master.node_selector,
        "tolerations": master.tolerations,
        "imagePullSecrets": workers.get("imagePullSecrets"),
    }
    spec |= {key: value for key, value in chosen.items() if value}
    return {"metadata": {"labels": dict(job.labels) | {JOB: job.name, ROLE: "master"}}, "spec": spec}

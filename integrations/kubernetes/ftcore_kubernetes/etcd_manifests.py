"""The job's own etcd: a headless Service and a StatefulSet with TLS for clients and peers. Pure.

Three members on different machines, as far as there are some; a PodDisruptionBudget keeps a majority. The volumes
outlive the pods, and the job: ``kubectl delete pvc -l app=NAME-etcd`` removes them. Sources: etcd's "Operations guide"
and "Transport security model".
"""

from typing import Any, Final

from ftcore_kubernetes.api import KubeObject
from ftcore_kubernetes.job_file import EtcdSpec, TrainJob
from ftcore_kubernetes.pods import ETCD_PORT, tls_secret

PEER_PORT: Final = 2380
METRICS_PORT: Final = 2381
_TLS: Final = "/etc/etcd/tls"


def etcd_objects(job: TrainJob) -> list[KubeObject]:
    """The objects of the job's own etcd, without namespace and labels."""
    etcd = job.spec.store.etcd
    if etcd is None:
        return []
    name = f"{job.name}-etcd"
    labels = {"app": name}
    ports = [{"name": "client", "port": ETCD_PORT}, {"name": "peer", "port": PEER_PORT}]
    service: KubeObject = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": labels, "ports": ports},
    }
    budget: KubeObject = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": etcd.storage}},
    } | ({"storageClassName": etcd.storage_class_name} if etcd.storage_class_name else {})
    members: KubeObject = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": etcd.replicas,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": _member_spec(job, etcd, name)},
            "volumeClaimTemplates": [{"metadata": {"name": "data", "labels": labels}, "spec": claim}],
        },
    }
    return [service, budget, members]


def etcd_flags(name: str, member: str, replicas: int, tls: str = _TLS, data: str = "/data/etcd") -> list[str]:
    """The command line of a member, without the program.

    Args:
        name: of the StatefulSet and its Service.
        member: name of the member: its pod's.
        replicas: number of members.
        tls: directory with ``ca.crt``, ``tls.crt`` and ``tls.key``.
        data: directory of its data.
    """
    cluster = ",".join(f"{name}-{each}=https://{name}-{each}.{name}:{PEER_PORT}" for each in range(replicas))
    pair = [f"-file={tls}/tls.crt", f"-file={tls}/tls.key", f"-ca-file={tls}/ca.crt"]
    client = [f"--cert{pair[0]}", f"--key{pair[1]}", f"--trusted{pair[2]}", "--client-cert-auth"]
    peer = [f"--peer-cert{pair[0]}", f"--peer-key{pair[1]}", f"--peer-trusted{pair[2]}", "--peer-client-cert-auth"]
    return [
        f"--name={member}",
        f"--data-dir={data}",
        f"--listen-client-urls=https://0.0.0.0:{ETCD_PORT}",
        f"--advertise-client-urls=https://{member}.{name}:{ETCD_PORT}",
        f"--listen-peer-urls=https://0.0.0.0:{PEER_PORT}",
        f"--initial-advertise-peer-urls=https://{member}.{name}:{PEER_PORT}",
        f"--initial-cluster={cluster}",
        f"--initial-cluster-token={name}",
        f"--listen-metrics-urls=http://0.0.0.0:{METRICS_PORT}",
        "--auto-compaction-retention=5m",
        "--quota-backend-bytes=2147483648",
        *client,
        *peer,
    ]


def _member_spec(job: TrainJob, etcd: EtcdSpec, name: str) -> KubeObject:
    """The pod of a member; ``$(POD)`` is its name, which kubelets put in."""
    spread = {"labelSelector": {"matchLabels": {"app": name}}, "topologyKey": "kubernetes.io/hostname"}
    probe = {"path": "/health?serializable=true", "port": METRICS_PORT}
    return {
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "fsGroup": 65532},
        "affinity": {
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": spread}]
            }
        },
        "containers": [
            {
                "name": "etcd",
                "image": etcd.image,
                "command": ["etcd", *etcd_flags(name, "$(POD)", etcd.replicas)],
                "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                "ports": [{"containerPort": ETCD_PORT}, {"containerPort": PEER_PORT}],
                "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}},
                "readinessProbe": {"httpGet": {"path": "/health", "port": METRICS_PORT}, "periodSeconds": 5},
                "livenessProbe": {"httpGet": probe, "periodSeconds": 10, "failureThreshold": 6},
                "volumeMounts": [
                    {"name": "data", "mountPath": "/data"},
                    {"name": "tls", "mountPath": _TLS, "readOnly": True},
                ],
            }
        ],
        "volumes": [{"name": "tls", "secret": {"secretName": tls_secret(job)}}],
    }

"""The job file: an ``ElasticTrainJob``, for the operator's resource and for ``ftctl k8s render|submit`` alike.

One definition: the custom resource's schema is made from these classes (``schema.py``).
"""

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
import yaml
from msgspec import Meta

from ftcore.errors import UsageError

GROUP: Final = "ftcore.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "ElasticTrainJob"
PLURAL: Final = "elastictrainjobs"
API_VERSION: Final = f"{GROUP}/{VERSION}"

NAME_LENGTH: Final = 40
"""Longest name of a job: names of pods are longer, and a label has 63 characters."""

RESERVED: Final = (
    "--job",
    "--rdzv-id",
    "--store",
    "--rdzv-endpoint",
    "--policy",
    "--platform",
    "--nnodes",
    "--nproc-per-node",
    "--node-rank",
    "--node-id",
    "--leadership",
    "--leave-within",
    "--local-nodes",
    "--standalone",
    "--role",
)
"""Flags of ``ftrun`` that the job file sets by other keys."""

Positive: TypeAlias = Annotated[int, Meta(ge=1)]


class EtcdSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The job's own etcd: a StatefulSet with TLS.

    Args:
        image: its image.
        replicas: number of members.
        storage: size of each member's volume.
        storage_class_name: class of the volumes; empty: the cluster's default.
    """

    image: str = "quay.io/coreos/etcd:v3.6.14"
    replicas: Literal[1, 3, 5] = 3
    storage: str = "4Gi"
    storage_class_name: str = ""


class StoreSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Where the job's log is; exactly one of ``url`` and ``etcd``.

    Args:
        url: of an existing store, as ``etcd://e1:2379,e2:2379/team``.
        user_secret: Secret with ``user`` and ``password`` for it; empty: none.
        tls_secret: Secret with ``ca.crt`` for it, and ``tls.crt`` and ``tls.key`` if ``client_certificate``; empty: no
            TLS; for the job's own etcd: NAME-etcd-tls, which ``ftctl k8s secrets`` makes.
        client_certificate: whether its server asks for a certificate.
        etcd: the job's own etcd.
    """

    url: str = ""
    user_secret: str = ""
    tls_secret: str = ""
    client_certificate: bool = True
    etcd: EtcdSpec | None = None


class MasterSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """The master's pod.

    Args:
        image: an image with ftcore and ftcore-kubernetes, torch is not needed; empty: the image of the workers.
        resources: of its container.
        node_selector, tolerations: of its pod.
        priority_class_name: its priority; empty: that of the workers.
    """

    image: str = ""
    resources: dict[str, Any] = {}
    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, Any]] = []
    priority_class_name: str = ""


class GangSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Labels and annotations by which a gang scheduler knows that the workers belong together.

    Args:
        scheduler: which one.
        group: name of its pod group; empty: the job's name. For volcano and coscheduling, create the group yourself.
        queue: its queue; empty: its default.
    """

    scheduler: Literal["volcano", "kueue", "coscheduling"]
    group: str = ""
    queue: str = ""


class JobFileSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A job.

    Args:
        command: the script and its arguments, as after ``ftrun``.
        ftrun: further flags of ``ftrun``, as ``--checkpoints=/data``.
        replicas: number of worker pods.
        min_replicas: smallest number with which to train; default: ``replicas``.
        max_replicas: largest number; default: ``replicas``.
        workers_per_pod: ``--nproc-per-node``: a number, ``gpu``, ``cpu`` or ``auto``.
        template: pod template of the workers. Its first container trains: its command is set, and must not be given.
        policy: the text of a policy file; empty: the default chain.
        store: where the log is.
        master: the master's pod.
        token_secret: Secret whose key ``token`` protects the job; empty: NAME-token, which ``ftctl k8s secrets`` makes.
        quarantine: what becomes of a machine that the job excludes: its pods ``avoid`` it; it is also cordoned
            (``cordon``) or tainted (``taint``), which needs rights on nodes.
        watch_nodes: also report conditions of machines, which needs the right to list nodes.
        gang: for a gang scheduler.
    """

    command: Annotated[list[str], Meta(min_length=1)]
    template: dict[str, Any]
    store: StoreSpec
    replicas: Positive = 1
    min_replicas: Positive | None = None
    max_replicas: Positive | None = None
    workers_per_pod: int | str = "auto"
    ftrun: list[str] = []
    policy: str = ""
    master: MasterSpec = MasterSpec()
    token_secret: str = ""
    quarantine: Literal["avoid", "cordon", "taint"] = "avoid"
    watch_nodes: bool = False
    gang: GangSpec | None = None

    @property
    def least(self) -> int:
        """Smallest number of pods that train."""
        return self.min_replicas or min(self.replicas, self.most)

    @property
    def most(self) -> int:
        """Largest number of pods that train."""
        return self.max_replicas or max(self.replicas, self.min_replicas or 1)


class TrainJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job.

    Args:
        name: of the job, its log and its objects.
        namespace: of its objects; empty: the namespace of the kubeconfig or service account.
        labels: of its objects.
        spec: its specification.
    """

    name: str
    spec: JobFileSpec
    namespace: str = ""
    labels: dict[str, str] = {}


def read(path: Path) -> TrainJob:
    """Read a job file.

    Raises:
        UsageError: it is wrong; says file, line, key, what was found and what is expected.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    return parse(text, str(path))


def parse(text: str, source: str) -> TrainJob:
    """Read the text of a job file.

    Args:
        text: YAML or JSON.
        source: its name in messages.

    Raises:
        UsageError: as ``read``.
    """
    try:
        data = yaml.safe_load(text)
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: this is no YAML: {error}") from error
    if not isinstance(data, dict) or (data.get("apiVersion"), data.get("kind")) != (API_VERSION, KIND):
        raise UsageError(f"{source}:1: expected `apiVersion: {API_VERSION}` and `kind: {KIND}`")
    try:
        return of_object(data)
    except UsageError as error:
        key, _, problem = str(error).partition(": ")
        raise UsageError(f"{source}:{_line(tree, key)}: {key}: {problem}") from error


def of_object(data: dict[str, Any]) -> TrainJob:
    """Read a job from an object.

    Args:
        data: an ``ElasticTrainJob``.

    Raises:
        UsageError: it is wrong; begins with the key.
    """
    metadata = data.get("metadata") or {}
    name = str(metadata.get("name") or "")
    if not re.fullmatch(rf"[a-z]([-a-z0-9]{{0,{NAME_LENGTH - 2}}}[a-z0-9])?", name):
        raise UsageError(
            f"metadata.name: found {name!r}; expected a to z, 0 to 9 and -, beginning with a letter, at most "
            f"{NAME_LENGTH} characters"
        )
    try:
        spec = msgspec.convert(data.get("spec"), JobFileSpec)
    except msgspec.ValidationError as error:
        problem, _, where = str(error).partition(" - at `$")
        key = f"spec{where.rstrip('`')}"
        if unknown := re.search(r"unknown field `(\w+)`", problem):
            key = f"{key}.{unknown[1]}"
        raise UsageError(f"{key}: {problem[:1].lower()}{problem[1:]}") from error
    _check(spec)
    labels = {str(key): str(value) for key, value in (metadata.get("labels") or {}).items()}
    return TrainJob(name=name, namespace=str(metadata.get("namespace") or ""), labels=labels, spec=spec)


def _check(spec: JobFileSpec) -> None:
    """What the schema cannot say."""
    if bool(spec.store.url) == (spec.store.etcd is not None):
        raise UsageError("spec.store: expected exactly one of `url` (an existing store) and `etcd` (one for this job)")
    if spec.store.url and not spec.store.url.startswith(("etcd://", "sqlite://")):
        raise UsageError(f"spec.store.url: found {spec.store.url!r}; expected etcd://HOST:PORT,HOST:PORT/PREFIX")
    if not spec.least <= spec.replicas <= spec.most:
        raise UsageError(
            f"spec.replicas: found {spec.replicas}; expected from minReplicas {spec.least} to maxReplicas {spec.most}"
        )
    for number, flag in enumerate(spec.ftrun):
        if flag.partition("=")[0].replace("_", "-") in RESERVED:
            raise UsageError(f"spec.ftrun[{number}]: {flag} is set by other keys of this file, or by the platform")
    containers = (spec.template.get("spec") or {}).get("containers") or []
    if not containers or not isinstance(containers[0], dict) or not {"name", "image"} <= containers[0].keys():
        raise UsageError("spec.template.spec.containers: expected a container with `name` and `image`")
    for key in ("command", "args"):
        if key in containers[0]:
            raise UsageError(f"spec.template.spec.containers[0].{key}: give the script in spec.command; it runs ftrun")
    if (spec.template.get("spec") or {}).get("restartPolicy", "Never") != "Never":
        raise UsageError("spec.template.spec.restartPolicy: expected Never: the master replaces pods")


def _line(tree: Any, key: str) -> int:
    """The line of a key, or of the nearest one above it that is there."""
    line, node = 1, tree
    for step in re.findall(r"[^.\[\]]+", key):
        if isinstance(node, yaml.MappingNode):
            found = next(((name, value) for name, value in node.value if name.value == step), None)
            if found is None:
                return line
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and step.isdigit() and int(step) < len(node.value):
            node = node.value[int(step)]
            line = node.start_mark.line + 1
    return line

"""Starts a job in a Ray cluster, and waits for its end."""

import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from ftcore.errors import Refused, UsageError
from ftcore.logs import check_job_name
from ftcore_ray.adapter import RayUrl
from ftcore_ray.node import NAMESPACE


@attrs.frozen(kw_only=True)
class RayJob:
    """A job, and how its nodes run.

    Args:
        job: its name.
        store: URL of the store of its log; ``etcd://`` for nodes on several machines.
        argv: the script and its arguments.
        nodes: number of nodes, an actor each.
        nproc: workers of each node.
        cpus, gpus: what a node's actor takes of its machine.
        flags: further flags of ``ftrun``, as ``("--policy", "policy.yaml")``.
        env: variables of all processes.
        cwd: directory in which they run, on every machine.
    """

    job: str
    store: str
    argv: tuple[str, ...]
    nodes: int = 1
    nproc: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = attrs.field(factory=dict)
    cwd: str = attrs.field(factory=lambda: str(Path.cwd()))

    def command(self, url: RayUrl) -> tuple[str, ...]:
        """The command line of a node, without the flags that differ between nodes."""
        own = ("--nnodes", str(self.nodes), "--nproc-per-node", str(self.nproc), "--job", self.job)
        places = ("--store", self.store, "--platform", str(url))
        return (str(Path(sys.executable).with_name("ftrun")), *own, *places, *self.flags, *self.argv)


def start(job: RayJob) -> tuple[Any, RayUrl]:
    """Start a job in the cluster to which this process is connected (``ray.init``).

    Returns:
        The handle of its controller, and the URL of its platform.

    Raises:
        UsageError: the job cannot be started so.
        Refused: the cluster has too few resources.
    """
    import ray

    from ftcore_ray.controller import JobController

    check_job_name(job.job)
    if job.nodes < 1 or job.nproc < 1 or not job.argv:
        raise UsageError(f"job {job.job}: expected at least one node, one worker and a script")
    if not ray.is_initialized():
        raise UsageError("this process is not connected to a Ray cluster: call ray.init first")
    url = RayUrl(f"{job.job}-{uuid.uuid4().hex[:6]}", ray.get_runtime_context().gcs_address, NAMESPACE)
    arguments = (url.controller, job.job, job.store, job.command(url), dict(job.env), job.cwd, job.cpus, job.gpus)
    options: dict[str, Any] = {"name": url.controller, "namespace": NAMESPACE, "lifetime": "detached", "num_cpus": 0}
    controller: Any = ray.remote(JobController).options(**options, max_concurrency=1000).remote(*arguments)
    refused = ray.get(controller.begin.remote(range(job.nodes)))
    if refused:
        ray.kill(controller)
        raise Refused(f"job {job.job}: {refused}")
    return controller, url


def wait(controller: Any) -> int:
    """Wait for the end of a job; returns its exit code. Ends the controller."""
    import ray

    try:
        code: int = ray.get(controller.over.remote())
        return code
    finally:
        ray.get(controller.close.remote())
        ray.kill(controller)


def launch(job: RayJob) -> int:
    """Run a job in the cluster to which this process is connected, and return its exit code; see ``start``."""
    controller, _ = start(job)
    return wait(controller)

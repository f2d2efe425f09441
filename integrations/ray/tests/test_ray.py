"""Jobs in a real Ray on this machine: actors are the nodes, and a killed one is replaced.

Skipped without ray, which is large; with FTCORE_REQUIRE_RAY=1 that is an error. ``make long`` installs it.
"""

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from first_event import first_event

import ftcore
from ftcore.errors import Refused, UsageError

if not os.environ.get("FTCORE_REQUIRE_RAY"):
    pytest.importorskip("ray")
    if not any(entry.name == "ray" for entry in entry_points(group="ftcore.platforms")):
        pytest.skip("ftcore-ray is not installed: pip install -e integrations/ray", allow_module_level=True)

import ray
from ftcore_ray import RayJob, launch, start, wait
from ftcore_ray import controller as controller_module
from ftcore_ray.adapter import RayUrl, parse
from ftcore_ray.controller import ControlledNode, JobController
from ftcore_ray.node import NAMESPACE, NodeProcess, node_env

pytestmark = [pytest.mark.long, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]

COUNTS = """
import os, time
from pathlib import Path
from ftcore import worker
saved = Path(f"step{os.environ['RANK']}")
step = int(saved.read_text()) if saved.exists() else 0
while not (step >= 20 and Path("finish").exists()):
    step += 1
    worker.report(step)
    saved.with_suffix(".draft").write_text(str(step))
    saved.with_suffix(".draft").replace(saved)
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


def job(root: Path, script: str, **fields: Any) -> RayJob:
    (root / "script.py").write_text(script)
    env = {"XDG_STATE_HOME": str(root / "state")}
    given: dict[str, Any] = {"nodes": 2, "flags": ("--no-preload",), "argv": ("script.py",), **fields}
    return RayJob(job="job", store=f"sqlite://{root}/log", env=env, cwd=str(root), **given)


def event(root: Path, kind: str, after: int = 0) -> ftcore.Event:
    return asyncio.run(first_event(f"sqlite://{root}/log", "job", kind, after))


def actors() -> list[str]:
    return [each["name"] for each in ray.util.list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE]


@pytest.mark.parametrize("place", [0, 1], ids=["leads", "follows"])
def test_a_new_actor_takes_the_place_of_a_killed_one(cluster: None, tmp_path: Path, place: int) -> None:
    """The controller sees its end, ``pod_replacement`` asks for another, and the job resumes and succeeds."""
    controller, url = start(job(tmp_path, COUNTS))
    assert parse(str(url)) == url
    event(tmp_path, "round.started")
    stepped = event(tmp_path, "workers.stepped")
    [killed] = [name for name in ray.get(controller.nodes.remote()) if f"-{place}-" in name]
    ray.kill(ray.get_actor(killed, namespace=NAMESPACE))
    lost = event(tmp_path, "node.lost")
    assert lost.data.node == killed
    resolved = event(tmp_path, "incident.resolved", after=stepped.seq)
    assert resolved.data.policy == "pod_replacement"
    replacements = [name for name in ray.get(controller.nodes.remote()) if f"-{place}-" in name]
    assert len(replacements) == 1
    assert replacements != [killed]
    (tmp_path / "finish").touch()
    assert wait(controller) == 0
    world = event(tmp_path, "world.formed", after=lost.seq).data
    assert (world.size, world.size_before) == (2, 2)
    assert [name for name in actors() if name.startswith(url.controller)] == []


def test_a_job_that_fails_ends_with_its_exit_code(cluster: None, tmp_path: Path) -> None:
    """A script that always fails ends the job, with code 1 as under torchrun; no actor is left."""
    assert launch(job(tmp_path, "raise SystemExit(3)\n", nodes=1)) == 1
    assert actors() == []


def test_a_job_for_which_the_cluster_has_no_room_is_refused(cluster: None, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="room for 3 more nodes with 1 CPUs, 0 GPUs"):
        start(job(tmp_path, COUNTS, nodes=4))
    with pytest.raises(UsageError, match="at least one node"):
        start(job(tmp_path, COUNTS, nodes=0))
    assert actors() == []


def test_what_other_work_has_reserved_is_no_room(cluster: None, tmp_path: Path) -> None:
    """The cluster has three CPUs, of which another actor has two."""
    other = ray.remote(NodeProcess).options(num_cpus=2).remote((), {}, ".")
    try:
        ray.get(other.stop.remote(0.0))  # answers once it has its CPUs
        while ray.available_resources().get("CPU", 0.0) > 1:  # Ray reports it a little later
            time.sleep(0.05)
        with pytest.raises(Refused, match="room for 1 more nodes with 1 CPUs, 0 GPUs"):
            start(job(tmp_path, COUNTS))
    finally:
        ray.kill(other)
        while ray.available_resources().get("CPU", 0.0) < 3:
            time.sleep(0.05)


def test_the_exit_code_is_the_jobs_and_not_that_of_the_node_started_last(cluster: None, tmp_path: Path) -> None:
    """The ``ftrun`` of the node that was started last is killed; the job shrinks, goes on and succeeds."""
    (tmp_path / "policy.yaml").write_text("version: 1\nchain: [{shrink: {min_nodes: 1}}, stop]\n")
    flags = ("--no-preload", "--nnodes", "1:2", "--policy", "policy.yaml")
    controller, _ = start(job(tmp_path, COUNTS, flags=flags))
    stepped = event(tmp_path, "workers.stepped")
    [pid] = [pid for name, pid in ray.get(controller.nodes.remote()).items() if "-1-" in name]
    os.kill(pid, signal.SIGKILL)
    resolved = event(tmp_path, "incident.resolved", after=stepped.seq)
    assert resolved.data.policy == "shrink"
    (tmp_path / "finish").touch()
    assert wait(controller) == 0


def controller_of(root: Path, *nodes: ControlledNode) -> JobController:
    """A controller, in this process, of nodes that have ended."""
    made = JobController("name", "job", f"sqlite://{root}/log", ("ftrun",), {}, str(root), 1.0, 0.0)
    made._nodes = {node.name: node for node in nodes}
    return made


def ended(ordinal: int, code: int | None) -> ControlledNode:
    return ControlledNode(f"node-{ordinal}", ordinal, "host", None, ended="ended", code=code)


def test_the_exit_codes_of_jobs_whose_nodes_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log has none: the highest at once if no ``ftrun`` has joined the job; 1 a while after all have died."""
    assert asyncio.run(controller_of(tmp_path, ended(0, 2), ended(1, 0)).over()) == 2
    monkeypatch.setattr(controller_module, "ALL_DIED_S", 0.2)
    assert asyncio.run(controller_of(tmp_path, ended(0, None)).over()) == 1


def test_a_wrong_url_is_refused() -> None:
    url = RayUrl("llm-1", "10.0.0.1:6379", "ftcore")
    assert parse(str(url)) == url
    for wrong in ("ray:", "ray:llm", "ray:llm?address=10.0.0.1:6379", f"{url}&cpus=2"):
        with pytest.raises(UsageError, match="expected ray:CONTROLLER"):
            parse(wrong)


def test_a_node_inherits_what_is_not_of_the_actor() -> None:
    base = {"RAY_JOB_ID": "1", "RAY_AUTH_MODE": "token", "HOME": "/root"}
    assert node_env({"A": "1"}, base) == {"RAY_AUTH_MODE": "token", "HOME": "/root", "A": "1"}

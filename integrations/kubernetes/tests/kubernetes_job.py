"""A job on the test server: real masters, agents and training processes, with a real etcd."""

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from apiserver.server import ApiServer
from ftcore_kubernetes.api import Api
from ftcore_kubernetes.config import ApiConfig
from ftcore_kubernetes.job_file import API_VERSION, parse
from ftcore_kubernetes.submit import delete, submit

SPACE = "train"
SCRIPTS = Path(__file__).parents[3] / "tests" / "chaos" / "ftrun" / "jobs"
PATIENCE_S = 90.0


_CLIENTS: list[Any] = []
"""Clients to close when the server ends, also if a test fails: what is left open would fail the test's repeat."""


class SubmittedJob:
    """A job on a server, and what its processes do.

    Args:
        server: the server; its containers are processes.
        store: URL of etcd.
        place: the script's working directory.
        name: the job's name.
        spec: keys of the job file that differ from the default.
    """

    def __init__(self, server: ApiServer, store: str, place: Path, name: str = "llm", **spec: Any) -> None:
        self.server, self.store, self.place, self.name = server, store, place, name
        container = {"name": "train", "image": "train:1", "workingDir": str(place)}
        self.file: dict[str, Any] = {
            "apiVersion": API_VERSION,
            "kind": "ElasticTrainJob",
            "metadata": {"name": name, "namespace": SPACE},
            "spec": {
                "command": [str(SCRIPTS / "count.py")],
                "workersPerPod": 1,
                "ftrun": ["--preload", "json"],
                "store": {"url": store},
                "template": {"spec": {"terminationGracePeriodSeconds": 8, "containers": [container]}},
            }
            | spec,
        }
        self.api = Api(ApiConfig(url=server.url, namespace=SPACE, token=server.access.admin_token))
        _CLIENTS.append(self.api)

    @property
    def text(self) -> str:
        return yaml.safe_dump(self.file)

    async def submit(self) -> list[str]:
        return await submit(self.api, parse(self.text, "job.yaml"), SPACE)

    async def delete(self) -> None:
        await delete(self.api, self.name, SPACE)

    def pods(self, role: str = "worker") -> list[dict[str, Any]]:
        found = [each.object for each in self.server.store.all(self.server.resource("pods"), SPACE)]
        return [pod for pod in found if pod["metadata"].get("labels", {}).get("ftcore.dev/role") == role]

    def running(self, role: str = "worker") -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self.pods(role)
            if pod["status"]["phase"] == "Running" and not pod["metadata"].get("deletionTimestamp")
        ]

    def steps(self) -> dict[int, int]:
        return {int(path.suffix[1:]): int(path.read_text()) for path in self.place.glob("step.*")}

    async def trains(self, ranks: int, by: int = 3) -> None:
        """Wait until each rank has made some more steps."""
        aims = {rank: self.steps().get(rank, 0) + by for rank in range(ranks)}
        await self.until(lambda: all(self.steps().get(rank, 0) >= aim for rank, aim in aims.items()), "steps")

    async def can_save(self, nodes: int) -> None:
        """Wait until the log knows that the script saves on request on each node; steps alone come before that."""
        async with asyncio.timeout(PATIENCE_S):
            while sum("checkpoint" in each["abilities"] for each in await self.events("workers.stepped")) < nodes:
                await asyncio.sleep(0.05)

    async def until(self, condition: Callable[[], object], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"timed out waiting for {what}\n{self.output()}") from None

    def output(self) -> str:
        """What the pods printed, for the messages of tests that fail."""
        found = []
        for pod in [*self.pods("master"), *self.pods()]:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            container = pod["spec"]["containers"][0]["name"]
            log = self.server.kubelets.runtime.log(uid, container, False)
            text = log.read_text()[-1500:] if log is not None and log.exists() else ""
            found.append(f"--- {name} {json.dumps(pod['status'].get('phase'))}\n{text}")
        return "\n".join(found)

    async def ftctl(self, *argv: str) -> str:
        command = [sys.executable, "-m", "ftcore.cli.ftctl", "--store", self.store, *argv, "--job", self.name]
        secret = self.server.get("secrets", SPACE, f"{self.name}-token") or {}
        env = os.environ | {"FTCORE_TOKEN": base64.b64decode(secret["data"]["token"]).decode()}
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    async def k8s(self, command: str, what: object) -> str:
        """Run ``ftctl k8s`` with the kubeconfig beside the script."""
        argv = [sys.executable, "-m", "ftcore.cli.ftctl", "k8s", command, str(what)]
        env = os.environ | {"KUBECONFIG": str(self.place / "config")}
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, env=env)
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    async def events(self, kind: str) -> list[Mapping[str, Any]]:
        lines = (await self.ftctl("events", "--format", "json")).splitlines()
        return [event["data"] for event in map(json.loads, lines) if event["type"] == kind]

    def finish(self) -> None:
        (self.place / "finish").touch()


@contextlib.asynccontextmanager
async def cluster(root: Path, **options: Any) -> AsyncIterator[ApiServer]:
    """A server that runs containers as processes, and checks rights."""
    given = {"mode": "processes", "auth": True, "nodes": 3, "backoff_s": 0.2, "root": root / "cluster"}
    async with ApiServer(namespaces=[SPACE], **given | options) as server:
        try:
            yield server
        finally:
            while _CLIENTS:
                await _CLIENTS.pop().close()

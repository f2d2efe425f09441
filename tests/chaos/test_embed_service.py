"""Masters embedded in a service: several jobs in one process, and another service that takes over."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from first_event import first_event

import ftcore

SERVICE = Path(__file__).parents[2] / "examples" / "embed" / "service.py"
SCRIPT = """
import os, sys, time
from pathlib import Path
from ftcore import worker
step = 0
while not Path("finish").exists():
    step += 1
    worker.report(step)
    time.sleep(0.01)
"""


class Services:
    """Services and jobs on one store."""

    def __init__(self, root: Path) -> None:
        self.root, self.store = root, f"sqlite://{root}/log"
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FTCORE_")}
        self.env |= {"FTCORE_TOKEN": "a secret that only this test knows", "XDG_STATE_HOME": str(root / "state")}
        self.processes: list[subprocess.Popen[str]] = []
        (root / "script.py").write_text(SCRIPT)

    def start(self, *argv: str) -> "subprocess.Popen[str]":
        command = [sys.executable, *argv]
        process = subprocess.Popen(command, cwd=self.root, env=self.env, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def service(self, *flags: str) -> "tuple[subprocess.Popen[str], int]":
        process = self.start(str(SERVICE), "--store", self.store, *flags)
        assert process.stdout is not None
        found = re.fullmatch(r"serving on port (\d+)\n", process.stdout.readline())
        assert found is not None
        return process, int(found[1])

    def node(self, job: str) -> "subprocess.Popen[str]":
        flags = ("--leadership", "never", "--store", self.store, "--job", job, "--no-preload", "--max-restarts", "9")
        return self.start("-m", "ftcore.cli.ftrun", *flags, "script.py")

    def wait(self, job: str, kind: str, after: int = 0) -> ftcore.Event:
        """Wait for the first event of a type after a place in a job's log."""
        return asyncio.run(first_event(self.store, job, kind, after))


def ask(port: int, method: str, path: str) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def health_until(port: int, field: str, value: object, *jobs: str) -> None:
    """Ask for the health until these jobs show it; it has no events."""
    while True:
        shown = ask(port, "GET", "/health")[1]["jobs"]
        if all(name in shown and shown[name][field] == value for name in jobs):
            return
        time.sleep(0.05)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Services]:
    services = Services(tmp_path)
    yield services
    (tmp_path / "finish").touch()
    for process in services.processes:
        process.kill()
        process.communicate()


def test_another_service_takes_over_every_job_of_a_dead_one(made: Services) -> None:
    """Two jobs, one process of masters: it is killed, the standby leads both, and restarts a worker that fails then."""
    first, port = made.service()
    assert [ask(port, "POST", f"/jobs/{name}")[0] for name in ("left", "right", "left")] == [201, 201, 200]
    nodes = [made.node(name) for name in ("left", "right")]
    for name in ("left", "right"):
        made.wait(name, "workers.stepped")
    second, other = made.service("--adopt")
    health_until(other, "leading", False, "left", "right")
    first.send_signal(signal.SIGKILL)
    elected = made.wait("left", "master.elected", after=made.wait("left", "workers.stepped").seq)
    assert elected.data.pid == second.pid
    health_until(other, "leading", True, "left", "right")
    started = made.wait("left", "workers.started")
    os.kill(started.data.pids[0], signal.SIGKILL)
    made.wait("left", "workers.stepped", after=made.wait("left", "worker.failed").seq)
    (made.root / "finish").touch()
    assert [node.wait(60) for node in nodes] == [0, 0]
    health_until(other, "done", True, "left", "right")
    assert {job["phase"] for job in ask(other, "GET", "/health")[1]["jobs"].values()} == {"succeeded"}


def test_a_service_that_is_asked_to_end_hands_its_jobs_over(made: Services) -> None:
    """It resigns; a job that it serves no longer is served again on request; ended jobs are not adopted."""
    first, port = made.service()
    assert ask(port, "POST", "/jobs/job")[0] == 201
    node = made.node("job")
    made.wait("job", "workers.stepped")
    assert ask(port, "DELETE", "/jobs/job")[0] == 200
    assert ask(port, "DELETE", "/jobs/job")[0] == 404
    assert ask(port, "GET", "/health") == (200, {"jobs": {}})
    assert ask(port, "POST", "/jobs/job")[0] == 201
    health_until(port, "leading", True, "job")
    _, other = made.service("--adopt")
    health_until(other, "leading", False, "job")
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    health_until(other, "leading", True, "job")
    (made.root / "finish").touch()
    assert node.wait(60) == 0
    health_until(other, "done", True, "job")
    ended = made.wait("job", "job.finished").seq
    _, third = made.service("--adopt")
    assert ask(other, "POST", "/jobs/next")[0] == 201
    health_until(third, "done", False, "next")
    assert "job" not in ask(third, "GET", "/health")[1]["jobs"]

    async def elected_again() -> bool:
        log = await ftcore.open_log(made.store, "job")
        found = [event.type async for event in log.read(after=ended)]  # type: ignore[arg-type]
        await log.close()
        return "master.elected" in found

    assert not asyncio.run(elected_again())


def test_a_log_that_cannot_be_read_keeps_no_other_job_from_being_served(made: Services) -> None:
    """Its file is damaged; a job whose name comes after it is adopted."""

    async def create() -> None:
        for name in ("broken", "whole"):
            await (await ftcore.open_log(made.store, name, create=True)).close()

    asyncio.run(create())
    [file] = (made.root / "log").glob("broken*.db")
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))  # its header is whole: the store lists it
    _, port = made.service("--adopt")
    health_until(port, "leading", True, "whole")
    assert set(ask(port, "GET", "/health")[1]["jobs"]) == {"whole"}


def test_a_job_whose_task_has_failed_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no error of ftcore: the job's task ends, the health says why, and the job can be stopped."""
    spec = importlib.util.spec_from_file_location("embed_service", SERVICE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of descriptors")

    monkeypatch.setattr(ftcore, "open_log", fail)

    async def served() -> tuple[tuple[int, dict[str, Any]], tuple[int, dict[str, Any]]]:
        service = module.Service(f"sqlite://{tmp_path}/log", str(tmp_path), ftcore.Security(token="x" * 16))
        await service.answer("POST", "/jobs/job")
        await asyncio.wait({service.jobs["job"].task})
        return await service.answer("GET", "/health"), await service.answer("DELETE", "/jobs/job")

    health, deleted = asyncio.run(served())
    assert health[0] == 503
    assert health[1]["jobs"]["job"]["problem"] == "RuntimeError: out of descriptors"
    assert deleted[0] == 200


def test_requests_that_make_no_sense_are_refused(made: Services) -> None:
    _, port = made.service()
    assert ask(port, "POST", "/jobs/..%2Fup")[0] == 400
    assert ask(port, "PUT", "/jobs/job")[0] == 404
    assert ask(port, "GET", "/health") == (200, {"jobs": {}})
    env = {name: value for name, value in made.env.items() if name != "FTCORE_TOKEN"}
    argv = [sys.executable, str(SERVICE), "--store", made.store]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "set FTCORE_TOKEN" in done.stderr

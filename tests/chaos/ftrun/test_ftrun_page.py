"""The live page of a real job, through faults of the job, of its master, and of those who read the page."""

import http.client
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Ftrun, ftrun, kill, wait_until


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path / "job") as made:
        yield made


def test_the_page_follows_the_job_and_its_master(job: Ftrun) -> None:
    """A worker is killed, then the master: the page tells both. Clients that never read delay nothing."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = job.start("--local-nodes", "2", "--observe", f"page://127.0.0.1:{port}")
    job.stepped(1, nodes=2)
    link = job.ftctl("--job", job.job, "top", "--link", f"http://127.0.0.1:{port}").stdout.strip()
    authorized = {"Authorization": f"Bearer {link.partition('#token=')[2]}"}

    def view() -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            connection.request("GET", "/view", headers=authorized)
            answer = connection.getresponse()
            return json.loads(answer.read()) if answer.status == 200 else {}
        except (OSError, http.client.HTTPException):
            return {}
        finally:
            connection.close()

    def shows(condition: Callable[[dict[str, Any]], object], what: str) -> None:
        wait_until(lambda: (found := view()) and condition(found), what)

    shows(lambda found: found["state"] == "running" and found["nodes"][0]["step"], "steps by heartbeat")
    deaf = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
    for each in deaf:
        each.sendall(f"GET /events HTTP/1.0\r\nAuthorization: {authorized['Authorization']}\r\n\r\n".encode())
    kill(job.pids(1)[0])
    job.stepped(2, nodes=2)
    shows(lambda found: any("i1: resolved by" in event["text"] for event in found["newest_events"]), "the incident")
    first = job.master()
    os.kill(first, signal.SIGKILL)
    shows(
        lambda found: any("a new master leads" in event["text"] for event in found["newest_events"]), "the next master"
    )
    shows(lambda found: found["notices"] == [] and found["state"] == "running", "a page without notices")
    assert job.master() != first
    told = json.loads(job.ftctl("--job", job.job, "top", "--once", "--format", "json").stdout)
    assert (told["state"], told["job"]) == ("running", job.job)
    assert [group["state"] for group in told["groups"]] == ["running"]
    job.finish()
    assert run.end() == 0
    for each in deaf:
        each.close()
    ended = job.ftctl("--job", job.job, "top").stdout
    assert "SUCCEEDED" in ended and "the job has ended: succeeded" in ended

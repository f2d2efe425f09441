"""Logs that the production engine made, for tests of ``ftctl``."""

import json
from pathlib import Path

import pytest

from ftcore.cli.ftctl import main
from ftcore.events.envelope import Event
from ftcore.ids import JobName
from ftcore.logs.archive import ArchiveWriter
from ftcore.testing.driver import JobDriver


def driven() -> JobDriver:
    driver = JobDriver(nodes=2, slots=2, tick_s=0.02)
    driver.start()
    driver.make_steps(9)
    driver.fail("node1", message="RuntimeError: Connection closed by peer [127.0.0.1]:52710")
    driver.fail("node0", exitcode=-9, local_rank=1)
    driver.settle()
    return driver


def archive(path: Path, events: list[Event], job: str = "demo") -> str:
    with ArchiveWriter(path, JobName(job)) as writer:
        for event in events:
            writer.add(event)
    return f"file:{path}"


def run_json(capsys: pytest.CaptureFixture[str], *argv: str):
    assert main([*argv, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)

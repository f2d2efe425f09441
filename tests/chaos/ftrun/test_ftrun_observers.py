"""Observers of a real job: they see every event, and nothing that they do reaches the job."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import Ftrun, ftrun, kill, wait_until

sys.path.insert(0, str(Path(__file__).parents[2]))
from packages import install

OBSERVER = """
import asyncio, json, os, sys, time
from pathlib import Path
from ftcore import ObserverAdapter

async def keeps(url, observed):
    with Path(f"seen.{os.getpid()}").open("w") as file:
        async for event in observed.events():
            file.write(json.dumps([event.seq, event.type]) + "\\n")
            file.flush()
            if event.type == "workers.stepped":
                found = await observed.look()
                Path("looked").write_text(json.dumps([[node.node for node in found.nodes], found.wait_s]))
        file.write('"end"\\n')

async def misbehaves(url, observed):
    with Path("tries").open("a") as file:
        file.write(url + "\\n")
    what = url.partition(":")[2]
    if what == "raise":
        raise KeyError("no such thing")
    if what == "abort":
        os.abort()
    while True:
        pass

KEEPS = ObserverAdapter(run=keeps, problem=lambda url: "it keeps too much")
BAD = ObserverAdapter(run=misbehaves)
"""

ENTRIES = {"ftcore.observers": {"keeps": "acme_observer:KEEPS", "bad": "acme_observer:BAD"}}


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Ftrun]:
    with ftrun(tmp_path / "job") as made:
        install(tmp_path / "site", "acme-observer", "2.1", {"acme_observer.py": OBSERVER}, ENTRIES)
        made.env["PYTHONPATH"] = f"{tmp_path / 'site'}:{made.env.get('PYTHONPATH', '')}".rstrip(":")
        yield made


def seen(job: Ftrun) -> list[list[object]]:
    """What each observer's process wrote, in the order of their starts."""
    files = sorted(job.cwd.glob("seen.*"), key=lambda path: path.stat().st_ctime)
    return [
        [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"] for path in files
    ]


def test_an_observer_sees_every_event(job: Ftrun) -> None:
    """Beside each master that leads, from the first event to the last, which it is given time for."""
    run = job.start("--local-nodes", "2", "--observe", "keeps:")
    job.stepped(1, nodes=2)
    wait_until(lambda: (job.cwd / "looked").exists(), "a look at the master")
    assert json.loads((job.cwd / "looked").read_text())[0] == ["node0", "node1"]
    os.kill(job.master(), signal.SIGKILL)
    wait_until(lambda: len(found := seen(job)) == 2 and len(found[1]) > len(found[0]), "the next one")
    job.finish()
    assert run.end() == 0
    wait_until(lambda: not job.processes("ctl observe keeps:"), "the end of the observer")
    assert run.stderr().count("ftrun: --observe keeps:: it keeps too much") == 1
    first, last = seen(job)
    everything = [[event.seq, event.type] for event in job.events.read()]
    assert first == everything[: len(first)]
    assert last == [*everything, "end"]


def test_observers_that_fail_do_not_reach_the_job(job: Ftrun) -> None:
    """One raises, one crashes, one uses a core and never ends: started again, or killed with its master.

    Log lines and narration are JSON here, and say where in the job they belong.
    """
    urls = ("bad:raise", "bad:abort", "bad:spin")
    job.env["FTCORE_OBSERVE"] = " ".join(urls)
    run = job.start("--local-nodes", "2", "--log-format", "json")
    job.stepped(1, nodes=2)
    tries = job.cwd / "tries"
    wait_until(lambda: tries.exists() and tries.read_text().count("bad:abort") >= 2, "another start")
    kill(job.pids(1)[0])
    job.stepped(2, nodes=2)
    job.finish()
    assert run.end() == 0
    assert len(job.of("master.elected")) == 1
    assert tries.read_text().count("bad:spin") == 1
    log = next(job.home.rglob("node*.master.log")).parent
    lines = "".join(path.read_text() for path in log.glob("*.master.log"))
    assert "KeyError: 'no such thing'" in lines
    told = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    ended = [line for line in told if line["event"] == "an observer ended; it is started again"]
    assert len(ended) >= 3 and {(line["job"], line["level"]) for line in ended} == {("job", "warning")}
    assert {line["node"] for line in ended} <= {"node0", "node1"} and 1 in {line.get("round") for line in ended}
    own = [line for line in run.stderr().splitlines() if not line.startswith("ftrun: ")]
    narrated = {line["type"]: line for line in map(json.loads, own)}
    opened, formed = narrated["incident.opened"], narrated["world.formed"]
    assert (opened["incident"], opened["round"], opened["node"]) == ("i1", 1, job.of("worker.failed")[0].data.node)
    assert (formed["job"], formed["round"], formed["incident"], formed["level"]) == ("job", 2, "i1", "info")

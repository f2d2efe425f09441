"""Write an observer and an export format.

A package registers the two objects as entry points, `ftcore.observers` and `ftcore.exporters`. Here they are called by
hand, with a job that was made without processes.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import ftcore
from ftcore.ports import Candidate
from ftcore.replay import Folder, JobState, event_json
from ftcore.testing.driver import JobDriver


def slowest(master: ftcore.ObservedMaster) -> ftcore.ObservedNode | None:
    """The node with the longest time of own work, from the memory of the leading master."""
    return max((node for node in master.nodes if node.own_s), key=lambda node: node.own_s or 0.0, default=None)


def summary(state: JobState) -> str:
    return f"event {state.seq}: {state.phase}, {state.incidents} incidents"


async def observe(url: str, observed: ftcore.Observed) -> None:
    """Print the state after each incident."""
    folder = Folder()
    async for event in observed.events():
        folder.feed(event)
        if event.type == "incident.resolved":
            print(f"{observed.job}: {summary(folder.state)}")
            master = await observed.look()
            print("no master leads" if master is None else f"slowest: {slowest(master)}")


async def write_lines(job: str, events: AsyncIterator[ftcore.Event], output: Any) -> None:
    """A JSON object a line."""
    async for event in events:
        output.write(json.dumps(event_json(event)).encode() + b"\n")


OBSERVER = ftcore.ObserverAdapter(run=observe)
LINES = ftcore.ExportFormat(write=write_lines, name="a file of JSON lines", begins=b'{"seq":')


async def main() -> None:
    job = JobDriver(nodes=2)
    job.start()
    job.fail("node1", exitcode=-9)
    job.settle()
    log = await ftcore.open_log("memory://observed", "demo", create=True)
    leadership = await log.campaign(Candidate(host="here", pid=1, address=""))
    for group in job.groups:
        await log.append(group, term=leadership.term, expected_seq=await log.last_seq())
    await leadership.resign()
    over = asyncio.Event()
    over.set()  # read to the end of the log, as `ftctl observe --once`
    await OBSERVER.run("lines:", ftcore.Observed(log, ftcore.Security(), over=over))
    output = io.BytesIO()
    await LINES.write("demo", log.read(), output)
    assert output.getvalue().startswith(LINES.begins)
    assert len(output.getvalue().splitlines()) == len(job.events)


asyncio.run(main())

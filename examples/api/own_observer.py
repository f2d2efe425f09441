"""An observer and an export format.

An observer follows the log of a job in a process of its own, and reads the leading master's memory. A format writes a
whole log for another program. [Extension points](../extension-points.md) shows how a package offers them.
"""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import ftcore
from ftcore.errors import UsageError
from ftcore.ports import Candidate
from ftcore.replay import JobState, event_json, fold_log
from ftcore.testing.driver import JobDriver


def line_of(node: ftcore.ObservedNode) -> str:
    """A node's last step, and how long ago it was heard."""
    return f"{node.node} at step {node.step}, heard {node.heard_s:.1f} s ago"


def lines_of(master: ftcore.ObservedMaster | None) -> list[str]:
    """What the leading master knows beyond the log."""
    return ["no master leads"] if master is None else [line_of(node) for node in master.nodes]


async def count_restarts(url: str, job: ftcore.Observed) -> None:
    """Print each restart, and at the end what the master knows: the ``run`` of the adapter."""
    rounds = 0
    async for event in job.events():
        if event.type == "round.started":
            rounds += 1
            print(f"{job.job}: round {rounds} has started")
    print(*lines_of(await job.look()))


def check(url: str) -> None:
    if url != "restarts:":
        raise UsageError(f"{url}: expected restarts:")


ADAPTER = ftcore.ObserverAdapter(run=count_restarts, check=check)
"""The entry point ``restarts`` of the group ``ftcore.observers`` names this object; ``ftrun --observe restarts:``."""


async def write_lines(job: str, events: AsyncIterator[ftcore.Event], output: ftcore.ExportOutput) -> None:
    """Write each event as a line of JSON."""
    async for event in events:
        output.write(json.dumps({"job": job, **event_json(event)}).encode() + b"\n")


FORMAT = ftcore.ExportFormat(write=write_lines, name="a file of JSON lines", begins=b'{"job": ')
"""The entry point ``lines`` of the group ``ftcore.exporters`` names this object; ``ftctl export --format lines``."""


async def main() -> None:
    recorded = JobDriver(nodes=2)
    recorded.start()
    recorded.fail("node1", exitcode=-9)
    recorded.settle()
    log = await ftcore.open_log("memory://example", "job", create=True)
    leadership = await log.campaign(Candidate(host="here", pid=1, address=""))
    for group in recorded.groups:
        await log.append(group, term=leadership.term, expected_seq=await log.last_seq())
    await leadership.resign()

    over = asyncio.Event()
    over.set()  # the run is over: observers read the log to its end
    observed = ftcore.Observed(log, ftcore.Security(), over=over)
    ADAPTER.check("restarts:")
    await ADAPTER.run("restarts:", observed)

    file = io.BytesIO()
    await FORMAT.write("job", log.read(), file)
    assert file.getvalue().startswith(FORMAT.begins)
    state: JobState = fold_log(recorded.events)
    print(f"{len(file.getvalue().splitlines())} lines; the job is {state.phase} in round {state.rounds.newest}")
    await log.close()


asyncio.run(main())

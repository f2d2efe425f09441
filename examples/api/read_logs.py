"""Read event logs.

A store has the logs of several jobs. Only a leader appends, whole groups of events; anyone may read and follow.
"""

import asyncio

import ftcore
from ftcore.errors import NotFound
from ftcore.logs import check_job_name, default_store_url, open_log, open_store
from ftcore.ports import Candidate
from ftcore.testing.driver import JobDriver


def recorded() -> list[list[ftcore.Event]]:
    """The groups of events of a job, made here without processes."""
    job = JobDriver(nodes=2)
    job.start()
    job.fail("node1", exitcode=-9)
    job.settle()
    return job.groups


async def copy(groups: list[list[ftcore.Event]], target: ftcore.LogStore, name: str) -> None:
    """Write the events of a job into a new log."""
    log = await target.open(check_job_name(name), create=True)
    leadership = await log.campaign(Candidate(host="here", pid=1, address=""))
    try:
        for group in groups:
            await log.append(group, term=leadership.term, expected_seq=await log.last_seq())
    finally:
        await leadership.resign()
        await log.close()


async def failures(log: ftcore.EventLog) -> list[str]:
    """One line for each failed worker."""
    lines = []
    async for event in log.read():
        if event.type == "worker.failed":
            lines.append(f"event {event.seq}: {event.data.node} failed with {event.data.exitcode}")
    return lines


async def main() -> None:
    print(f"ftcore {ftcore.__version__}; logs are in {default_store_url()} unless you name a store")
    store = open_store("sqlite:./logs")
    await copy(recorded(), store, "copied")
    print(await store.jobs())
    await store.close()

    log = await open_log("sqlite:./logs", "copied")
    print(await failures(log))
    async for event in log.follow():  # after the last one it waits for new events
        if event.type == "incident.resolved":
            print(f"event {event.seq}: {event.data.policy} resolved the incident")
            break
    await log.close()

    try:
        await ftcore.open_log("sqlite:./logs", "unknown")  # as `ftcore.logs.open_log`
    except NotFound as error:
        print(error)
    empty = ftcore.open_store("memory://nothing")
    assert await empty.jobs() == []
    await empty.close()


asyncio.run(main())

"""Prints a job's log, one event to a line, from wherever it is started: ``follow.py STORE JOB [once]``."""

import asyncio
import sys

from ftcore.events.codec import encode
from ftcore.ids import JobName, Seq
from ftcore.logs import open_store
from ftcore.runtime.logging import configure


async def main(url: str, job: str, once: bool) -> None:
    configure("error")
    store = open_store(url)
    log = await store.open(JobName(job), create=True)
    async for event in log.read() if once else log.follow(Seq(0)):
        sys.stdout.buffer.write(encode(event) + b"\n")
        sys.stdout.flush()


asyncio.run(main(sys.argv[1], sys.argv[2], len(sys.argv) > 3))

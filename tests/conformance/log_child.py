"""Child process with a log: reads commands and writes answers as lines of JSON, ends at the end of input."""

import asyncio
import json
import os
import sys
import time
from typing import Any

from log_harness import followed, me, notes

from ftcore.errors import FtcoreError
from ftcore.ids import JobName, Seq, Term
from ftcore.logs import open_store
from ftcore.ports import EventLog, Leadership

ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print must not stand between the answers


class Child:
    def __init__(self, log: EventLog) -> None:
        self.log = log
        self.leadership: Leadership | None = None

    async def campaign(self) -> int:
        self.leadership = await self.log.campaign(me("child"))
        return self.leadership.term

    async def append(self, last: int, count: int, size: int = 1) -> int:
        """Groups of ``size``, each acknowledged by a line."""
        assert self.leadership is not None
        term = self.leadership.term
        for _ in range(count):
            await self.log.append(notes(last + 1, last + size, term), term=Term(term), expected_seq=Seq(last))
            last += size
            say({"acked": last})
        return last

    async def follow(self, after: int, until: int) -> list[int]:
        say("following")
        return await followed(self.log, after, until)

    async def block(self, seconds: float) -> str:
        time.sleep(seconds)
        return "blocked"

    async def lost(self) -> str:
        assert self.leadership is not None
        return await self.leadership.lost()


def say(answer: Any) -> None:
    print(json.dumps(answer), file=ANSWERS, flush=True)


async def main(url: str, job: str) -> None:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    store = open_store(url)
    child = Child(await store.open(JobName(job), create=True))
    while line := await lines.readline():
        command = json.loads(line)
        try:
            say(await getattr(child, command.pop("do"))(**command))
        except FtcoreError as error:
            say({"error": type(error).__name__})
    await store.close()


asyncio.run(main(*sys.argv[1:]))

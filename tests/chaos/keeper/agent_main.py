"""An agent that only has a keeper, in its own process: carries out the lines of its standard input.

Each line is JSON, ``[method, *arguments]`` of its ``KeeperLink``; each answer, and each report of the keeper, is a line
on standard output.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import structlog

from ftcore.errors import FtcoreError
from ftcore.runtime.agent.keeper_link import KeeperLink
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.keeper.config import KeeperConfig


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


async def carry_out(link: KeeperLink, method: str, arguments: list[Any]) -> None:
    try:
        found: Any = getattr(link, method)
        if method not in ("pid", "alive"):
            found = found(*arguments)
        say(answer=await found if asyncio.iscoroutine(found) else found)
    except FtcoreError as error:
        say(error=str(error))


async def main(root: Path, options: dict[str, Any]) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    processes.become_subreaper()
    reaper = Reaper()
    link = KeeperLink(reaper, str(root / "run" / "k.sock"), KeeperConfig(job="job", log="", node="node", **options))
    await link.open()
    link.configure("log")
    link.events.persisted = lambda message: say(persisted=message)
    link.events.failed = lambda message: say(failed=message)
    link.events.loaded = lambda message: say(loaded=message)
    say(ready=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async for line in lines:
        method, *arguments = json.loads(line)
        await carry_out(link, method, arguments)
    link.close()
    reaper.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(sys.argv[2])))

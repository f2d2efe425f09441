"""An agent that only has a keeper, in its own process: carries out the lines of its standard input.

Each line is JSON, ``[method, *arguments]`` of its ``KeeperLink``; each answer, each report of the keeper, and each
warning of the agent is a line on standard output.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ftcore.errors import FtcoreError
from ftcore.runtime.agent.keeper_link import KeeperLink
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.keeper.config import BuddyPlan, KeeperConfig


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def warned(logger: Any, method: str, event: Any) -> Any:
    if method == "warning":
        say(warning=" ".join(map(str, event.values())))
    raise structlog.DropEvent


async def carry_out(link: KeeperLink, method: str, arguments: list[Any]) -> None:
    try:
        found: Any = getattr(link, method)
        if method == "copy":
            found = found(msgspec.convert(arguments[0], BuddyPlan))
        elif method not in ("pid", "alive", "copies_port"):
            found = found(*arguments)
        say(answer=await found if asyncio.iscoroutine(found) else found)
    except FtcoreError as error:
        say(error=str(error))


async def main(root: Path, options: dict[str, Any]) -> None:
    structlog.configure(processors=[warned])
    processes.become_subreaper()
    reaper = Reaper()
    address = options.pop("address", "")
    config = msgspec.convert({"job": "job", "log": "", "node": "node", **options}, KeeperConfig)
    link = KeeperLink(reaper, str(root / "run" / "k.sock"), config, address)
    await link.open()
    link.configure("log")
    link.events.persisted = lambda message: say(persisted=message)
    link.events.failed = lambda message: say(failed=message)
    link.events.committed = lambda message: say(committed=message)
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

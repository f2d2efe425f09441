"""An agent in its own process, for tests that kill it: prints the ids of its processes as JSON, then waits."""

import asyncio
import json
import sys
from pathlib import Path

from supervisor_harness import Node

from ftcore.ids import Round


def main(root: Path, script: str) -> None:
    node = Node(root, nproc=2)
    launch = node.launch(script, "stay", workers=2)

    async def up() -> dict[str, object]:
        supervisor = node.supervisor
        pids, _ = await supervisor.start(launch)
        for rank in range(2):
            await node.says(launch, "up", rank)
        if "--store" in sys.argv:
            await supervisor.open_store(Round(1), "127.0.0.1")
        warm, guard, store = supervisor._warm, supervisor._guard, supervisor._store
        return {"workers": pids, "warm": warm.pid, "guard": guard.pid, "store": store.pid}

    print(json.dumps(node.run(up())), flush=True)

    async def serve() -> None:
        await asyncio.Event().wait()

    node._runner.run(serve())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

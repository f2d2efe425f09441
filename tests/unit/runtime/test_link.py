"""The agent's link: a real gRPC server on the other side."""

import asyncio
from pathlib import Path
from typing import Any

from ftcore.errors import LogUnavailable
from ftcore.events.job import JobSpec
from ftcore.ids import Term
from ftcore.ports import Candidate, Leader
from ftcore.runtime.agent.link import Link, make_hello
from ftcore.runtime.agent.outbox import Outbox
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.channel import server
from ftcore.runtime.wire.security import NONE
from ftcore.timing import Timing


class Store:
    """A log store that tells once who leads, and is away from then on."""

    def __init__(self, address: str) -> None:
        self.address, self.asked = address, 0

    async def leader(self) -> Leader:
        self.asked += 1
        if self.asked > 1:
            raise LogUnavailable("the store is away")
        candidate = Candidate(host="h", pid=1, address=self.address)
        return Leader(term=Term(1), candidate=candidate, alive=True)


async def meet_twice(folder: Path) -> int:
    """Let a master end the stream of an agent whose log store is away by then; returns how often they met."""
    met, again = 0, asyncio.Event()

    async def connect(_: Any, __: Any) -> Any:
        nonlocal met
        met += 1
        yield frames.encode(frames.Welcome(term=Term(1), acked=0))
        if met == 2:
            again.set()
            await asyncio.Event().wait()

    master = server(connect)
    address = f"unix:{folder / 'master'}"
    master.add_insecure_port(address)
    await master.start()
    outbox = Outbox(folder / "outbox", "a", "1", lambda: None)
    submission = frames.submission(JobSpec(argv=("t.py",), nodes_min=1, nodes_max=1))
    link = Link(
        log=Store(address),  # type: ignore[arg-type]
        hello=make_hello(job="j", node="a", incarnation="1", submission=submission, again=False),
        outbox=outbox,
        security=NONE,
        beat=lambda: frames.Beat(round=0),
        timing=Timing(),
        on_welcome=lambda _: None,
        on_broken=lambda: None,
        on_refused=lambda _: None,
        on_orders=lambda _: None,
        on_standby=lambda: None,
        on_leaderless=lambda _: None,
    )
    running = asyncio.create_task(link.run())
    waiting = asyncio.create_task(again.wait())
    try:
        await asyncio.wait((running, waiting), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.exception()
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await master.stop(None)
        outbox.close()
    return met


def test_a_master_that_lives_is_found_again_while_the_store_is_away(tmp_path):
    """The store need not answer for an agent to go back to the master that took it on last."""
    assert asyncio.run(meet_twice(tmp_path)) == 2

"""The agent's link: a real gRPC server on the other side."""

import asyncio
from pathlib import Path
from typing import Any

from ftcore.engine.master import DurableMark
from ftcore.errors import LogUnavailable
from ftcore.events.job import JobSpec
from ftcore.events.node import NodeLeft
from ftcore.ids import Term
from ftcore.ports import Candidate, Handle, Leader, Listener, Stream
from ftcore.runtime.agent.link import link as subject
from ftcore.runtime.agent.link.link import Link, make_hello
from ftcore.runtime.agent.link.outbox import Outbox
from ftcore.runtime.clock import at
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.security import NONE
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.timing import Timing

TRANSPORT = GrpcTransport(NONE)


class Store:
    """A log store that names the leader once and is unreachable afterwards."""

    def __init__(self, address: str) -> None:
        self.address, self.asked = address, 0

    async def leader(self) -> Leader:
        self.asked += 1
        if self.asked > 1:
            raise LogUnavailable("the store is away")
        candidate = Candidate(host="h", pid=1, address=self.address)
        return Leader(term=Term(1), candidate=candidate, alive=True)


class Moody:
    """A log store that names an unreachable master, then is unreachable, then names no leader."""

    def __init__(self, address: str) -> None:
        self.address, self.asked = address, 0

    async def leader(self) -> Leader | None:
        self.asked += 1
        if self.asked == 2:
            raise LogUnavailable("the store is away")
        if self.asked > 2:
            return None
        return Leader(term=Term(1), candidate=Candidate(host="h", pid=1, address=self.address), alive=True)


async def serving(address: str, handle: Handle) -> Listener:
    """A scripted master."""
    listener = TRANSPORT.listener(address, advertise="", handle=handle)
    await listener.start()
    return listener


def bond(
    store: Any,
    outbox: Outbox,
    welcomed: Any = lambda _: None,
    ordered: Any = lambda _: None,
    looked: Any = lambda _: None,
) -> Link:
    submission = frames.submission(JobSpec(argv=("t.py",), nodes_min=1, nodes_max=1))
    return Link(
        host=THIS_HOST,
        transport=TRANSPORT,
        log=store,
        hello=make_hello(job="j", node="a", incarnation="1", submission=submission, again=False),
        outbox=outbox,
        security=NONE,
        beat=lambda: frames.Beat(round=0),
        timing=Timing(),
        on_welcome=welcomed,
        on_broken=lambda: None,
        on_refused=lambda _: None,
        on_orders=ordered,
        on_standby=lambda: None,
        on_lookup=looked,
        on_leaderless=lambda _: None,
    )


async def meet_twice(folder: Path) -> int:
    """Let a master end the stream of an agent whose log store is unreachable; returns the number of connections."""
    met, again = 0, asyncio.Event()

    async def handle(stream: Stream) -> None:
        nonlocal met
        if await stream.read() is None:  # a stream that ends before it was written to was no meeting
            return
        met += 1
        await stream.write(frames.encode(frames.Welcome(term=Term(1), acked=0, mark=DurableMark("l", 0, ""))))
        if met == 2:
            again.set()
            await asyncio.Event().wait()

    address = f"unix:{folder / 'master'}"
    master = await serving(address, handle)
    outbox = Outbox("a", "1", lambda: None)
    link = bond(Store(address), outbox)
    running = asyncio.create_task(link.run())
    waiting = asyncio.create_task(again.wait())
    try:
        await asyncio.wait((running, waiting), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert not running.done(), running.exception()
    finally:
        waiting.cancel()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await master.stop()
        await outbox.close()
    return met


def test_a_live_master_is_found_again_without_the_store(tmp_path):
    """An agent reconnects to its last master without the log store."""
    assert asyncio.run(meet_twice(tmp_path)) == 2


async def pass_a_silent_one(folder: Path) -> None:
    """The store names a silent master, then another one; returns once the second one welcomed the agent."""
    outbox = Outbox("a", "1", lambda: None)
    came = asyncio.Event()

    async def silent(_: Stream) -> None:
        await asyncio.Event().wait()

    async def lively(stream: Stream) -> None:
        await stream.write(frames.encode(frames.Welcome(term=Term(2), acked=0, mark=DurableMark("l", 0, ""))))
        await asyncio.Event().wait()

    addresses = [f"unix:{folder / name}" for name in ("silent", "lively")]
    masters = [await serving(addresses[0], silent), await serving(addresses[1], lively)]

    class Successive:
        """A log store that names the first master, and at the next lookup the second."""

        def __init__(self) -> None:
            self.left = list(addresses)

        async def leader(self) -> Leader:
            address = self.left.pop(0) if len(self.left) > 1 else self.left[0]
            return Leader(term=Term(1), candidate=Candidate(host="h", pid=1, address=address), alive=True)

    link = bond(Successive(), outbox, welcomed=lambda _: came.set())
    running = asyncio.create_task(link.run())
    waiting = asyncio.create_task(came.wait())
    try:
        await asyncio.wait((running, waiting), timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert came.is_set()
    finally:
        for task in (running, waiting):
            task.cancel()
        await asyncio.gather(running, return_exceptions=True)
        for master in masters:
            await master.stop()
        await outbox.close()


def test_a_silent_master_is_looked_up_again_soon(tmp_path, monkeypatch):
    """The leader is looked up again soon after an attempt began, not only after the longest interval."""
    monkeypatch.setattr("ftcore.runtime.agent.link.link.CONNECT_S", 600.0)
    asyncio.run(pass_a_silent_one(tmp_path))


async def first_order(folder: Path) -> tuple[list[type], bool]:
    """The frames that a master gets from an agent with a fact before its first order; and whether facts remain."""
    heard: list[type] = []
    ordered = asyncio.Event()

    async def handle(stream: Stream) -> None:
        while (body := await stream.read()) is not None:
            frame = frames.decode_from_agent(body)
            heard.append(type(frame))
            if isinstance(frame, frames.Hello):
                await stream.write(frames.encode(frames.Welcome(term=Term(1), acked=0, mark=DurableMark("l", 0, ""))))
            elif isinstance(frame, frames.Facts):
                await stream.write(frames.encode(frames.Orders(orders=(), acked=len(frame.facts))))

    address = f"unix:{folder / 'master'}"
    master = await serving(address, handle)
    outbox = Outbox("a", "1", lambda: None)
    outbox.add(NodeLeft(node="a", incarnation="1", reason="test"), at())
    running = asyncio.create_task(bond(Store(address), outbox, ordered=lambda _: ordered.set()).run())
    try:
        async with asyncio.timeout(60):
            await ordered.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await master.stop()
        await outbox.close()
    return heard, bool(outbox.unacknowledged(0))


def test_facts_go_first_and_an_order_acknowledges_them(tmp_path):
    """An agent with facts sends them instead of a heartbeat; the acknowledgement in an order empties its outbox."""
    assert asyncio.run(first_order(tmp_path)) == ([frames.Hello, frames.Facts], False)


async def looks(folder: Path) -> list[bool]:
    found: list[bool] = []
    enough = asyncio.Event()

    def looked(led: bool) -> None:
        found.append(led)
        if len(found) == 3:
            enough.set()

    outbox = Outbox("a", "1", lambda: None)
    running = asyncio.create_task(bond(Moody(f"unix:{folder / 'nobody'}"), outbox, looked=looked).run())
    try:
        async with asyncio.timeout(60):
            await enough.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await outbox.close()
    return found[:3]


def test_every_lookup_in_the_store_is_reported(tmp_path):
    """Each lookup reports whether a live leader is named; an unreachable store names none."""
    assert asyncio.run(looks(tmp_path)) == [True, False, False]


class Silent:
    """A store that never answers."""

    async def leader(self) -> Leader:
        await asyncio.Event().wait()
        raise AssertionError


async def find_the_next(folder: Path) -> list[str]:
    """The leader is deposed and its store unreachable; it has announced two standbys, one of which leads now."""
    calls: list[str] = []
    told = ("first", "second", "next")
    address = {name: f"unix:{folder}/{name}.sock" for name in told}

    def saying(name: str, said: list[Any]) -> Handle:
        async def handle(stream: Stream) -> None:
            await stream.read()
            calls.append(name)
            for frame in said if calls.count(name) == 1 else [frames.NotMaster("")]:
                await stream.write(frames.encode(frame))

        return handle

    welcome = frames.Welcome(term=Term(1), acked=0, mark=DurableMark("l", 0, ""))
    candidates = frames.Candidates((address["next"], address["second"]))
    served = []
    for name, said in (
        ("first", [welcome, candidates]),
        ("second", [frames.NotMaster("")]),
        ("next", [welcome]),
    ):
        served.append(await serving(address[name], saying(name, said)))
    outbox = Outbox("a", "1", lambda: None)
    link = bond(Silent(), outbox)
    link._hint = address["first"]
    running = asyncio.create_task(link.run())
    while "next" not in calls:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await outbox.close()
    for made in served:
        await made.stop()
    return calls


def test_an_agent_without_a_store_asks_the_standbys(tmp_path, monkeypatch):
    """It tries the last leader and each announced standby, until one of them admits it."""
    monkeypatch.setattr(subject, "STORE_S", 0.01)
    assert "next" in asyncio.run(asyncio.wait_for(find_the_next(tmp_path), 60))

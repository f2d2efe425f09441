"""Conformance tests for platform adapters, and a platform in memory.

The tests of an adapter are one class; pytest collects the inherited test methods::

    class TestMyPlatform(PlatformContract):
        @contextlib.asynccontextmanager
        async def site(self):
            async with started_for_this_test() as platform:
                yield MySite(platform)

A ``Site`` controls the platform under test: it opens adapters, as successive masters do, and injects failures. Each
test has its own site, with two nodes at the places 0 and 1.

The tests wait for expected results without checking how long they take. That something does *not* happen is checked
after a later result has appeared.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ftcore.errors import Refused, Unreachable
from ftcore.ports import CapacityChanged, LaunchRequest, NodeEnded, Occupant, Platform, PlatformEvent

PATIENCE_S = 60.0
"""Timeout of a test in seconds."""


class Site(Protocol):
    """A platform under test, with two nodes of a job at the places 0 and 1."""

    def open(self) -> Platform:
        """Open another adapter for the same job, as a new master does."""

    async def nodes(self) -> dict[int, list[Occupant]]:
        """By place: nodes that run or are being launched, including replaced nodes that have not ended yet."""

    async def kill(self, node: Occupant) -> None:
        """End a node as a fault would, without a request to the platform."""

    async def fill_up(self) -> None:
        """Occupy all free machines. Raises ``NotImplementedError`` if the platform has no limit."""

    async def go_away(self) -> None:
        """Make the platform unreachable for the rest of the test."""


class PlatformContract:
    """Conformance tests; subclass it and implement ``site``."""

    def site(self) -> AbstractAsyncContextManager[Site]:
        """A site, as an asynchronous context manager."""
        raise NotImplementedError("implement site()")

    def test_a_launch_brings_one_node_for_a_place(self) -> None:
        """Repeated requests, also of two masters, launch one node, with another name than the node that still runs."""

        async def scenario(site: Site) -> None:
            first, second = site.open(), site.open()
            old = await only(site, 0)
            await first.launch(LaunchRequest(effect="e/1", replaces=old))
            await first.launch(LaunchRequest(effect="e/1", replaces=old))
            await second.launch(LaunchRequest(effect="e/1", replaces=old))
            await second.launch(LaunchRequest(effect="e/1", replaces=old))
            await first.delete(old, 0.0)
            new = await only(site, 0)
            assert new.node != old.node, f"{old.node} still ran when {new.node} was launched under its name"
            assert [node.node for node in (await site.nodes())[1]] == [(await only(site, 1)).node]
            await close(first, second)

        self._run(scenario)

    def test_two_effects_are_two_nodes(self) -> None:
        """A request with another effect replaces the current node."""

        async def scenario(site: Site) -> None:
            platform = site.open()
            seen = [await only(site, 1)]
            for effect in ("e/1", "e/2"):
                await platform.launch(LaunchRequest(effect=effect, replaces=seen[-1]))
                await platform.delete(seen[-1], 0.0)
                seen.append(await only(site, 1, other_than=seen[-1]))
            assert len({node.node for node in seen}) == len(seen)
            await close(platform)

        self._run(scenario)

    def test_additional_nodes_take_no_place_of_others(self) -> None:
        """A request that replaces no node launches ``count`` more, once; the others keep running."""

        async def scenario(site: Site) -> None:
            first, second = site.open(), site.open()
            before = [await only(site, place) for place in (0, 1)]
            for platform in (first, first, second):
                await platform.launch(LaunchRequest(effect="e/1", count=2))

            async def came() -> bool:
                return sum(map(len, (await site.nodes()).values())) == 4

            await until(came, "two more nodes")
            await first.launch(LaunchRequest(effect="e/2", replaces=before[1]))
            await first.delete(before[1], 0.0)
            await only(site, 1, other_than=before[1])
            assert await came() and before[0] in (await site.nodes())[0]
            await close(first, second)

        self._run(scenario)

    def test_a_deleted_node_is_gone(self) -> None:
        """Deleting an ended node has no effect, also on a newer agent of the same name."""

        async def scenario(site: Site) -> None:
            platform = site.open()
            old, other = await only(site, 0), await only(site, 1)
            await platform.delete(old, 0.0)
            await until(lambda: missing(site, old), f"the end of {old.node}")
            await platform.delete(old, 0.0)
            await platform.delete(Occupant(node="nobody", pid=1), 0.0)
            if other.pid:
                await platform.delete(Occupant(node=other.node, pid=other.pid + 1), 0.0)
            await platform.launch(LaunchRequest(effect="e/1", replaces=old))
            await platform.delete(old, 0.0)
            await only(site, 0, other_than=old)
            assert other in (await site.nodes())[1]
            await close(platform)

        self._run(scenario)

    def test_a_cordoned_name_does_not_come_back(self) -> None:
        """The replacement of a cordoned node, dead or alive, has another name."""

        async def scenario(site: Site) -> None:
            platform = site.open()
            for place, effect in ((0, "e/1"), (1, "e/2")):
                old = await only(site, place)
                await platform.cordon(old, "it is broken")
                await platform.cordon(old, "it is broken")
                if place:
                    await site.kill(old)
                await platform.launch(LaunchRequest(effect=effect, replaces=old))
                await platform.delete(old, 0.0)
                new = await only(site, place, other_than=old)
                assert new.node != old.node
            await close(platform)

        self._run(scenario)

    def test_an_end_is_told_to_every_master(self) -> None:
        """The end of a node is reported to current and to later watchers.

        If names are reused, it must have the pid of the agent: otherwise the end of a reused name is ignored, as it may
        be a repeat.
        """

        async def scenario(site: Site) -> None:
            platform = site.open()
            old = await only(site, 0)
            async with watching(platform) as reports:
                await reports.first(lambda event: isinstance(event, CapacityChanged))
                await site.kill(old)
                await reports.first(lambda event: is_end(event, old))
            later = site.open()
            async with watching(later) as reports:
                found = await reports.first(lambda event: is_end(event, old))
                assert isinstance(found, NodeEnded) and found.reason
            await close(platform, later)

        self._run(scenario)

    def test_no_machine_is_a_refusal_with_a_reason(self) -> None:
        """With limited capacity: 0 is reported, a launch is refused, and running nodes are unaffected."""

        async def scenario(site: Site) -> None:
            platform = site.open()
            old = await only(site, 0)
            try:
                await site.fill_up()
            except NotImplementedError:
                return
            assert await platform.capacity() == 0
            async with watching(platform) as reports:
                await reports.first(lambda event: event == CapacityChanged(free=0))
            try:
                await platform.launch(LaunchRequest(effect="e/1", replaces=old))
            except Refused as error:
                assert str(error), "Refused has no reason"
            else:
                raise AssertionError("a launch without a free machine was accepted")
            assert old in (await site.nodes())[0]
            await close(platform)

        self._run(scenario)

    def test_an_absence_is_no_answer(self) -> None:
        """All methods of an unreachable platform raise ``Unreachable``."""

        async def scenario(site: Site) -> None:
            platform = site.open()
            old = await only(site, 0)
            await site.go_away()
            for ask in (
                platform.capacity(),
                platform.launch(LaunchRequest(effect="e/1", replaces=old)),
                platform.delete(old, 0.0),
                platform.cordon(old, "x"),
                _drain(platform.watch()),
            ):
                try:
                    await ask
                except Unreachable as error:
                    assert str(error), "Unreachable has no message"
                else:
                    raise AssertionError("an unreachable platform answered")
            await close(platform)

        self._run(scenario)

    def _run(self, scenario: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            async with asyncio.timeout(PATIENCE_S), self.site() as site:
                await scenario(site)

        asyncio.run(run())


class WatchRecord:
    """Events of a watch, for tests.

    Args:
        stream: the watch.
    """

    def __init__(self, stream: AsyncIterator[PlatformEvent]) -> None:
        self._stream = stream

    async def first(self, wanted: Callable[[PlatformEvent], bool]) -> PlatformEvent:
        """Wait for the first event that satisfies ``wanted``."""
        async for event in self._stream:
            if wanted(event):
                return event
        raise AssertionError("the watch ended without an error")


@contextlib.asynccontextmanager
async def watching(platform: Platform) -> AsyncIterator[WatchRecord]:
    """Context manager: watch a platform."""
    stream = platform.watch()
    try:
        yield WatchRecord(stream)
    finally:
        end = getattr(stream, "aclose", None)
        if end is not None:
            await end()


async def only(site: Site, place: int, other_than: Occupant | None = None) -> Occupant:
    """Wait until a place has exactly one node, and that is not ``other_than``; returns it."""

    async def found() -> bool:
        nodes = (await site.nodes()).get(place, [])
        return len(nodes) == 1 and nodes[0] != other_than

    await until(found, f"one node at place {place}")
    return (await site.nodes())[place][0]


async def missing(site: Site, node: Occupant) -> bool:
    """Whether a node has ended."""
    return all(node not in nodes for nodes in (await site.nodes()).values())


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
    """Wait until a condition holds; ``what`` names it in the error."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S / 2
    while not await condition():
        assert asyncio.get_running_loop().time() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.02)


def is_end(event: PlatformEvent, node: Occupant) -> bool:
    """Whether an event reports the end of ``node``."""
    if not isinstance(event, NodeEnded) or event.node != node.node:
        return False
    return node.pid == 0 or event.pid in (0, node.pid)


async def close(*platforms: Platform) -> None:
    """Close adapters."""
    for platform in platforms:
        await platform.close()


async def _drain(stream: AsyncIterator[PlatformEvent]) -> None:
    async for _ in stream:
        pass


class MemoryPlatform:
    """A platform that launches nothing but records its calls, for tests of its callers.

    Attributes:
        asked: all calls in order, as ``(method, argument)``.
        free: free machines; None: no limit.
        away: whether it is unreachable.
        refusal: why it refuses launches; empty: it accepts them.
        requests: the accepted launches, each once.
    """

    def __init__(self, free: int | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.free = free
        self.away = False
        self.refusal = ""
        self.requests: list[LaunchRequest] = []
        self._effects: set[str] = set()
        self._news: asyncio.Queue[PlatformEvent] = asyncio.Queue()

    @property
    def launched(self) -> list[str]:
        """The effects of the accepted launches."""
        return sorted(self._effects)

    def tell(self, event: PlatformEvent) -> None:
        """Send an event to the watch."""
        self._news.put_nowait(event)

    async def capacity(self) -> int | None:
        """See ``Platform``."""
        self._record_call("capacity", "")
        return self.free

    async def launch(self, request: LaunchRequest) -> None:
        """See ``Platform``."""
        place = request.replaces
        self._record_call("launch", f"{place.node}@{place.ordinal}" if place is not None else f"{request.count} more")
        if request.effect in self._effects:
            return
        if self.refusal or (self.free is not None and self.free < request.count):
            raise Refused(self.refusal or "no machine is free")
        if self.free is not None:
            self.free -= request.count
        self._effects.add(request.effect)
        self.requests.append(request)

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``Platform``."""
        self._record_call("delete", f"{place.node} in {grace_s:g} s")

    async def cordon(self, place: Occupant, reason: str) -> None:
        """See ``Platform``."""
        self._record_call("cordon", place.node)

    async def watch(self) -> AsyncIterator[PlatformEvent]:
        """See ``Platform``."""
        self._record_call("watch", "")
        yield CapacityChanged(free=self.free)
        while True:
            yield await self._news.get()

    async def close(self) -> None:
        """See ``Platform``."""
        self.asked.append(("close", ""))

    def _record_call(self, method: str, what: str) -> None:
        self.asked.append((method, what))
        if self.away:
            raise Unreachable("the platform is unreachable")

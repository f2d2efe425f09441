"""For the tests of platforms: what every adapter must do, and a platform in memory.

An adapter's own tests are one class (pytest finds the test methods that it inherits)::

    class TestMyPlatform(PlatformContract):
        @contextlib.asynccontextmanager
        async def site(self):
            async with started_for_this_test() as there:
                yield MySite(there)

A ``Site`` is the platform with the hand of whoever runs it: it opens adapters, as one master after the other does, and
does to nodes what the world does. Each test has a site of its own, with two nodes at the places 0 and 1.

House rules: the kit waits for what it expects, and never asks how soon it is there; what must *not* happen is looked
for after something that comes later has happened.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from ftcore.errors import Refused, Unreachable
from ftcore.ports import CapacityChanged, Happening, NodeEnded, Occupant, Platform

PATIENCE_S = 60.0
"""Bound of every wait."""


class Site(Protocol):
    """A platform under test, with two nodes of a job at the places 0 and 1."""

    def open(self) -> Platform:
        """Another adapter of the same job, as a new master makes it."""

    async def nodes(self) -> dict[int, list[Occupant]]:
        """By place: the nodes that run or are on their way, also those that were given up and are not gone yet."""

    async def kill(self, node: Occupant) -> None:
        """End a node as a fault would, behind the platform's back."""

    async def fill_up(self) -> None:
        """See to it that no machine is free. Raises ``NotImplementedError`` where there is no bound."""

    async def go_away(self) -> None:
        """Have the platform not answer any more, for the rest of the test."""


class PlatformContract:
    """Subclass it and say what a site is."""

    def site(self) -> AbstractAsyncContextManager[Site]:
        """A site, as an asynchronous context manager."""
        raise NotImplementedError("say what a site is")

    def test_a_launch_brings_one_node_for_a_place(self) -> None:
        """The newcomer has another name than the node that still runs; asked twice, or by two masters, it is one."""

        async def look(site: Site) -> None:
            first, second = site.open(), site.open()
            old = await only(site, 0)
            await first.launch("e/1", old)
            await first.launch("e/1", old)
            await second.launch("e/1", old)
            await second.launch("e/1", old)
            await first.delete(old, 0.0)
            new = await only(site, 0)
            assert new.node != old.node, f"{old.node} still ran when {new.node} was launched under its name"
            assert [node.node for node in (await site.nodes())[1]] == [(await only(site, 1)).node]
            await close(first, second)

        self._run(look)

    def test_two_effects_are_two_nodes(self) -> None:
        """What another effect asks for is carried out for the node that is there then."""

        async def look(site: Site) -> None:
            platform = site.open()
            seen = [await only(site, 1)]
            for effect in ("e/1", "e/2"):
                await platform.launch(effect, seen[-1])
                await platform.delete(seen[-1], 0.0)
                seen.append(await only(site, 1, other_than=seen[-1]))
            assert len({node.node for node in seen}) == len(seen)
            await close(platform)

        self._run(look)

    def test_a_deleted_node_is_gone(self) -> None:
        """To delete what is gone harms nobody, least of all a newer agent of the same name."""

        async def look(site: Site) -> None:
            platform = site.open()
            old, other = await only(site, 0), await only(site, 1)
            await platform.delete(old, 0.0)
            await until(lambda: missing(site, old), f"{old.node} to be gone")
            await platform.delete(old, 0.0)
            await platform.delete(Occupant(node="nobody", pid=1), 0.0)
            if other.pid:
                await platform.delete(Occupant(node=other.node, pid=other.pid + 1), 0.0)
            await platform.launch("e/1", old)
            await platform.delete(old, 0.0)
            await only(site, 0, other_than=old)
            assert other in (await site.nodes())[1]
            await close(platform)

        self._run(look)

    def test_a_cordoned_name_does_not_come_back(self) -> None:
        """Whoever comes for the place of a cordoned node, dead or alive, has another name."""

        async def look(site: Site) -> None:
            platform = site.open()
            for place, effect in ((0, "e/1"), (1, "e/2")):
                old = await only(site, place)
                await platform.cordon(old, "it is broken")
                await platform.cordon(old, "it is broken")
                if place:
                    await site.kill(old)
                await platform.launch(effect, old)
                await platform.delete(old, 0.0)
                new = await only(site, place, other_than=old)
                assert new.node != old.node
            await close(platform)

        self._run(look)

    def test_an_end_is_told_to_every_master(self) -> None:
        """Whoever watches hears of it; so does one that begins to watch later.

        Where a name may come back, with the pid of the agent: without it, the end of a name that has had two lives is
        not believed, as it may be a repeat.
        """

        async def look(site: Site) -> None:
            platform = site.open()
            old = await only(site, 0)
            async with watching(platform) as told:
                await told.first(lambda happening: isinstance(happening, CapacityChanged))
                await site.kill(old)
                await told.first(lambda happening: is_end(happening, old))
            later = site.open()
            async with watching(later) as told:
                found = await told.first(lambda happening: is_end(happening, old))
                assert isinstance(found, NodeEnded) and found.reason
            await close(platform, later)

        self._run(look)

    def test_no_machine_is_a_refusal_with_a_reason(self) -> None:
        """Where capacity is bounded: 0 is told, a launch is refused, and what was launched before is not lost."""

        async def look(site: Site) -> None:
            platform = site.open()
            old = await only(site, 0)
            try:
                await site.fill_up()
            except NotImplementedError:
                return
            assert await platform.capacity() == 0
            async with watching(platform) as told:
                await told.first(lambda happening: happening == CapacityChanged(free=0))
            try:
                await platform.launch("e/1", old)
            except Refused as error:
                assert str(error), "a refusal without a reason"
            else:
                raise AssertionError("a launch without a free machine was taken")
            assert old in (await site.nodes())[0]
            await close(platform)

        self._run(look)

    def test_an_absence_is_no_answer(self) -> None:
        """A platform that is away raises ``Unreachable`` from everything, and nothing else."""

        async def look(site: Site) -> None:
            platform = site.open()
            old = await only(site, 0)
            await site.go_away()
            for ask in (
                platform.capacity(),
                platform.launch("e/1", old),
                platform.delete(old, 0.0),
                platform.cordon(old, "x"),
                _drain(platform.watch()),
            ):
                try:
                    await ask
                except Unreachable as error:
                    assert str(error), "an error without words"
                else:
                    raise AssertionError("a platform that is away answered")
            await close(platform)

        self._run(look)

    def _run(self, look: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            async with asyncio.timeout(PATIENCE_S), self.site() as site:
                await look(site)

        asyncio.run(run())


class Told:
    """What a watch has told, for tests.

    Args:
        stream: of happenings.
    """

    def __init__(self, stream: AsyncIterator[Happening]) -> None:
        self._stream = stream

    async def first(self, wanted: Callable[[Happening], bool]) -> Happening:
        """The next happening that is wanted."""
        async for happening in self._stream:
            if wanted(happening):
                return happening
        raise AssertionError("the watch ended, and did not say why")


@contextlib.asynccontextmanager
async def watching(platform: Platform) -> AsyncIterator[Told]:
    """Watch for a while."""
    stream = platform.watch()
    try:
        yield Told(stream)
    finally:
        end = getattr(stream, "aclose", None)
        if end is not None:
            await end()


async def only(site: Site, place: int, other_than: Occupant | None = None) -> Occupant:
    """The one node of a place, once it is one, and not a certain one."""

    async def found() -> bool:
        nodes = (await site.nodes()).get(place, [])
        return len(nodes) == 1 and nodes[0] != other_than

    await until(found, f"one node at place {place}")
    return (await site.nodes())[place][0]


async def missing(site: Site, node: Occupant) -> bool:
    """Whether a node is gone."""
    return all(node not in there for there in (await site.nodes()).values())


async def until(so: Callable[[], Coroutine[Any, Any, bool]], what: str) -> None:
    """Wait until something is so."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_S / 2
    while not await so():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.02)


def is_end(happening: Happening, node: Occupant) -> bool:
    """Whether that is the end of a certain node."""
    if not isinstance(happening, NodeEnded) or happening.node != node.node:
        return False
    return node.pid == 0 or happening.pid in (0, node.pid)


async def close(*platforms: Platform) -> None:
    """Close adapters."""
    for platform in platforms:
        await platform.close()


async def _drain(stream: AsyncIterator[Happening]) -> None:
    async for _ in stream:
        pass


class MemoryPlatform:
    """A platform that launches nothing but remembers what it was asked: for tests of what asks platforms.

    Attributes:
        asked: every call, in order, as ``(method, what)``.
        free: machines; None: no bound.
        away: it does not answer.
        refusal: why it refuses launches; empty: it does not.
    """

    def __init__(self, free: int | None = None) -> None:
        self.asked: list[tuple[str, str]] = []
        self.free = free
        self.away = False
        self.refusal = ""
        self._effects: set[str] = set()
        self._news: asyncio.Queue[Happening] = asyncio.Queue()

    @property
    def launched(self) -> list[str]:
        """The effects of all launches, each once."""
        return sorted(self._effects)

    def tell(self, happening: Happening) -> None:
        """Have the watch tell something."""
        self._news.put_nowait(happening)

    async def capacity(self) -> int | None:
        """See ``Platform``."""
        self._hear("capacity", "")
        return self.free

    async def launch(self, effect: str, place: Occupant) -> None:
        """See ``Platform``."""
        self._hear("launch", f"{place.node}@{place.ordinal}")
        if effect in self._effects:
            return
        if self.refusal or self.free == 0:
            raise Refused(self.refusal or "no machine is free")
        if self.free is not None:
            self.free -= 1
        self._effects.add(effect)

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``Platform``."""
        self._hear("delete", f"{place.node} in {grace_s:g} s")

    async def cordon(self, place: Occupant, reason: str) -> None:
        """See ``Platform``."""
        self._hear("cordon", place.node)

    async def watch(self) -> AsyncIterator[Happening]:
        """See ``Platform``."""
        self._hear("watch", "")
        yield CapacityChanged(free=self.free)
        while True:
            yield await self._news.get()

    async def close(self) -> None:
        """See ``Platform``."""
        self.asked.append(("close", ""))

    def _hear(self, method: str, what: str) -> None:
        self.asked.append((method, what))
        if self.away:
            raise Unreachable("it is away")

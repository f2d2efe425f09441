"""The local platform: options, machines, and the conformance tests over its socket."""

import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ftcore.errors import Refused, UsageError
from ftcore.platforms import abilities_of, check_url, open_platform, schemes
from ftcore.platforms.local import LocalServer
from ftcore.platforms.machines import Machines
from ftcore.platforms.options import LocalOptions, parse
from ftcore.ports import CapacityChanged, LaunchRequest, NodeEnded, Occupant, Platform, PlatformEvent
from ftcore.testing.platform import PlatformContract


def test_options_are_read() -> None:
    """Every option of the module's table is read, with units."""
    url = "local:?capacity=1&delay=500ms&repair=1m&fill=no&preempt=node1@30s,node2@1h&grace=2"
    assert parse(url) == LocalOptions(
        capacity=1, delay_s=0.5, repair_s=60, fill=False, preempt=(("node1", 30), ("node2", 3600)), grace_s=2
    )
    assert parse("local:") == LocalOptions() and parse("local:///a/b.sock").path == "/a/b.sock"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("local:?capacty=1", "did you mean capacity"),
        ("local:?capacity=-1", "a number of machines"),
        ("local:?delay=soon", "a time such as 5s"),
        ("local:?fill=maybe", "yes or no"),
        ("local:?preempt=node1", "NODE@TIME"),
        ("local:?capacity", "OPTION=VALUE"),
        ("local://host", "no host"),
        ("lokal:", "did you mean local"),
        ("lsf", "known are local:"),
    ],
)
def test_wrong_options_are_refused(url: str, said: str) -> None:
    """Errors have the text found, the text expected, and a suggestion."""
    with pytest.raises(UsageError, match=said):
        check_url(url)


def test_abilities_are_known_before_the_start() -> None:
    """A platform replaces nodes, unless it can never have a free machine."""
    assert abilities_of("") == () and abilities_of("local:") == ("replace",)
    assert abilities_of("local:?capacity=0") == () and abilities_of("local:?capacity=0&repair=1s") == ("replace",)
    assert schemes()[0] == "local"
    with pytest.raises(UsageError, match="--local-nodes"):
        open_platform("local:", "job")


class World:
    """Machines with simulated processes and a clock set by the test."""

    def __init__(self, **options: object) -> None:
        self.machines = Machines(2, "node", LocalOptions(**options))  # type: ignore[arg-type]
        self.now = 0.0
        self.pids = 100
        self.turn(0.0)

    def turn(self, seconds: float) -> None:
        self.now += seconds
        for place in self.machines.due(self.now):
            self.pids += 1
            self.machines.started(place, self.pids)

    def node(self, place: int) -> Occupant:
        found = self.machines.places[place]
        return Occupant(node=found.name, pid=found.pid, ordinal=place)

    def names(self) -> list[str]:
        return [place.name if place.pid else "" for place in self.machines.places]


def test_a_killed_agent_is_restarted() -> None:
    """A killed agent is restarted under its name after the delay; a request has no further effect."""
    world = World(delay_s=5.0)
    world.turn(5.0)
    old = world.node(1)
    world.machines.lost(old.pid, world.now)
    assert world.machines.launch(LaunchRequest(effect="e", replaces=old), world.now) == [] and world.names() == [
        "node0",
        "",
    ]
    world.turn(4.9)
    assert world.names() == ["node0", ""] and world.machines.next_due() == 10.0
    world.turn(0.2)
    new = world.node(1)
    assert world.names() == ["node0", "node1"] and new.pid != old.pid
    assert world.machines.launch(LaunchRequest(effect="e2", replaces=old), world.now) == [], "somebody has come since"
    assert world.node(1) == new


def test_without_filling_only_orders_bring_nodes() -> None:
    """``fill=no``: a place stays empty until the master requests a node for it."""
    world = World(fill=False)
    old = world.node(1)
    world.machines.lost(old.pid, world.now)
    world.turn(1000.0)
    assert world.names() == ["node0", ""]
    world.machines.launch(LaunchRequest(effect="e", replaces=old), world.now)
    world.turn(0.0)
    assert world.names() == ["node0", "node1"]


def test_machines_are_counted() -> None:
    """A lost machine is replaced by a spare one; the next waits for a repair."""
    world = World(capacity=1, repair_s=60.0)
    for place, spare in ((0, 0), (1, 0)):
        world.machines.lost(world.node(place).pid, world.now)
        world.turn(10.0)
        assert world.machines.capacity() == spare
    assert world.names() == ["node0", ""]
    with pytest.raises(Refused, match="no machine is free; the next repair ends in 40 s"):
        world.machines.launch(LaunchRequest(effect="e", replaces=Occupant(node="node1")), world.now)
    world.turn(40.0)
    assert world.names() == ["node0", "node1"]


def test_an_evicted_nodes_machine_is_not_given_to_its_successor() -> None:
    """The successor of an evicted node gets a spare machine and a new name; the old machine is repaired."""
    world = World(capacity=1, repair_s=60.0)
    old = world.node(0)
    world.machines.cordon(old)
    world.machines.launch(LaunchRequest(effect="e", replaces=old), world.now)
    assert world.machines.capacity() == 0 and world.machines.find(old) == old.pid
    world.turn(0.0)
    assert world.names() == ["node0.1", "node1"] and old.pid in world.machines.pids
    world.machines.left(old.pid, world.now)
    assert old.pid not in world.machines.pids and world.machines.capacity() == 0
    world.turn(60.0)
    assert world.machines.capacity() == 1


def test_an_agent_under_a_banned_name_is_ended() -> None:
    """An agent that filled a place before its name was banned is ended, as only the platform knows it."""
    world = World()
    old = world.node(0)
    world.machines.lost(old.pid, world.now)
    world.turn(0.0)
    filler = world.node(0)
    world.machines.cordon(old)
    assert world.machines.launch(LaunchRequest(effect="e", replaces=old), world.now) == [filler.pid]
    world.turn(0.0)
    assert world.names() == ["node0.1", "node1"]


def test_additional_nodes_fill_empty_places_first() -> None:
    """Additional nodes get new names, once per effect: the job may have released the old names for good."""
    world = World(capacity=2)
    world.machines.left(world.node(1).pid, world.now)
    assert world.machines.capacity() == 3
    with pytest.raises(Refused, match="4 machines requested, 3 free"):
        world.machines.launch(LaunchRequest(effect="e", count=4), world.now)
    for _ in range(2):
        assert world.machines.launch(LaunchRequest(effect="e", count=2), world.now) == []
    world.turn(0.0)
    assert world.names() == ["node0", "node1.1", "node2"] and world.machines.capacity() == 1


def test_an_unknown_node_is_refused() -> None:
    """A launch for an unknown node is refused."""
    with pytest.raises(Refused, match="no node of this platform is called x"):
        World().machines.launch(LaunchRequest(effect="e", replaces=Occupant(node="x")), 0.0)


class LocalSite:
    """The machines behind their socket, with numbers as processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._machines = Machines(2, "node", LocalOptions(capacity=4))
        self._server = LocalServer(str(path), self)
        self._ended: list[NodeEnded] = []
        self._pids = 100
        self._turn()

    async def start(self) -> None:
        await self._server.start()

    async def go_away(self) -> None:
        await self._server.close()

    def open(self) -> Platform:
        return open_platform(f"local://{self._path}", "job")

    async def nodes(self) -> dict[int, list[Occupant]]:
        found: dict[int, list[Occupant]] = {0: [], 1: []}
        for pid in self._machines.pids:
            name = self._machines.name_of(pid)
            place = int(name.removeprefix("node").partition(".")[0])
            found.setdefault(place, []).append(Occupant(node=name, pid=pid, ordinal=place))
        return found

    async def kill(self, node: Occupant) -> None:
        self._end(node.pid)

    async def fill_up(self) -> None:
        self._machines.spare = 0

    def _turn(self) -> None:
        for place in self._machines.due(0.0):
            self._pids += 10
            self._machines.started(place, self._pids)

    def _end(self, pid: int) -> None:
        name = self._machines.name_of(pid)
        if name:
            self._machines.lost(pid, 0.0)
            self._ended.append(NodeEnded(node=name, reason="killed", pid=pid))
            self._server.publish(self._ended[-1])
            self._turn()

    def capacity(self) -> int | None:
        return self._machines.capacity()

    def launch(self, request: LaunchRequest) -> None:
        for pid in self._machines.launch(request, 0.0):
            self._end(pid)
        self._turn()
        self._server.publish(CapacityChanged(free=self._machines.capacity()))

    def delete(self, place: Occupant, grace_s: float) -> None:
        self._end(self._machines.find(place))

    def cordon(self, place: Occupant, reason: str) -> None:
        self._machines.cordon(place)

    def happened(self) -> list[PlatformEvent]:
        return list(self._ended)


class TestLocalPlatform(PlatformContract):
    @contextlib.asynccontextmanager
    async def site(self) -> AsyncIterator[LocalSite]:
        with tempfile.TemporaryDirectory(prefix="ft") as directory:
            there = LocalSite(Path(directory) / "s")
            await there.start()
            try:
                yield there
            finally:
                await there.go_away()

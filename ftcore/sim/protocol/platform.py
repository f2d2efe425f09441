"""Simulated platform: starts an agent for every place of the job, and a new one when it ends.

Launches take time, may lack capacity, and may use the host on which the last agent failed. Events of nodes are
delivered at least once, but late, repeated and in any order, and possibly after another agent has the name.
"""

import asyncio
import random
from collections.abc import AsyncIterator

from ftcore.errors import Refused, Unreachable
from ftcore.ports import (
    CapacityChanged,
    LaunchRequest,
    MaintenanceAnnounced,
    MaintenanceOver,
    NodeEnded,
    NodeWarned,
    Occupant,
    PlatformEvent,
)
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.node import Node
from ftcore.states.job import ENDED

PAST_ENDS_MAX = 20
"""Most past ends of nodes that are repeated to a new watcher."""

COUNT_NS = ns(1.0)

ANSWER_S = 2.5
"""Longest time for a request."""


class PlatformWorld:
    """Places, each with at most one agent.

    Args:
        sim: the environment.
    """

    def __init__(self, sim: Environment) -> None:
        self.sim, self.chance = sim, sim.chance
        wanted = sim.options.spec.nodes_max + sim.options.standing_by
        self._nodes: list[Node | None] = [None] * wanted
        self._leaving: list[Node] = []
        self.all_nodes: list[Node] = []
        self._names = [f"node{place}" for place in range(wanted)]
        self._lives = [0] * wanted
        self.returns_s = (0.2, 3.0)
        self._effects: dict[str, bool] = {}
        self._pinned = False
        self._delivery_chance = random.Random(f"told {sim.options.seed}")  # a separate stream, as for the job's shape
        self._watchers: list[SimPlatform] = []
        self._past_ends: list[NodeEnded] = []
        self._maintenance: dict[int, MaintenanceAnnounced | MaintenanceOver] = {}
        self._free = -1

    def begin(self) -> None:
        """Launch an agent for every place."""
        self._pinned = self.chance.random() < 0.3
        if self.sim.options.counted:
            self._count()
        for place in range(len(self._nodes)):
            self._launch_later(place, self.chance.uniform(0, 2.0), self.sim.hosts[place])

    def nodes(self) -> list[Node]:
        """All running agents."""
        return [*(node for node in self._nodes if node is not None), *self._leaving]

    def at(self, place: int) -> Node | None:
        """The running agent of a place."""
        return self._nodes[place]

    def ended(self, node: Node) -> None:
        """An agent's process has ended: launch another one while the run lasts."""
        if node not in self.nodes():
            return
        if self.sim.options.watched:
            ended = NodeEnded(node=node.node, reason="its agent ended", pid=self._pid(node))
            self._past_ends = [*self._past_ends[1 - PAST_ENDS_MAX :], ended]
            self._broadcast(ended)
        if node in self._leaving:
            self._leaving.remove(node)  # its place is filled, or a launch is scheduled
            return
        place = self._nodes.index(node)
        self._nodes[place] = None
        if node.outcome == "released":
            self._rename(place)
        self._launch_later(place, self._relaunch_delay_s(), node.host if self.chance.random() < 0.6 else None)

    # -- events for masters

    def watch(self, watcher: "SimPlatform") -> None:
        """Add a watcher; it receives the current state and past ends."""
        self._watchers = [other for other in self._watchers if other.process.alive]
        if watcher not in self._watchers:
            self._watchers.append(watcher)
        if not self.sim.options.platform:
            return
        news: list[PlatformEvent] = [CapacityChanged(free=self._free if self.sim.options.counted else None)]
        for event in (*news, *self._past_ends, *self._maintenance.values()):
            self._deliver(watcher, event)

    def warn(self, node: Node, within_s: float) -> None:
        """Announce the end of a node."""
        if self.sim.options.watched:
            self._broadcast(NodeWarned(node=node.node, reason="preempted", within_s=within_s, pid=self._pid(node)))

    def maintain(self, node: Node, length_s: float) -> None:
        """Announce maintenance of a node, and its end later."""
        if not self.sim.options.watched:
            return
        name, pid = node.node, self._pid(node)
        announced = MaintenanceAnnounced(node=name, reason="simulated", pid=pid)

        def report(event: MaintenanceAnnounced | MaintenanceOver) -> None:
            if self._maintenance.get(node.pid) in (None, announced):  # else another one was announced meanwhile
                self._maintenance[node.pid] = event
                self._broadcast(event)

        self._maintenance.pop(node.pid, None)
        report(announced)
        self.sim.clock.after(ns(length_s), lambda: report(MaintenanceOver(node=name, pid=pid)))

    def _pid(self, node: Node) -> int:
        return node.pid if self.sim.options.watched == "processes" else 0

    def _broadcast(self, event: PlatformEvent) -> None:
        for watcher in self._watchers:
            self._deliver(watcher, event)

    def _deliver(self, watcher: "SimPlatform", event: PlatformEvent) -> None:
        """Deliver an event soon or late, and sometimes twice."""
        chance = self._delivery_chance
        late = chance.random() < 0.2
        delays = [chance.uniform(3.0, 25.0) if late else chance.uniform(0.01, 1.0)]
        if chance.random() < 0.2:
            delays.append(chance.uniform(0.01, 25.0))
        for delay in delays:
            self.sim.clock.after(ns(delay), lambda: watcher.deliver(self._as_of_now(event)))

    def _as_of_now(self, event: PlatformEvent) -> PlatformEvent:
        """Replace a capacity, and a report about maintenance, by the current one: the last report must be right."""
        if isinstance(event, CapacityChanged) and event.free is not None:
            return CapacityChanged(free=self._free)
        if isinstance(event, MaintenanceAnnounced | MaintenanceOver):
            known = reversed(self._maintenance.values())
            return next((found for found in known if (found.node, found.pid) == (event.node, event.pid)), event)
        return event

    def _count(self) -> None:
        """Report changes of the number of free machines."""
        free = len(self._free_hosts())
        if free != self._free:
            self._free = free
            self._broadcast(CapacityChanged(free=free))
        self.sim.clock.after(COUNT_NS, self._count)

    # -- orders

    def handle(self, process: Process) -> "SimPlatform":
        """An adapter for one master."""
        return SimPlatform(self, process)

    def launch(self, effect: str, occupant: Occupant) -> None:
        """Replace the node of a place; a repeated request gets the same answer. Raises ``Refused``."""
        if effect not in self._effects:
            self._effects[effect] = self.sim.conditions.fails()
            if not self._effects[effect]:
                self._replace(occupant)
        if self._effects[effect]:
            raise Refused("simulated: no capacity")

    def _replace(self, occupant: Occupant) -> None:
        if occupant.node not in self._names:
            return
        place = self._names.index(occupant.node)
        node = self._nodes[place]
        if node is not None and node.pid != occupant.pid:
            return  # replaced meanwhile
        self._rename(place)
        self.sim.conditions.harm(f"the platform replaces {occupant.node}")
        if node is not None:
            self._nodes[place] = None
            self._leaving.append(node)
        self._launch_later(place, self.chance.uniform(0.5, 15.0) if node is not None else self._relaunch_delay_s())

    def delete(self, occupant: Occupant, grace_s: float) -> None:
        """End a node."""
        for node in self.nodes():
            if (node.node, node.pid) == (occupant.node, occupant.pid):
                node.preempted(grace_s)

    # -- places

    def _relaunch_delay_s(self) -> float:
        delay = self.chance.uniform(*self.returns_s)
        if self.sim.conditions.on and self.chance.random() < 0.2:
            return self.chance.uniform(5.0, 40.0)  # no capacity
        return delay

    def _rename(self, place: int) -> None:
        self._lives[place] += 1
        self._names[place] = f"node{place}.{self._lives[place]}"

    def _launch_later(self, place: int, delay_s: float, host: SimMachine | None = None) -> None:
        self.sim.clock.after(ns(delay_s), lambda: self._launch(place, host))

    def _launch(self, place: int, host: SimMachine | None) -> None:
        sim = self.sim
        if self._nodes[place] is not None:
            return
        if sim.oracle.phase in ENDED:  # retry, as a late agent may begin another run
            self._launch_later(place, 1.0)
            return
        free = self._free_hosts()
        if host is None or host not in free:
            host = self.chance.choice(free) if free else None
        if host is None:
            self._launch_later(place, 1.0)
            return
        ordinal = place if self._pinned else None
        self._nodes[place] = node = Node(sim, host, self._names[place], ordinal, self.ended)
        self.all_nodes.append(node)
        sim.trace(f"{self._names[place]} starts on {host.name}")

    def _free_hosts(self) -> list[SimMachine]:
        taken = {node.host.name for node in self.nodes()}
        return [other for other in self.sim.hosts if other.up and other.name not in taken]


class SimPlatform:
    """Adapter of the platform for one master; see ``ports.Platform``. Sometimes it does not answer.

    Args:
        platform: the platform.
        process: the master's process.
    """

    def __init__(self, platform: PlatformWorld, process: Process) -> None:
        self._platform, self.process = platform, process
        self._events: asyncio.Queue[PlatformEvent] = asyncio.Queue()
        self._conditions = platform.sim.conditions

    async def _answer(self) -> None:
        await self._conditions.sleep(ANSWER_S)
        if self._conditions.fails():
            raise Unreachable("simulated: the platform does not answer")

    async def capacity(self) -> int | None:
        """See ``ports.Platform``."""
        return None

    async def launch(self, request: LaunchRequest) -> None:
        """See ``ports.Platform``; the master replaces nodes, and requests no additional ones."""
        await self._answer()
        assert request.replaces is not None
        self._platform.launch(request.effect, request.replaces)

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``ports.Platform``."""
        await self._answer()
        self._platform.delete(place, grace_s)

    async def cordon(self, place: Occupant, reason: str) -> None:
        """See ``ports.Platform``; has no effect, as hosts are chosen at random."""
        await self._answer()

    async def watch(self) -> AsyncIterator[PlatformEvent]:
        """See ``ports.Platform``."""
        self._platform.watch(self)
        while True:
            yield await self._events.get()
            if self._conditions.fails():
                raise Unreachable("simulated: the watch broke")

    def deliver(self, event: PlatformEvent) -> None:
        """Deliver an event."""
        self.process.wake_for(lambda: self._events.put_nowait(event))

    async def close(self) -> None:
        """See ``ports.Platform``."""

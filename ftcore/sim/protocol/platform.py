"""The platform: starts an agent for every place of the job and another one when it ends.

It takes its time, may have no room, and may give back the very host on which the last one failed. What happens to
nodes it tells as the port ``Platform`` has it: nothing is kept back for ever, but it comes late, more than once and in
any order, and may be told of a name that another agent has by then.
"""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from ftcore.errors import Refused, Unreachable
from ftcore.ports import CapacityChanged, Happening, NodeEnded, NodeWarned, Occupant
from ftcore.sim.protocol.clock import ns
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.node import Node
from ftcore.states.job import ENDED

if TYPE_CHECKING:
    from ftcore.sim.protocol.simulation import Simulation

GONE_MAX = 20
"""So many ends are told again to a master that begins to watch."""

COUNT_NS = ns(1.0)

ANSWER_S = 2.5
"""How long it takes for one request at most."""


class PlatformWorld:
    """Places, each with at most one agent.

    Args:
        sim: the simulation.
    """

    def __init__(self, sim: "Simulation") -> None:
        self.sim, self.chance = sim, sim.chance
        wanted = sim.options.spec.nodes_max + sim.options.standing_by
        self._nodes: list[Node | None] = [None] * wanted
        self._leaving: list[Node] = []
        self.ever: list[Node] = []
        self._names = [f"node{place}" for place in range(wanted)]
        self._lives = [0] * wanted
        self.returns_s = (0.2, 3.0)
        self._effects: dict[str, bool] = {}
        self._pinned = self.chance.random() < 0.3
        self._telling = random.Random(f"told {sim.options.seed}")  # a stream of its own, as that of the job's shape
        self._watchers: list[SimPlatform] = []
        self._gone: list[NodeEnded] = []
        self._free = -1
        if sim.options.counted:
            self._count()
        for place in range(wanted):
            sim.clock.after(ns(self.chance.uniform(0, 2.0)), lambda p=place: self._launch(p, sim.hosts[p]))  # type: ignore[misc]

    def nodes(self) -> list[Node]:
        """All agents that live."""
        return [*(node for node in self._nodes if node is not None), *self._leaving]

    def at(self, place: int) -> Node | None:
        """The agent of a place, if one lives."""
        return self._nodes[place]

    def ended(self, node: Node) -> None:
        """An agent's process is gone: another one follows, while a run lives."""
        if node not in self.nodes():
            return
        if self.sim.options.watched:
            ended = NodeEnded(node=node.node, reason="its agent ended", pid=self._pid(node))
            self._gone = [*self._gone[1 - GONE_MAX :], ended]
            self._tell(ended)
        if node in self._leaving:
            self._leaving.remove(node)  # another one came for its place, or is on its way
            return
        place = self._nodes.index(node)
        self._nodes[place] = None
        if node.outcome == "released":
            self._rename(place)
        self._launch_later(place, self._returns(), node.host if self.chance.random() < 0.6 else None)

    # -- what masters are told

    def watch(self, watcher: "SimPlatform") -> None:
        """A master that begins to watch is told what is so, and what others may have missed."""
        self._watchers = [other for other in self._watchers if other.process.alive]
        if watcher not in self._watchers:
            self._watchers.append(watcher)
        if not self.sim.options.platform:
            return
        news: list[Happening] = [CapacityChanged(free=self._free if self.sim.options.counted else None)]
        for happening in (*news, *self._gone):
            self._tell_one(watcher, happening)

    def warn(self, node: Node, within_s: float) -> None:
        """A node will be taken away."""
        if self.sim.options.watched:
            self._tell(NodeWarned(node=node.node, reason="preempted", within_s=within_s, pid=self._pid(node)))

    def _pid(self, node: Node) -> int:
        return node.pid if self.sim.options.watched == "processes" else 0

    def _tell(self, happening: Happening) -> None:
        for watcher in self._watchers:
            self._tell_one(watcher, happening)

    def _tell_one(self, watcher: "SimPlatform", happening: Happening) -> None:
        """Soon, or when a watch that broke has begun anew; and now and then once more."""
        chance = self._telling
        late = chance.random() < 0.2
        delays = [chance.uniform(3.0, 25.0) if late else chance.uniform(0.01, 1.0)]
        if chance.random() < 0.2:
            delays.append(chance.uniform(0.01, 25.0))
        for delay in delays:
            self.sim.clock.after(ns(delay), lambda: watcher.told(self._as_of_now(happening)))

    def _as_of_now(self, happening: Happening) -> Happening:
        """What was so and is no more is nobody's end: of capacity the last word has to be right."""
        if isinstance(happening, CapacityChanged) and happening.free is not None:
            return CapacityChanged(free=self._free)
        return happening

    def _count(self) -> None:
        """Look how many machines are free."""
        free = len(self._room())
        if free != self._free:
            self._free = free
            self._tell(CapacityChanged(free=free))
        self.sim.clock.after(COUNT_NS, self._count)

    # -- orders

    def handle(self, process: Process) -> "SimPlatform":
        """The platform as one master has it."""
        return SimPlatform(self, process)

    def launch(self, effect: str, occupant: Occupant) -> None:
        """Have a node come for a place; the same order again is answered as before. Raises ``Refused``."""
        if effect not in self._effects:
            self._effects[effect] = self.sim.injector.fails()
            if not self._effects[effect]:
                self._give_up(occupant)
        if self._effects[effect]:
            raise Refused("made up: no room")

    def _give_up(self, occupant: Occupant) -> None:
        if occupant.node not in self._names:
            return
        place = self._names.index(occupant.node)
        node = self._nodes[place]
        if node is not None and node.pid != occupant.pid:
            return  # filled anew since
        self._rename(place)
        self.sim.injector.harm(f"the platform replaces {occupant.node}")
        if node is not None:
            self._nodes[place] = None
            self._leaving.append(node)
        self._launch_later(place, self.chance.uniform(0.5, 15.0) if node is not None else self._returns())

    def delete(self, occupant: Occupant, grace_s: float) -> None:
        """End a node that was given up."""
        for node in self.nodes():
            if (node.node, node.pid) == (occupant.node, occupant.pid):
                node.preempted(grace_s)

    # -- places

    def _returns(self) -> float:
        delay = self.chance.uniform(*self.returns_s)
        if self.sim.injector.on and self.chance.random() < 0.2:
            return self.chance.uniform(5.0, 40.0)  # no room
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
        if sim.oracle.phase in ENDED:  # nothing to launch for, unless an agent that came late begins another run
            self._launch_later(place, 1.0)
            return
        free = self._room()
        if host is None or host not in free:
            host = self.chance.choice(free) if free else None
        if host is None:
            self._launch_later(place, 1.0)
            return
        ordinal = place if self._pinned else None
        self._nodes[place] = node = Node(sim, host, self._names[place], ordinal)
        self.ever.append(node)
        sim.trace(f"{self._names[place]} starts on {host.name}")

    def _room(self) -> list[SimMachine]:
        taken = {node.host.name for node in self.nodes()}
        return [other for other in self.sim.hosts if other.up and other.name not in taken]


class SimPlatform:
    """The platform as one master has it; see ``ports.Platform``. Now and then it does not answer.

    Args:
        platform: the platform.
        process: whose handle it is.
    """

    def __init__(self, platform: PlatformWorld, process: Process) -> None:
        self._platform, self.process = platform, process
        self._told: asyncio.Queue[Happening] = asyncio.Queue()
        self._injector = platform.sim.injector

    async def _answer(self) -> None:
        await self._injector.sleep(ANSWER_S)
        if self._injector.fails():
            raise Unreachable("made up: the platform does not answer")

    async def capacity(self) -> int | None:
        """See ``ports.Platform``."""
        return None

    async def launch(self, effect: str, place: Occupant) -> None:
        """See ``ports.Platform``."""
        await self._answer()
        self._platform.launch(effect, place)

    async def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``ports.Platform``."""
        await self._answer()
        self._platform.delete(place, grace_s)

    async def cordon(self, place: Occupant, reason: str) -> None:
        """See ``ports.Platform``: a host is chosen anew each time."""
        await self._answer()

    async def watch(self) -> AsyncIterator[Happening]:
        """See ``ports.Platform``."""
        self._platform.watch(self)
        while True:
            yield await self._told.get()
            if self._injector.fails():
                raise Unreachable("made up: the watch broke")

    def told(self, happening: Happening) -> None:
        """Something happened."""
        self.process.wake_for(lambda: self._told.put_nowait(happening))

    async def close(self) -> None:
        """See ``ports.Platform``."""

"""The platform: starts an agent for every place of the job and another one when it ends.

It takes its time, may have no room, and may give back the very host on which the last one failed. What happens to
nodes it tells as the port ``Platform`` has it: nothing is kept back for ever, but it comes late, more than once and in
any order, and may be told of a name that another agent has by then.
"""

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ftcore.ports import CapacityChanged, Happening, NodeEnded, NodeWarned, Occupant
from ftcore.sim.agents import SimAgent
from ftcore.sim.clock import ns
from ftcore.sim.hosts import Host
from ftcore.states.job import ENDED

if TYPE_CHECKING:
    from ftcore.sim.protocol import Simulation
    from ftcore.sim.watcher import Watcher

GONE_MAX = 20
"""So many ends are told again to a master that begins to watch."""

COUNT_NS = ns(1.0)

LEAVE_S = 30.0
"""What a node that the job tells to leave has to do so."""


class Platform:
    """Places, each with at most one agent.

    Args:
        sim: the simulation.
    """

    def __init__(self, sim: "Simulation") -> None:
        self.sim, self.chance = sim, sim.chance
        wanted = sim.options.spec.nodes_max + sim.options.standing_by
        self._agents: list[SimAgent | None] = [None] * wanted
        self._leaving: list[SimAgent] = []
        self._names = [f"node{place}" for place in range(wanted)]
        self._lives = [0] * wanted
        self.returns_s = (0.2, 3.0)
        self._effects: dict[str, tuple[bool, str]] = {}
        self._pinned = self.chance.random() < 0.3
        self._telling = random.Random(f"told {sim.options.seed}")  # a stream of its own, as that of the job's shape
        self._watchers: list[Watcher] = []
        self._gone: list[NodeEnded] = []
        self._free = -1
        if sim.options.counted:
            self._count()
        for place in range(wanted):
            sim.clock.after(ns(self.chance.uniform(0, 2.0)), lambda p=place: self._launch(p, sim.hosts[p]))  # type: ignore[misc]

    def agents(self) -> list[SimAgent]:
        """All agents that live."""
        return [*(agent for agent in self._agents if agent is not None), *self._leaving]

    def at(self, place: int) -> SimAgent | None:
        """The agent of a place, if one lives."""
        return self._agents[place]

    def ended(self, agent: SimAgent) -> None:
        """An agent's process is gone: another one follows, while a run lives."""
        if agent not in self.agents():
            return
        if self.sim.options.watched:
            ended = NodeEnded(node=agent.node, reason="its agent ended", pid=self._pid(agent))
            self._gone = [*self._gone[1 - GONE_MAX :], ended]
            self._tell(ended)
        if agent in self._leaving:
            self._leaving.remove(agent)  # another one came for its place, or is on its way
            return
        place = self._agents.index(agent)
        self._agents[place] = None
        if agent.outcome == "released":
            self._rename(place)
        delay = self.chance.uniform(*self.returns_s)
        if self.sim.trouble.on and self.chance.random() < 0.2:
            delay = self.chance.uniform(5.0, 40.0)  # no room
        self._launch_later(place, delay, agent.host if self.chance.random() < 0.6 else None)

    # -- what masters are told

    def watch(self, watcher: "Watcher") -> None:
        """A new master is told what is so, and what others may have missed."""
        self._watchers = [other for other in self._watchers if other.watches]
        self._watchers.append(watcher)
        news: list[Happening] = [CapacityChanged(free=self._free if self.sim.options.counted else None)]
        for happening in (*news, *self._gone):
            self._tell_one(watcher, happening)

    def warn(self, agent: SimAgent, within_s: float) -> None:
        """A node will be taken away."""
        if self.sim.options.watched:
            self._tell(NodeWarned(node=agent.node, reason="preempted", within_s=within_s, pid=self._pid(agent)))

    def _pid(self, agent: SimAgent) -> int:
        return agent.pid if self.sim.options.watched == "processes" else 0

    def _tell(self, happening: Happening) -> None:
        for watcher in self._watchers:
            self._tell_one(watcher, happening)

    def _tell_one(self, watcher: "Watcher", happening: Happening) -> None:
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

    def replace(self, effect: str, places: Sequence[Occupant], keep: bool) -> tuple[bool, str, int]:
        """Take or decline an order; the same one again is answered as before.

        Args:
            effect: the order.
            places: who is given up.
            keep: who is given up goes on until it is deleted.

        Returns:
            Whether it was taken, why not, and in how many nanoseconds that is told.
        """
        delay = ns(self.chance.uniform(0.05, 5.0))
        if effect not in self._effects:
            declined = self.sim.trouble.on and self.chance.random() < 0.2
            self._effects[effect] = (not declined, "no room" if declined else "")
            if not declined:
                for place in places:
                    self._give_up(place, keep)
        ok, reason = self._effects[effect]
        return ok, reason, delay

    def delete(self, places: Sequence[Occupant]) -> tuple[bool, str, int]:
        """End nodes that were kept; returns as ``replace``."""
        for agent in list(self._leaving):
            if (agent.node, agent.pid) in {(place.node, place.pid) for place in places}:
                self.sim.clock.after(ns(LEAVE_S), agent.kill)
        return True, "", ns(self.chance.uniform(0.05, 5.0))

    def _give_up(self, occupant: Occupant, keep: bool) -> None:
        if occupant.node not in self._names:
            return
        place = self._names.index(occupant.node)
        agent = self._agents[place]
        if agent is not None and agent.pid != occupant.pid:
            return  # filled anew since
        self._rename(place)
        self.sim.trouble.harm(f"the platform replaces {occupant.node}")
        if agent is not None and keep:
            self._agents[place] = None
            self._leaving.append(agent)
            self._launch_later(place, self.chance.uniform(0.5, 15.0))
        elif agent is not None:
            agent.kill()

    # -- places

    def _rename(self, place: int) -> None:
        self._lives[place] += 1
        self._names[place] = f"node{place}.{self._lives[place]}"

    def _launch_later(self, place: int, delay_s: float, host: Host | None = None) -> None:
        self.sim.clock.after(ns(delay_s), lambda: self._launch(place, host))

    def _launch(self, place: int, host: Host | None) -> None:
        sim = self.sim
        if self._agents[place] is not None:
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
        self._agents[place] = SimAgent(sim, host, self._names[place], ordinal)
        sim.trace(f"{self._names[place]} starts on {host.name} as {self._agents[place].core.incarnation}")  # type: ignore[union-attr]

    def _room(self) -> list[Host]:
        taken = {agent.host.name for agent in self.agents()}
        return [other for other in self.sim.hosts if other.up and other.name not in taken]

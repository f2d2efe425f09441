"""The platform: starts an agent for every place of the job and another one when it ends.

It takes its time, may have no room, and may give back the very host on which the last one failed.
"""

from typing import TYPE_CHECKING

from ftcore.commands import ReplaceNodes
from ftcore.sim.agents import SimAgent
from ftcore.sim.clock import ns
from ftcore.sim.hosts import Host
from ftcore.states.job import ENDED

if TYPE_CHECKING:
    from ftcore.sim.protocol import Simulation


class Platform:
    """Places, each with at most one agent.

    Args:
        sim: the simulation.
    """

    def __init__(self, sim: "Simulation") -> None:
        self.sim, self.chance = sim, sim.chance
        wanted = sim.options.spec.nodes_max + sim.options.standing_by
        self._agents: list[SimAgent | None] = [None] * wanted
        self._names = [f"node{place}" for place in range(wanted)]
        self._lives = [0] * wanted
        self.returns_s = (0.2, 3.0)
        self._effects: dict[str, tuple[bool, str]] = {}
        self._pinned = self.chance.random() < 0.3
        for place in range(wanted):
            sim.clock.after(ns(self.chance.uniform(0, 2.0)), lambda p=place: self._launch(p, sim.hosts[p]))  # type: ignore[misc]

    def agents(self) -> list[SimAgent]:
        """All agents that live."""
        return [agent for agent in self._agents if agent is not None]

    def at(self, place: int) -> SimAgent | None:
        """The agent of a place, if one lives."""
        return self._agents[place]

    def ended(self, agent: SimAgent) -> None:
        """An agent's process is gone: another one follows, while a run lives."""
        if agent not in self._agents:
            return
        place = self._agents.index(agent)
        self._agents[place] = None
        if agent.outcome == "released":
            self._rename(place)
        delay = self.chance.uniform(*self.returns_s)
        if self.sim.trouble.on and self.chance.random() < 0.2:
            delay = self.chance.uniform(5.0, 40.0)  # no room
        self._launch_later(place, delay, agent.host if self.chance.random() < 0.6 else None)

    def replace(self, effect: str, command: ReplaceNodes) -> tuple[bool, str, int]:
        """Take or decline an order; the same one again is answered as before.

        Returns:
            Whether it was taken, why not, and in how many nanoseconds that is told.
        """
        delay = ns(self.chance.uniform(0.05, 5.0))
        if effect not in self._effects:
            declined = self.sim.trouble.on and self.chance.random() < 0.2
            self._effects[effect] = (not declined, "no room" if declined else "")
            if not declined:
                for node in command.nodes:
                    self._give_up(node)
        ok, reason = self._effects[effect]
        return ok, reason, delay

    def _give_up(self, node: str) -> None:
        if node not in self._names:
            return
        place = self._names.index(node)
        agent = self._agents[place]
        self._rename(place)
        self.sim.trouble.harm(f"the platform replaces {node}")
        if agent is not None:
            agent.kill()

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
        taken = {agent.host.name for agent in self.agents()}
        free = [other for other in sim.hosts if other.up and other.name not in taken]
        if host is None or host not in free:
            host = self.chance.choice(free) if free else None
        if host is None:
            self._launch_later(place, 1.0)
            return
        ordinal = place if self._pinned else None
        self._agents[place] = SimAgent(sim, host, self._names[place], ordinal)
        sim.trace(f"{self._names[place]} starts on {host.name} as {self._agents[place].core.incarnation}")  # type: ignore[union-attr]

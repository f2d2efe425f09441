"""What a simulated master has to do with its platform; the rules are those of ``runtime/master/replacer.py``."""

from typing import TYPE_CHECKING

from ftcore.commands import PLATFORM, DeleteNodes, ReplaceNodes
from ftcore.engine.told import told_of
from ftcore.engine.turn import own_fact
from ftcore.events.node import PlatformAnswered
from ftcore.events.policy import AbilityDeclared
from ftcore.policies.base import Ability
from ftcore.ports import CapacityChanged, Happening, Occupant
from ftcore.sim.clock import ns
from ftcore.states.job import ENDED

if TYPE_CHECKING:
    from ftcore.sim.masters import SimMaster
    from ftcore.sim.protocol import Simulation

DECLARE_NS = ns(5.0)
"""Capacity that comes and goes is told no more often."""

SOURCE = "platform"


class Watcher:
    """Speaks with the platform, for one term.

    Args:
        sim: the simulation.
        master: who leads.
    """

    def __init__(self, sim: "Simulation", master: "SimMaster") -> None:
        self._sim, self._master = sim, master
        self._asked: set[str] = set()
        self._run = self._declared_at = 0
        self._able = True
        self._waits = False
        sim.platform.watch(self)

    @property
    def watches(self) -> bool:
        """It is still there to be told."""
        return self._master.alive and self._master.leading

    def attend(self) -> None:
        """Ask for what is ordered, and say what can be done; only where the state is that of the log."""
        state = self._master.state
        for action in list(state.actions.values()):
            if PLATFORM in action.waiting and action.effect not in self._asked:
                assert isinstance(action.command, ReplaceNodes | DeleteNodes)
                self._asked.add(action.effect)
                nodes = [state.nodes.get(name) for name in action.command.nodes]
                places = [Occupant(node=node.node, pid=node.pid) for node in nodes if node is not None]
                self._ask(action.effect, places, action.command)
        self._declare()

    def _ask(self, effect: str, places: list[Occupant], command: ReplaceNodes | DeleteNodes) -> None:
        platform = self._sim.platform
        if isinstance(command, DeleteNodes):
            ok, reason, delay = platform.delete(places)
        else:
            ok, reason, delay = platform.replace(effect, places, command.keep)
        answered = PlatformAnswered(effect=effect, ok=ok, reason=reason)
        self._master.after(delay, lambda: self._master.submit(own_fact(answered)))

    def told(self, happening: Happening) -> None:
        """The platform tells something."""
        self._master.wake_for(lambda: self._take(happening))

    def _take(self, happening: Happening) -> None:
        if not self.watches:
            return
        if isinstance(happening, CapacityChanged):
            self._able = happening.free != 0
            self._declare()
            return
        told = told_of(self._master.state, happening)
        if told is not None:
            self._master.submit(own_fact(told))

    def _declare(self) -> None:
        """Once a run, and when what the platform can give has come or gone."""
        state = self._master.state
        if not state.run or state.phase in ENDED:
            return
        for source, names in self._sim.options.abilities:
            if source == SOURCE and not self._able:
                names = tuple(name for name in names if name != Ability.REPLACE)
            if self._run == state.run and (source != SOURCE or state.abilities.get(source) == names):
                continue
            left = self._declared_at + DECLARE_NS - self._master.clock.now
            if self._run == state.run and left > 0:
                self._declare_later(left)
            elif state.abilities.get(source) != names:
                self._declared_at = self._master.clock.now
                self._master.submit(own_fact(AbilityDeclared(source=source, abilities=names)))
        self._run = state.run

    def _declare_later(self, delay: int) -> None:
        if not self._waits:
            self._waits = True
            self._master.after(delay, self._declare_now)

    def _declare_now(self) -> None:
        self._waits = False
        if self.watches:
            self._declare()

"""The nodes of a campaign: made-up agents that obey the engine's orders.

House rules: an order is answered by the facts that the production agent answers it with (``sim/responder.py``), one
fact a node, each a turn of the engine. All nodes of an order answer at the same virtual time: when the slowest has
obeyed, for what is waited for is the last of them anyway. A node that is gone answers nothing.
"""

from typing import Any

import attrs

from ftcore import __version__
from ftcore.commands import Command, ParkWorkers, ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.actions import Findings
from ftcore.events.node import NodeJoined
from ftcore.sim.evidence import Kind
from ftcore.sim.responder import HEALTHY, answer
from ftcore.states.model import NodeState


@attrs.define(kw_only=True)
class SimNode:
    """A machine and the newest life of its agent.

    Args:
        name: its name.
        place: its place in the fleet; faults hit places.
        slots: workers.
        life: lives of its agent so far.
        alive: its agent lives.
        parked: its workers wait with their state for the next round.
        bad: what the machine shows whenever workers run on it; None if it is sound.
        said: facts of this life so far.
    """

    name: str
    place: int
    slots: int
    life: int = 0
    alive: bool = False
    parked: bool = False
    bad: Kind | None = None
    said: int = 0
    incarnation: str = ""

    def begin(self) -> NodeJoined:
        """A new life; returns the fact by which it joins."""
        self.life += 1
        self.incarnation = f"{self.name}-{self.life}"
        self.alive, self.parked, self.said = True, False, 0
        return NodeJoined(
            node=self.name,
            incarnation=self.incarnation,
            slots=self.slots,
            host=self.name,
            pid=100,
            address=self.name,
            version=__version__,
            accelerators=self.slots,
            checks=True,
        )

    def obey(self, command: Command, effect: str, known: NodeState, step: int) -> Any:
        """Carry out an order; returns the fact that says so.

        Args:
            command: the order.
            effect: its identity.
            known: the node as the job knows it.
            step: the last completed step.
        """
        how = "parked" if self.parked else "fork"
        if isinstance(command, StartWorkers | StopWorkers | ParkWorkers):
            self.parked = isinstance(command, ParkWorkers)
        elif isinstance(command, ReleaseNode):
            self.alive = False
        return answer(command, effect, known, step=step, how=how, findings=self._findings())

    def _findings(self) -> Findings:
        """What a health check finds."""
        if self.bad is None:
            return HEALTHY
        if self.bad.shows == "slow":
            return Findings(verdict="healthy", detail=self.bad.doc, device_s=5.0)
        return Findings(verdict="faulty", detail=self.bad.doc, device_s=1.0)

"""Nodes of a campaign: simulated agents that carry out the engine's orders.

They answer with the facts of the production agent (``sim/responder.py``), one fact and one turn of the engine per node.
All nodes answer an order at the same virtual time, that of the slowest: the engine waits for the last answer anyway. A
dead node does not answer.
"""

from typing import Any

import attrs

from ftcore import __version__
from ftcore.commands import Command, ParkWorkers, ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.actions import Findings
from ftcore.events.node import NodeJoined
from ftcore.sim.evidence import FaultKind
from ftcore.sim.responder import HEALTHY, answer
from ftcore.states.membership import NodeState
from ftcore.states.worker import WorkerPhase


@attrs.define(kw_only=True)
class SimNode:
    """A machine and the newest incarnation of its agent.

    Args:
        name: node name.
        place: place in the fleet; faults hit places.
        slots: number of workers.
        life: number of incarnations so far.
        alive: whether its agent runs.
        parked: whether all its workers are parked: none has to be started.
        bad: fault that recurs whenever workers run on the machine; None: healthy.
        said: number of facts of this incarnation.
    """

    name: str
    place: int
    slots: int
    life: int = 0
    alive: bool = False
    parked: bool = False
    bad: FaultKind | None = None
    said: int = 0
    incarnation: str = ""

    def begin(self) -> NodeJoined:
        """Begin a new incarnation; returns its joining fact."""
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
        """Carry out an order; returns the answering fact.

        Args:
            command: the order.
            effect: ID of the effect.
            known: the node in the job's state.
            step: the last completed step.
        """
        how = "parked" if self.parked else "fork"
        if isinstance(command, StartWorkers | StopWorkers | ParkWorkers):
            self.parked = isinstance(command, ParkWorkers) and WorkerPhase.EXITED not in known.workers
        elif isinstance(command, ReleaseNode):
            self.alive = False
        return answer(command, effect, known, step=step, how=how, findings=self._findings())

    def _findings(self) -> Findings:
        """Result of a health check."""
        if self.bad is None:
            return HEALTHY
        if self.bad.shows == "slow":
            return Findings(verdict="healthy", detail=self.bad.doc, device_s=5.0)
        return Findings(verdict="faulty", detail=self.bad.doc, device_s=1.0)

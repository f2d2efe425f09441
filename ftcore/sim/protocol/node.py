"""A node's process: the production agent on a simulated host, with workers that are simulated."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ftcore.engine import actions as act
from ftcore.engine.agent import AgentCore
from ftcore.engine.health import SWITCH
from ftcore.engine.orders import Order
from ftcore.errors import FtcoreError
from ftcore.runtime.agent.agent import Agent
from ftcore.runtime.agent.config import AgentConfig, AgentParts
from ftcore.runtime.wire.frames import submission
from ftcore.sim.protocol.hosts import Process, SimHost, SimJournal, SimMachine
from ftcore.sim.protocol.supervisor import IN_PLACE, SimChecker, SimSupervisor
from ftcore.states.agent import AgentPhase
from ftcore.timing import Timing

if TYPE_CHECKING:
    from ftcore.sim.protocol.simulation import Simulation
    from ftcore.sim.protocol.training import NodeWorkers


class Node(Process):
    """One node's agent, and what its platform knows of it.

    Args:
        sim: the simulation.
        host: where it runs.
        node: the node's name.
        ordinal: the place asked for, or None.

    Attributes:
        outcome: how it ended; empty: it has not, or was killed.
        evidence: message and output of a worker that ends by a fault of a trace.
    """

    def __init__(self, sim: "Simulation", host: SimMachine, node: str, ordinal: int | None) -> None:
        super().__init__(sim.clock, sim.chance, host, node, sim.next_pid(), sim.crashed)
        self.sim, self.node, self.ordinal = sim, node, ordinal
        self.outcome = ""
        self.evidence = ("", "")
        self.agent: Agent | None = None
        self.core: AgentCore | None = None
        self.supervisor = SimSupervisor(self)
        self.run(self._take_part())

    @property
    def ranks(self) -> "NodeWorkers | None":
        """Its workers."""
        return self.supervisor.ranks

    @property
    def life(self) -> str:
        """Its agent's life; empty before it began."""
        return self.core.incarnation if self.core is not None else ""

    @property
    def phase(self) -> AgentPhase | None:
        """Where its bond with the master is."""
        return self.core.phase if self.core is not None else None

    async def _take_part(self) -> None:
        sim, options = self.sim, self.sim.options
        address = sim.address_of(self.host.name)
        config = AgentConfig(
            job="job",
            node=self.node,
            slots=options.slots,
            address=address,
            submission=submission(options.spec, options.loaded, command=("simulate",), user="sim@sim"),
            log_dir=Path("/simulated/logs"),
            state_dir=Path("/simulated"),
            env={},
            ordinal=self.ordinal,
            labels={SWITCH: self.host.switch} if self.host.switch else {},
            security=sim.security,
            lead_delay_s=options.lead_delay_s,
        )
        parts = AgentParts(
            host=SimHost(self, sim.chance),
            kernel=self.supervisor,
            journal=lambda path: SimJournal(self, str(path), sim.injector.disk_ns),
            performers=dict.fromkeys(IN_PLACE, self.supervisor) if options.capable else {},
            make_core=self._make_core,
        )
        checker = SimChecker(self) if options.capable else None
        log, transport = sim.log_of(self), sim.transport_of(self)
        self.agent = Agent(config, log, self.supervisor, self._put_up, checker, transport, parts)
        sim.trace(f"{self.node} begins as {self.life}")
        try:
            outcome = await self.agent.run()
        except FtcoreError as error:
            self.outcome = f"refused: {error}"
        else:
            self.outcome = outcome.outcome
        await self.supervisor.close()
        sim.trace(f"{self.node} goes: {self.outcome}")

    def _make_core(self, *args: Any, **options: Any) -> AgentCore:
        self.core = _WatchedCore(self, *args, **options)
        return self.core

    def _put_up(self, silent: int | None) -> None:
        self.sim.put_up_candidate(self.host, silent)

    def preempted(self, within_s: float) -> None:
        """Its machine is taken away: it is asked to go, and ended if it has not gone in time."""
        if self.agent is not None and not self.agent.over:
            self.loop.call_soon(self.agent.leave, "told by SIGTERM")
        self.sim.end_later(self, within_s)

    def died(self) -> None:
        """Its workers die with it, its streams break."""
        if self.ranks is not None:
            self.sim.training.stop(self.ranks)
        self.sim.net.cut(self)
        self.sim.platform.ended(self)


class _WatchedCore(AgentCore):
    """The production core; checkers see what it makes of an order."""

    def __init__(
        self,
        owner: Node,
        node: str,
        slots: int,
        timing: Timing,
        *,
        able: Collection[type[Any]] = (),
        lead_delay_s: float | None = None,
    ) -> None:
        super().__init__(node, slots, timing, able=able, lead_delay_s=lead_delay_s)
        self._owner = owner

    def obey(self, order: Order) -> act.Actions:
        """An order came."""
        actions = super().obey(order)
        self._owner.sim.obeyed(self._owner, order, actions)
        return actions

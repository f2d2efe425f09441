"""Process of a node: the production agent on a simulated host, with simulated workers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ftcore.engine import actions as act
from ftcore.engine.agent import AgentCore
from ftcore.engine.orders import Order
from ftcore.errors import FtcoreError
from ftcore.runtime.agent.agent import Agent
from ftcore.runtime.agent.checkpoints import NodeCheckpoints
from ftcore.runtime.agent.config import AgentConfig, AgentParts
from ftcore.runtime.wire.frames import submission
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.hosts import Process, SimHost, SimJournal, SimMachine
from ftcore.sim.protocol.keepers import KEPT, SimKeeperClient
from ftcore.sim.protocol.supervisor import IN_PLACE, SimChecker, SimSupervisor
from ftcore.sim.protocol.training import NodeWorkers
from ftcore.states.agent import AgentPhase
from ftcore.states.buddies import SWITCH


class Node(Process):
    """One node's agent.

    Args:
        sim: the environment.
        host: its host.
        node: the node's name.
        ordinal: the requested place, or None.
        ended: called when its process has ended.

    Attributes:
        outcome: how it ended; empty: it runs, or was killed.
    """

    def __init__(
        self, sim: Environment, host: SimMachine, node: str, ordinal: int | None, ended: Callable[["Node"], None]
    ) -> None:
        super().__init__(sim.clock, sim.chance, host, node, sim.next_pid(), sim.crashed)
        self.sim, self.node, self.ordinal = sim, node, ordinal
        self.outcome = ""
        self.agent: Agent | None = None
        self.core: AgentCore | None = None
        self.supervisor = SimSupervisor(sim, self, lambda ranks: sim.stopping(self.life, ranks))
        self.keeper: SimKeeperClient | None = None
        if sim.saved is not None:
            self.keeper = sim.saved.client(self, lambda: self.ranks)
        self._ended = ended
        self.run(self._run_agent())

    @property
    def ranks(self) -> NodeWorkers | None:
        """Its workers."""
        return self.supervisor.ranks

    @property
    def life(self) -> str:
        """Incarnation of its agent; empty before the start."""
        return self.core.incarnation if self.core is not None else ""

    @property
    def phase(self) -> AgentPhase | None:
        """Phase of its agent."""
        return self.core.phase if self.core is not None else None

    async def _run_agent(self) -> None:
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
            keeper="simulated" if self.keeper is not None else "",
        )
        checkpoints = NodeCheckpoints(self.keeper, KEPT)
        if self.keeper is not None:
            self.keeper.begin(checkpoints)
        await checkpoints.prepare()
        parts = AgentParts(
            host=SimHost(self, sim.chance),
            kernel=self.supervisor,
            journal=lambda path: SimJournal(self, str(path), sim.conditions.disk_ns),
            performers=checkpoints.performers(dict.fromkeys(IN_PLACE, self.supervisor) if options.capable else {}),
            make_core=self._make_core,
            checkpoints=checkpoints,
        )
        checker = SimChecker(sim, self.host) if options.capable else None
        log, transport = sim.log_of(self), sim.transport_of(self)
        self.agent = Agent(config, log, self.supervisor, self._start_candidate, checker, transport, parts)
        sim.trace(f"{self.node} begins as {self.life}")
        try:
            outcome = await self.agent.run()
        except FtcoreError as error:
            self.outcome = f"refused: {error}"
        else:
            self.outcome = outcome.outcome
        await self.supervisor.close()
        if self.keeper is not None:
            self.keeper.bye()
        sim.trace(f"{self.node} ends: {self.outcome}")

    def _make_core(self, *args: Any, **options: Any) -> AgentCore:
        self.core = _WatchedCore(self.sim, *args, **options)
        return self.core

    def _start_candidate(self, silent: int | None) -> None:
        self.sim.start_candidate(self.host, silent)

    def preempted(self, within_s: float) -> None:
        """Preempt its machine: SIGTERM to the agent, and its end after ``within_s`` seconds."""
        if self.agent is not None and not self.agent.over:
            self.loop.call_soon(self.agent.leave, "SIGTERM from the platform")
        self.sim.end_later(self, within_s)

    def died(self) -> None:
        """End its workers and break its streams."""
        if self.ranks is not None:
            self.sim.training.stop(self.ranks)
        if self.keeper is not None:
            self.keeper.died()
        self.sim.net.cut(self)
        self._ended(self)


class _WatchedCore(AgentCore):
    """The production core; reports its actions to the checkers."""

    def __init__(self, sim: Environment, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._sim = sim

    def obey(self, order: Order) -> act.Actions:
        """Handle an order."""
        actions = super().obey(order)
        self._sim.obeyed(self.node, self.incarnation, order, actions)
        return actions

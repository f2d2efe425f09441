"""A process that wants the master role: the production master on a simulated host."""

from typing import TYPE_CHECKING

import msgspec

from ftcore.errors import FtcoreError
from ftcore.events.policy import PolicyAnswered
from ftcore.policies.external import Question, Reply
from ftcore.ports import Candidate
from ftcore.runtime import alert
from ftcore.runtime.master.master import Master, MasterParts
from ftcore.runtime.master.retention import RetentionConfig, Sizes
from ftcore.sim.protocol.hosts import Process, SimHost, SimMachine

if TYPE_CHECKING:
    from ftcore.sim.protocol.simulation import Simulation

SMALL = Sizes(snapshot=40, quiet_snapshot=20, quiet_s=5.0, piece=30, keep=50)
"""Of a log that is kept small in a simulation that is short."""

LOOK_S = 2.0


class MasterProcess(Process):
    """A candidate, and what becomes of it.

    Args:
        sim: the simulation.
        host: where it runs.
        address: its name in the simulation.
        standby: it was started beside a master that leads.
    """

    def __init__(self, sim: "Simulation", host: SimMachine, address: str, *, standby: bool) -> None:
        super().__init__(sim.clock, sim.chance, host, address, sim.next_pid(), sim.crashed)
        self.sim, self.address = sim, address
        self.master: Master | None = None
        self.candidate = Candidate(host=host.name, pid=self.pid, address=address)
        self.run(self._lead(standby))

    @property
    def leading(self) -> bool:
        """Facts are taken and orders given."""
        return self.alive and self.master is not None and self.master.leading

    async def _lead(self, standby: bool) -> None:
        sim = self.sim
        keeps = sim.options.keeps_log
        self.master = Master(
            sim.log_of(self, writes=lambda batch: sim.writes(self, batch), wrote=lambda batch: sim.wrote(self, batch)),
            listen=self.address,
            security=sim.security,
            transport=sim.transport_of(self),
            platform="simulated:" if sim.options.platform else "",
            timing=sim.options.spec.timing,
            standby=standby,
            retention=self._retention() if keeps else None,
            parts=MasterParts(
                host=SimHost(self, sim.chance),
                open_platform=lambda url, job: sim.platform.handle(self),
                send=self._send,
                ask=self._ask,
            ),
        )
        try:
            await self.master.run()
        except FtcoreError as error:
            sim.trace(f"{self.address} ends: {error}")
        else:
            sim.trace(f"{self.address} ends")

    def _retention(self) -> RetentionConfig:
        sim = self.sim
        return RetentionConfig(log=sim.log_of(self), archive=sim.archive, sizes=SMALL, look_s=LOOK_S)

    def died(self) -> None:
        """Its streams break."""
        self.sim.net.cut(self)
        self.sim.board.listeners.pop(self.address, None)

    async def _send(self, message: alert.Message) -> alert.Delivery:
        await self.sim.injector.sleep(5.0)
        failed = {0: "made up: not taken"} if self.sim.injector.fails() else {}
        return alert.Delivery(failed=failed)

    async def _ask(self, body: bytes) -> bytes:
        question = msgspec.json.decode(body, type=Question)
        await self.sim.injector.sleep(5.0)
        if self.sim.injector.fails():
            raise ValueError("made up: its process ended")
        answered = PolicyAnswered(effect=question.effect, policy=question.policy, verdict="pass", reason="made up")
        return msgspec.json.encode(Reply(answered=answered)) + b"\n"

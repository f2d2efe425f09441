"""Process of a master candidate: the production master on a simulated host."""

from collections.abc import Callable, Sequence

import msgspec

from ftcore.errors import FtcoreError
from ftcore.events.envelope import Event
from ftcore.events.policy import PolicyAnswered
from ftcore.policies.external import Question, Reply
from ftcore.ports import Candidate, Platform
from ftcore.runtime import alert
from ftcore.runtime.master.master import Master, MasterParts
from ftcore.runtime.master.retention import RetentionConfig, Sizes
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.hosts import Process, SimHost, SimMachine

SMALL = Sizes(snapshot=40, quiet_snapshot=20, quiet_s=5.0, piece=30, keep=50)
"""Sizes for log retention in a short simulation."""

LOOK_S = 2.0


class MasterProcess(Process):
    """A candidate or master.

    Args:
        sim: the environment.
        host: its host.
        address: its address in the simulation.
        open_platform: returns the platform's adapter for a process.
        standby: it was started while another master leads.
    """

    def __init__(
        self,
        sim: Environment,
        host: SimMachine,
        address: str,
        open_platform: Callable[[Process], Platform],
        *,
        standby: bool,
    ) -> None:
        super().__init__(sim.clock, sim.chance, host, address, sim.next_pid(), sim.crashed)
        self.sim, self.address = sim, address
        self._open_platform = open_platform
        self.master: Master | None = None
        self.candidate = Candidate(host=host.name, pid=self.pid, address=address)
        self.run(self._lead(standby))

    @property
    def leading(self) -> bool:
        """Whether it accepts facts and gives orders."""
        return self.alive and self.master is not None and self.master.leading

    async def _lead(self, standby: bool) -> None:
        sim = self.sim
        keeps = sim.options.keeps_log
        self.master = Master(
            sim.log_of(self, lambda batch: sim.writes(self.address, batch), self._wrote),
            listen=self.address,
            security=sim.security,
            transport=sim.transport_of(self),
            platform="simulated:" if sim.options.platform else "",
            timing=sim.options.spec.timing,
            standby=standby,
            retention=self._retention() if keeps else None,
            parts=MasterParts(
                host=SimHost(self, sim.chance),
                open_platform=lambda url, job: self._open_platform(self),
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

    def _wrote(self, batch: Sequence[Event]) -> bool:
        assert self.master is not None
        return self.sim.wrote(self.address, batch, self.master.state)

    def _retention(self) -> RetentionConfig:
        sim = self.sim
        return RetentionConfig(log=sim.log_of(self), archive=sim.archive, sizes=SMALL, interval_s=LOOK_S)

    def died(self) -> None:
        """Break its streams."""
        self.sim.net.cut(self)
        self.sim.board.listeners.pop(self.address, None)

    async def _send(self, message: alert.Message) -> alert.Delivery:
        await self.sim.conditions.sleep(5.0)
        failed = {0: "simulated: not delivered"} if self.sim.conditions.fails() else {}
        return alert.Delivery(failed=failed)

    async def _ask(self, body: bytes) -> bytes:
        question = msgspec.json.decode(body, type=Question)
        await self.sim.conditions.sleep(5.0)
        if self.sim.conditions.fails():
            raise ValueError("simulated: its process ended")
        answered = PolicyAnswered(effect=question.effect, policy=question.policy, verdict="pass", reason="simulated")
        return msgspec.json.encode(Reply(answered=answered)) + b"\n"

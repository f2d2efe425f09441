"""Simulated operators, who send requests to the master, and clients that do not belong to the job."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from ftcore.engine.operator_requests import ABOUT_NODES
from ftcore.errors import FtcoreError
from ftcore.runtime.agent.link.link import make_hello
from ftcore.runtime.wire import client, frames
from ftcore.runtime.wire.frames import submission
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.master import MasterProcess
from ftcore.sim.protocol.node import Node


class People:
    """Operators and foreign clients, on a separate host.

    Args:
        sim: the environment.
        masters: returns the running candidates and masters.
        nodes: returns the running agents.

    Attributes:
        process: their process.
    """

    def __init__(
        self, sim: Environment, masters: Callable[[], list[MasterProcess]], nodes: Callable[[], list[Node]]
    ) -> None:
        self._sim, self._chance, self._masters, self._nodes = sim, sim.chance, masters, nodes
        self.process = Process(sim.clock, sim.chance, SimMachine("people", 0), "people", 0, sim.crashed)

    def command(self, command: str, node: str = "") -> str:
        """Send an operator's request to the leading master."""
        master = self._leader()
        if master is None or master.frozen:
            return ""
        self.process.loop.create_task(self._ask(master.address, command, node))
        return self._sim.conditions.harm(f"{command} {node}".strip())

    def _leader(self) -> MasterProcess | None:
        return next((master for master in self._masters() if master.leading), None)

    async def _ask(self, address: str, command: str, node: str) -> None:
        sim = self._sim
        try:
            transport = sim.transport_of(self.process)
            reply = await client.command(
                transport, address, "job", command, security=sim.security, node=node, who="sim@sim"
            )
        except FtcoreError as error:
            sim.trace(f"PEOPLE {command} {node}: {error}")
        else:
            sim.trace(f"PEOPLE {command} {node}: {reply.message} {reply.outcome}")
            self._sim.conditions.harm(f"{command} {node}")

    def stop(self) -> str:
        """Request the end of the run, sometimes."""
        return self.command("stop") if self._chance.random() < 0.2 else "not sent"

    def operate(self) -> str:
        """Send a random operator's request."""
        if self._chance.random() < 0.2:
            return self._request_status()
        command = self._chance.choice(("pause", "resume", "resume", "checkpoint", "drain", "evict", "admit"))
        nodes = self._nodes()
        node = self._chance.choice(nodes).node if nodes else ""
        return self.command(command, node if command in ABOUT_NODES else "")

    def _request_status(self) -> str:
        """Run ``ftctl status --nodes``."""
        master = self._leader()
        if master is not None:
            self.process.loop.create_task(self._read_status(master.address))
        return "status of the nodes"

    async def _read_status(self, address: str) -> None:
        sim = self._sim
        with contextlib.suppress(FtcoreError):
            found = await client.nodes_seen(sim.transport_of(self.process), address, "job", security=sim.security)
            sim.trace(f"PEOPLE see {len(found)} nodes")

    def send_away(self) -> str:
        """Drain or evict a training node."""
        world = self._sim.oracle.rounds.world
        if world is None:
            return ""
        return self.command(self._chance.choice(("drain", "evict")), self._chance.choice(world.members).node)

    def stranger(self) -> str:
        """Connect to a master with invalid or foreign frames."""
        address = self._chance.choice(sorted(self._sim.board.listeners) or [""])
        spec = msgspec.structs.replace(self._sim.options.spec, argv=("other.py",))
        hello = make_hello(
            job=self._chance.choice(("job", "other")),
            node="stranger",
            incarnation="1",
            submission=submission(spec, self._sim.options.loaded),
            again=False,
        )(0, None)
        word = self._chance.choice((b"what?", frames.encode(hello), frames.encode(frames.Ack(1))))
        self.process.loop.create_task(self._call(address, word))
        return f"sends {len(word)} bytes to {address}"

    async def _call(self, address: str, word: bytes) -> None:
        with contextlib.suppress(FtcoreError, TimeoutError):
            async with self._sim.transport_of(self.process).connect(address) as stream, asyncio.timeout(20.0):
                await stream.write(word)
                await stream.read()

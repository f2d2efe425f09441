"""People: operators who ask a master for something, and strangers who have no business with it."""

import asyncio
import contextlib
import random
from typing import TYPE_CHECKING

import attrs

from ftcore.engine.operator_requests import ABOUT_NODES
from ftcore.errors import FtcoreError
from ftcore.runtime.agent.link import make_hello
from ftcore.runtime.wire import client, frames
from ftcore.runtime.wire.frames import submission
from ftcore.sim.protocol.hosts import Process, SimMachine

if TYPE_CHECKING:
    from ftcore.sim.protocol.simulation import Simulation


class People:
    """All of them, on a host of their own.

    Args:
        sim: the simulation.
        chance: what they want.

    Attributes:
        process: what they run.
    """

    def __init__(self, sim: "Simulation", chance: random.Random) -> None:
        self._sim, self._chance = sim, chance
        self.process = self._process = Process(sim.clock, chance, SimMachine("people", 0), "people", 0, sim.crashed)

    def command(self, command: str, node: str = "") -> str:
        """An operator asks the leading master for something."""
        master = next((master for master in self._sim.living_masters() if master.leading), None)
        if master is None or master.frozen:
            return ""
        self._process.loop.create_task(self._ask(master.address, command, node))
        return self._sim.injector.harm(f"{command} {node}".strip())

    async def _ask(self, address: str, command: str, node: str) -> None:
        sim = self._sim
        try:
            transport = sim.transport_of(self._process)
            reply = await client.command(
                transport, address, "job", command, security=sim.security, node=node, who="sim@sim"
            )
        except FtcoreError as error:
            sim.trace(f"PEOPLE {command} {node}: {error}")
        else:
            sim.trace(f"PEOPLE {command} {node}: {reply.message} {reply.outcome}")
            self._sim.injector.harm(f"{command} {node}")

    def stop(self) -> str:
        """The run is to end, or after all not."""
        return self.command("stop") if self._chance.random() < 0.2 else "thought better of it"

    def operate(self) -> str:
        """An operator does one thing or another."""
        if self._chance.random() < 0.2:
            return self._look()
        command = self._chance.choice(("pause", "resume", "resume", "checkpoint", "drain", "evict", "admit"))
        node = self._sim.injector.node()
        needs_node = command in ABOUT_NODES
        return self.command(command, node.node if needs_node and node is not None else "")

    def _look(self) -> str:
        """``ftctl status --nodes``."""
        master = next((master for master in self._sim.living_masters() if master.leading), None)
        if master is not None:
            self._process.loop.create_task(self._inquire(master.address))
        return "looks at the nodes"

    async def _inquire(self, address: str) -> None:
        sim = self._sim
        with contextlib.suppress(FtcoreError):
            found = await client.nodes_seen(sim.transport_of(self._process), address, "job", security=sim.security)
            sim.trace(f"PEOPLE see {len(found)} nodes")

    def send_away(self) -> str:
        """A node that trains is drained or evicted."""
        world = self._sim.oracle.world
        if world is None:
            return ""
        return self.command(self._chance.choice(("drain", "evict")), self._chance.choice(world.members).node)

    def stranger(self) -> str:
        """Somebody calls a master who has no business with it."""
        address = self._chance.choice(sorted(self._sim.board.listeners) or [""])
        spec = attrs.evolve(self._sim.options.spec, argv=("other.py",))
        hello = make_hello(
            job=self._chance.choice(("job", "other")),
            node="stranger",
            incarnation="1",
            submission=submission(spec, self._sim.options.loaded),
            again=False,
        )(0, None)
        word = self._chance.choice((b"what?", frames.encode(hello), frames.encode(frames.Ack(1))))
        self._process.loop.create_task(self._call(address, word))
        return f"says {len(word)} bytes to {address}"

    async def _call(self, address: str, word: bytes) -> None:
        with contextlib.suppress(FtcoreError, TimeoutError):
            async with self._sim.transport_of(self._process).connect(address) as stream, asyncio.timeout(20.0):
                await stream.write(word)
                await stream.read()

"""A node's workers as its agent has them: the ports ``Supervisor``, ``Inspector`` and ``Warmer``, what the kernel would
tell of their processes, and who carries out orders that leave them in place.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ftcore.commands import CheckHealth, ParkWorkers, PauseWorkers, ResumeWorkers, RetryStep, SaveCheckpoint
from ftcore.engine import actions as act
from ftcore.errors import Refused, UsageError
from ftcore.faults.cuts import RETRIES_MIN
from ftcore.ids import Round
from ftcore.ports import Launch, Progress, Signs, WorkerExit
from ftcore.runtime.agent.environment import RESUME_STEP
from ftcore.runtime.agent.samples import Usage, Wait
from ftcore.runtime.agent.sockets import Connection
from ftcore.runtime.checks.protocol import Said
from ftcore.sim.protocol.standing import WAITS_FOR_OTHERS
from ftcore.sim.protocol.training import NodeWorkers, RoundPlace

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftcore.sim.protocol.node import Node

PID = 1000
"""Process id of a node's first worker in its first start; each start has others."""

BETWEEN_STARTS = 100


class SimSupervisor:
    """Runs the workers of one node.

    Args:
        node: the node.
    """

    def __init__(self, node: "Node") -> None:
        self._node, self._sim = node, node.sim
        self.ranks: NodeWorkers | None = None
        self.pid = PID
        self._ends: asyncio.Queue[WorkerExit] = asyncio.Queue()
        self._stopping = 0

    # -- ports.Supervisor

    async def start(self, launch: Launch) -> tuple[tuple[int, ...], str]:
        """See ``ports.Supervisor``."""
        injector, sim = self._sim.injector, self._sim
        self._end()
        await asyncio.sleep(injector.start_s())
        if injector.unstartable(self._node):
            raise UsageError("made up: cannot be started")
        env = launch.envs[0]
        place = RoundPlace(
            group_rank=int(env["GROUP_RANK"]),
            base_rank=int(env["RANK"]),
            slots=len(launch.envs),
            nodes=int(env["GROUP_WORLD_SIZE"]),
        )
        self.pid += BETWEEN_STARTS
        ranks = NodeWorkers(self._node, launch.round, place, self._exited, [True] * place.slots)
        self.ranks = ranks
        told = env.get(RESUME_STEP)
        sim.training.join(ranks, int(told) if told is not None else None)
        injector.started(self._node)
        return tuple(range(self.pid, self.pid + place.slots)), "fork"

    def _exited(self, ended: WorkerExit) -> None:
        if self.ranks is not None and self.ranks.round == ended.round:
            own = attrs.evolve(ended, pid=self.pid + ended.local_rank, mono=ended.mono + self._node.host.uptime_ns)
            self._ends.put_nowait(own)

    def _end(self) -> tuple[int | None, ...]:
        return self._sim.training.stop(self.ranks) if self.ranks is not None else ()

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        """See ``ports.Supervisor``."""
        if self.ranks is None:
            return ()
        if any(self.ranks.alive):
            self._sim.stopping(self._node)
            await asyncio.sleep(self._sim.injector.stop_s(grace_s))
        else:
            await asyncio.sleep(0.001)
        return self._end()

    async def exits(self) -> AsyncIterator[WorkerExit]:
        """See ``ports.Supervisor``."""
        while True:
            yield await self._ends.get()

    def progress(self) -> tuple[Progress | None, ...]:
        """See ``ports.Supervisor``."""
        if self.ranks is None:
            return tuple(None for _ in range(self._sim.options.slots))
        return self.ranks.pages(self._node.host.uptime_ns)

    def tail(self, local_rank: int, limit: int) -> str:
        """See ``ports.Supervisor``."""
        return self._node.evidence[1]

    def error_file(self, local_rank: int) -> str:
        """See ``ports.Supervisor``."""
        message = self._node.evidence[0]
        if not message:
            return ""
        path = Path(self._sim.scratch()) / f"{self._node.name}.json"
        path.write_text(
            json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "", "timestamp": 0}}})
        )
        return str(path)

    async def open_store(self, round_: Round, host: str) -> tuple[str, int]:
        """See ``ports.Supervisor``."""
        await self._sim.injector.sleep(0.2)
        if self._sim.injector.unstartable(self._node):
            raise UsageError("made up: no port")
        return host, 20000 + round_

    async def close(self) -> None:
        """See ``ports.Supervisor``."""
        self._end()

    # -- ports.Warmer

    async def warmed(self) -> bool:
        """See ``ports.Warmer``."""
        warm_s = self._sim.warms_in_s()
        await asyncio.sleep(warm_s if warm_s is not None else 1e9)
        return True

    # -- ports.Inspector

    def signs(self) -> tuple[Signs, ...]:
        """See ``ports.Inspector``."""
        ranks = self.ranks
        if ranks is None or not (ranks.steps or ranks.paused):
            return ()
        mono = self._node.clock.now if ranks.paused else ranks.mono
        return tuple(Signs(active=mono + self._node.host.uptime_ns) for _ in ranks.alive)

    def ask_stack(self, local_rank: int, every: bool = False, locked: bool = False) -> bool:
        """See ``ports.Inspector``."""
        state = self.state(self.pid + local_rank)
        return state not in "TDX"

    def stack(self, local_rank: int) -> str:
        """See ``ports.Inspector``."""
        standing = self.ranks.standing_of(local_rank) if self.ranks is not None else None
        return (standing.kind if standing is not None else WAITS_FOR_OTHERS).dump(standing.name if standing else "")

    # -- samples.Kernel

    def _of(self, pid: int) -> tuple[NodeWorkers, int] | None:
        ranks, local = self.ranks, pid - self.pid
        return (ranks, local) if ranks is not None and 0 <= local < len(ranks.alive) and ranks.alive[local] else None

    def born(self, pid: int) -> str:
        """See ``samples.Kernel``."""
        return str(pid) if self._of(pid) is not None else ""

    def state(self, pid: int) -> str:
        """See ``samples.Kernel``."""
        found = self._of(pid)
        if found is None:
            return "X"
        standing = found[0].standing_of(found[1])
        return standing.kind.letter if standing is not None else "S"

    def wait_of(self, pid: int) -> Wait:
        """See ``samples.Kernel``."""
        found = self._of(pid)
        if found is None:
            return Wait()
        standing = found[0].standing_of(found[1])
        if standing is None:
            return Wait(WAITS_FOR_OTHERS.waits)
        ends_at = (standing.until + self._node.host.uptime_ns) / 1e9 if standing.kind.ends else None
        return Wait(standing.kind.waits, ends_at)

    def usages(self, pids: Sequence[int]) -> tuple[list[Usage], list[Connection]]:
        """See ``samples.Kernel``."""
        return [self._usage(pid) for pid in pids], self._connections()

    def _usage(self, pid: int) -> Usage:
        at, found = self._node.mono() / 1e9, self._of(pid)
        if found is None:
            return Usage(at)
        ranks, local = found
        standing = ranks.standing_of(local)
        # What a rank that waits for the others did last was a step; one that stands makes its own progress.
        last = standing.last(self._node.clock.now) if standing is not None else ranks.mono
        busy = standing is not None and standing.kind.state == "runs"
        return Usage(at, self.state(pid), last, at if busy else 0.0, 0, 0, (pid,))

    def _connections(self) -> list[Connection]:
        """The first rank has one to each other node; a host gets no answer from one whose frames do not reach it."""
        ranks, sim = self.ranks, self._sim
        gang = sim.training.gangs.get(ranks.round) if ranks is not None else None
        if ranks is None or gang is None:
            return []
        own = ranks.process.host.name
        found = []
        for other in gang.members.values():
            peer = other.process.host.name
            if other is not ranks:
                silent_s = sim.net.silent_s(peer, own)
                found.append(
                    Connection(
                        inode=self.pid,
                        local=(sim.address_of(own), 1),
                        remote=(sim.address_of(peer), 1),
                        opening=False,
                        unacked=bool(silent_s),
                        retries=RETRIES_MIN if silent_s else 0,
                        lost_s=silent_s,
                        queued=0,
                        heard_s=silent_s or math.inf,
                        received=0,
                        acked=0,
                    )
                )
        return found

    # -- ports.Performer

    async def perform(self, command: Any, effect: str) -> int | None:
        """See ``ports.Performer``."""
        sim = self._sim
        await asyncio.sleep(sim.injector.perform_s())
        ranks = self.ranks
        if ranks is None or not all(ranks.alive) or sim.injector.fails():
            raise Refused("made up: not possible now")
        if isinstance(command, PauseWorkers | ResumeWorkers):
            ranks.paused = isinstance(command, PauseWorkers)
        elif isinstance(command, RetryStep):
            ranks.standing = None
        elif isinstance(command, SaveCheckpoint) and ranks.part.group_rank == 0:
            sim.training.save(sim.training.gangs[ranks.round])
        elif isinstance(command, ParkWorkers):
            ranks.paused = True
        return ranks.step if ranks.steps else None


IN_PLACE = (PauseWorkers, ResumeWorkers, RetryStep, ParkWorkers, SaveCheckpoint)
"""What a capable node's workers can do."""


class SimChecker:
    """Checks a node's devices and links; see ``runtime.agent.config.NodeChecker``.

    Args:
        node: the node.
    """

    def __init__(self, node: "Node") -> None:
        self._node, self._sim = node, node.sim
        self.accelerators = node.sim.options.slots

    async def run(self, command: CheckHealth, effect: str) -> act.Findings:
        """Carry a check out."""
        await asyncio.sleep(self._sim.injector.perform_s())
        return self._findings(command)

    async def watch(self, told: "Callable[[Said], None]") -> None:
        """Nothing is told of accelerators."""
        await asyncio.sleep(1e9)

    def _findings(self, command: CheckHealth) -> act.Findings:
        """What a check finds here; a group exchanges data unless one of its hosts, or its switch, is bad."""
        injector, host = self._sim.injector, self._node.host
        verdict = injector.verdict(host) if command.stage == 1 else "healthy"
        group = command.groups[0] if command.groups else ()
        hosts = {node.node: node.host for node in self._sim.platform.nodes()}
        broken = any(name not in hosts or hosts[name].bad for name in group)
        broken = broken or (bool(command.label) and host.switch in self._sim.bad_switches)
        return act.Findings(
            verdict="healthy" if verdict == "slow" else verdict,
            detail="made up",
            exchange=injector.exchange(broken) if group and command.store else "",
            device_s=5.0 if verdict == "slow" else 1.0,
            exchange_s=1.0,
        )

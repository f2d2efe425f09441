"""Simulated supervisor: the ports ``Supervisor``, ``Inspector``, ``Warmer`` and ``Performer``, and the kernel's data
about the workers' processes.
"""

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from ftcore.commands import (
    CheckHealth,
    FindBoundary,
    ParkWorkers,
    PauseWorkers,
    ResumeWorkers,
    SaveCheckpoint,
)
from ftcore.engine import actions as act
from ftcore.errors import Refused, UsageError
from ftcore.faults.cuts import RETRIES_MIN
from ftcore.ids import Round
from ftcore.ports import Launch, Performed, Progress, Signs, WorkerExit
from ftcore.runtime.agent.telemetry.samples import Usage, Wait
from ftcore.runtime.agent.telemetry.sockets import Connection
from ftcore.runtime.agent.workers.boundary import BoundaryPerformer
from ftcore.runtime.agent.workers.environment import RESUME, RESUME_STEP
from ftcore.runtime.checks.protocol import CheckReport
from ftcore.shm.boundary import SAVES, STAGES, WAITS, BoundaryState
from ftcore.sim.protocol.environment import Environment
from ftcore.sim.protocol.hosts import Process, SimMachine
from ftcore.sim.protocol.standing import WAITS_FOR_OTHERS
from ftcore.sim.protocol.training import JobTraining, NodeWorkers, RoundPlace

PID = 1000
"""Base of the workers' process IDs; each start has new ones."""

BETWEEN_STARTS = 100


class SimSupervisor:
    """Runs the workers of one node.

    Args:
        sim: the environment.
        process: the node's agent.
        stopping: called before running workers are stopped.

    Attributes:
        evidence: error message and output of a worker that a fault of a trace ends.
    """

    def __init__(self, sim: Environment, process: Process, stopping: Callable[[NodeWorkers], None]) -> None:
        self._sim, self._process, self._stopping = sim, process, stopping
        self.evidence = ("", "")
        self.ranks: NodeWorkers | None = None
        self.pids: tuple[int, ...] = ()
        self._newest_pid = PID
        self._ends: asyncio.Queue[WorkerExit] = asyncio.Queue()
        stages = STAGES if sim.saved is not None else 0
        able = (WAITS | SAVES if sim.options.capable else 0) | stages
        stays = (*IN_PROCESS, *(("resize",) if sim.resizes else ())) if sim.options.capable else ()
        self._abilities = (*BoundaryState(able).abilities, *stays)
        self._at_boundaries = BoundaryPerformer(self, self.progress)

    # -- ports.Supervisor

    async def start(self, launch: Launch) -> tuple[tuple[int, ...], str]:
        """See ``ports.Supervisor``."""
        sim, conditions = self._sim, self._sim.conditions
        slots = len(launch.envs)
        kept = self._parked_pids(slots)
        self._end()
        await asyncio.sleep(conditions.perform_s() if all(kept) else conditions.start_s())
        if conditions.unstartable(self._process.host):
            raise UsageError("simulated: cannot be started")
        env = launch.envs[0]
        place = RoundPlace(
            group_rank=int(env["GROUP_RANK"]),
            base_rank=int(env["RANK"]),
            slots=slots,
            nodes=int(env["GROUP_WORLD_SIZE"]),
        )
        self._newest_pid += BETWEEN_STARTS
        self.pids = tuple(pid or self._newest_pid + local for local, pid in enumerate(kept))
        ranks = NodeWorkers(self._process, launch.round, place, self._exited, [True] * place.slots)
        self.ranks = ranks
        ranks.resume = env.get(RESUME, "")
        resume_step = env.get(RESUME_STEP)
        sim.training.join(ranks, int(resume_step) if resume_step is not None else None)
        conditions.started(ranks)
        return self.pids, "parked" if all(kept) else "fork"

    def _parked_pids(self, slots: int) -> tuple[int, ...]:
        """The process IDs of parked workers, by local rank; 0: there is none, and a process must be started."""
        ranks = self.ranks
        if ranks is None or not ranks.parked or len(ranks.alive) != slots:
            return (0,) * slots
        return tuple(pid if alive else 0 for pid, alive in zip(self.pids, ranks.alive, strict=True))

    def _exited(self, ended: WorkerExit) -> None:
        if self.ranks is not None and self.ranks.round == ended.round:
            own = attrs.evolve(ended, pid=self.pids[ended.local_rank], mono=ended.mono + self._process.host.uptime_ns)
            self._ends.put_nowait(own)

    def _end(self) -> tuple[int | None, ...]:
        return self._sim.training.stop(self.ranks) if self.ranks is not None else ()

    async def stop(self, grace_s: float) -> tuple[int | None, ...]:
        """See ``ports.Supervisor``."""
        if self.ranks is None:
            return ()
        if any(self.ranks.alive):
            self._stopping(self.ranks)
            await asyncio.sleep(self._sim.conditions.stop_s(grace_s))
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
        return self.ranks.pages(self._process.host.uptime_ns, self._abilities)

    def tail(self, local_rank: int, limit: int) -> str:
        """See ``ports.Supervisor``."""
        return self.evidence[1]

    def error_file(self, local_rank: int) -> str:
        """See ``ports.Supervisor``."""
        message = self.evidence[0]
        if not message:
            return ""
        path = Path(self._sim.scratch()) / f"{self._process.name}.json"
        path.write_text(
            json.dumps({"message": {"message": message, "extraInfo": {"py_callstack": "", "timestamp": 0}}})
        )
        return str(path)

    async def open_store(self, round_: Round, host: str) -> tuple[str, int]:
        """See ``ports.Supervisor``."""
        await self._sim.conditions.sleep(0.2)
        if self._sim.conditions.unstartable(self._process.host):
            raise UsageError("simulated: no port")
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
        mono = self._process.clock.now if ranks.paused else ranks.mono
        return (Signs(active=mono + self._process.host.uptime_ns),) * len(ranks.alive)

    def ask_stack(self, local_rank: int, every: bool = False, locked: bool = False) -> bool:
        """See ``ports.Inspector``."""
        state = self.state(self.pids[local_rank])
        return state not in "TDX"

    def stack(self, local_rank: int) -> str:
        """See ``ports.Inspector``."""
        standing = self.ranks.standing_of(local_rank) if self.ranks is not None else None
        return (standing.kind if standing is not None else WAITS_FOR_OTHERS).dump(standing.name if standing else "")

    # -- samples.Kernel

    def _of(self, pid: int) -> tuple[NodeWorkers, int] | None:
        ranks, local = self.ranks, self.pids.index(pid) if pid in self.pids else -1
        return (ranks, local) if ranks is not None and local >= 0 and ranks.alive[local] else None

    def start_time(self, pid: int) -> str:
        """See ``samples.Kernel``."""
        return str(pid) if self._of(pid) is not None else ""

    def state(self, pid: int) -> str:
        """See ``samples.Kernel``."""
        found = self._of(pid)
        if found is None:
            return "X"
        standing = found[0].standing_of(found[1])
        return standing.kind.letter if standing is not None else "S"

    def native_stack(self, pid: int) -> str:
        """See ``Kernel``: there is none."""
        return ""

    def wait_of(self, pid: int) -> Wait:
        """See ``samples.Kernel``."""
        found = self._of(pid)
        if found is None:
            return Wait()
        standing = found[0].standing_of(found[1])
        if standing is None:
            return Wait(WAITS_FOR_OTHERS.waits)
        ends_at = (standing.until + self._process.host.uptime_ns) / 1e9 if standing.kind.ends else None
        return Wait(standing.kind.waits, ends_at)

    def usages(self, pids: Sequence[int]) -> tuple[list[Usage], list[Connection]]:
        """See ``samples.Kernel``."""
        return [self._usage(pid) for pid in pids], self._connections()

    def _usage(self, pid: int) -> Usage:
        at, found = self._process.mono() / 1e9, self._of(pid)
        if found is None:
            return Usage(at)
        ranks, local = found
        standing = ranks.standing_of(local)
        # The last progress of a rank that waits for others is its last step.
        last = standing.last(self._process.clock.now) if standing is not None else ranks.mono
        busy = standing is not None and standing.kind.state == "runs"
        return Usage(at, self.state(pid), last, at if busy else 0.0, 0, 0, (pid,))

    def _connections(self) -> list[Connection]:
        """Connections of the first rank to every other node; a peer whose frames are blocked does not answer."""
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
                        inode=self.pids[0],
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

    async def perform(self, command: Any, effect: str) -> Performed:
        """See ``ports.Performer``."""
        sim, boundary = self._sim, getattr(command, "boundary", 0)
        if not (boundary or isinstance(command, FindBoundary | PauseWorkers | ResumeWorkers)):
            await asyncio.sleep(sim.conditions.perform_s())
        ranks = self.ranks
        parks = isinstance(command, ParkWorkers)
        if ranks is None or not (any if parks else all)(ranks.alive) or sim.conditions.fails():
            raise Refused("simulated: not possible now")
        if parks:
            if ranks.standing is not None and ranks.standing.hangs:
                await asyncio.sleep(command.grace_s)
            ranks.park()
        elif isinstance(command, SaveCheckpoint) and not command.boundary:
            if ranks.part.group_rank == 0:
                sim.training.save(sim.training.gangs[ranks.round])
        else:
            done = await self._at_boundaries.perform(command, effect)
            await asyncio.sleep(sim.conditions.perform_s())  # after it: orders have their effects in their order
            return done
        return Performed(ranks.step if ranks.steps else None)

    # -- ports.BoundaryControl

    def boundaries(self) -> tuple["SimBoundary | None", ...]:
        """See ``ports.BoundaryControl``."""
        ranks = self.ranks
        return (
            tuple(SimBoundary(self._sim.training, ranks) if alive else None for alive in ranks.alive) if ranks else ()
        )


class SimBoundary:
    """Step boundaries of a simulated worker; see ``ports.WorkerBoundary``. The workers of a node step together.

    Args:
        training: the job's training.
        ranks: the workers of its node.
    """

    def __init__(self, training: JobTraining, ranks: NodeWorkers) -> None:
        self._training, self._ranks = training, ranks

    def read(self) -> BoundaryState:
        """See ``ports.WorkerBoundary``."""
        ranks = self._ranks
        return BoundaryState(WAITS | SAVES, ranks.steps, ranks.waits, ranks.saved)

    def stop_at(self, number: int) -> None:
        """See ``ports.WorkerBoundary``."""
        self._ranks.stop_at = number
        self._ranks.waits &= self._ranks.must_wait

    def save_at(self, number: int, in_memory: bool = False) -> None:
        """See ``ports.WorkerBoundary``."""
        self._ranks.save_at, self._ranks.in_memory = number, in_memory
        self._training.save_requested(self._training.gangs[self._ranks.round])


IN_PROCESS = ("retry", "park")
"""Abilities of workers that can enter the next round without ending."""

IN_PLACE = (FindBoundary, PauseWorkers, ResumeWorkers, ParkWorkers, SaveCheckpoint)
"""Commands that the workers of a capable node can carry out."""


class SimChecker:
    """Checks a node's devices and links; see ``runtime.agent.config.NodeChecker``.

    Args:
        sim: the environment.
        host: the node's host.
    """

    def __init__(self, sim: Environment, host: SimMachine) -> None:
        self._sim, self._host = sim, host
        self.accelerators = sim.options.slots

    async def run(self, command: CheckHealth, effect: str) -> act.Findings:
        """Run a check."""
        await asyncio.sleep(self._sim.conditions.perform_s())
        return self._findings(command)

    async def watch(self, told: Callable[[CheckReport], None]) -> None:
        """Report nothing about accelerators."""
        await asyncio.sleep(1e9)

    def _findings(self, command: CheckHealth) -> act.Findings:
        """Result of a check; a group exchanges data unless one of its hosts, or its switch, is bad."""
        conditions, host = self._sim.conditions, self._host
        verdict = conditions.verdict(host) if command.stage == 1 else "healthy"
        group = command.groups[0] if command.groups else ()
        hosts = [self._sim.host_of(name) for name in group]
        broken = any(other is None or other.bad for other in hosts)
        broken = broken or (bool(command.label) and host.switch in self._sim.bad_switches)
        return act.Findings(
            verdict="healthy" if verdict == "slow" else verdict,
            detail="simulated",
            exchange=conditions.exchange(broken) if group and command.store else "",
            device_s=5.0 if verdict == "slow" else 1.0,
            exchange_s=1.0,
        )

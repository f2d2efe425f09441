"""``ftrun --local-nodes N``: the platform of N nodes on one machine.

It starts one agent per node, and replaces an agent that died (unless the job has released it) or that the master
orders to be replaced. It forwards signals to the job, ends with the job, and runs no worker.
``platforms/machines.py`` keeps which machine has which place; the event log has the job's state and result. Any master
reaches the platform over a private socket (``platforms/local.py``).
"""

import asyncio
import os
import secrets
import signal
from collections.abc import Callable, Sequence

import structlog

from ftcore.errors import STOPPED, FtcoreError, Unreachable, UsageError
from ftcore.events.job import JobFinished
from ftcore.launch.hints import elsewhere
from ftcore.launch.narrator import Narrator
from ftcore.launch.process import handled_signals, signal_code
from ftcore.logs.stores import opened
from ftcore.platforms.local import LocalServer
from ftcore.platforms.machines import Machines, Place
from ftcore.platforms.options import LocalOptions
from ftcore.ports import (
    CapacityChanged,
    EventLog,
    LaunchRequest,
    LeaderElection,
    MaintenanceAnnounced,
    MaintenanceOver,
    NodeEnded,
    NodeWarned,
    Occupant,
    PlatformEvent,
)
from ftcore.runtime.agent.config import Outcome
from ftcore.runtime.agent.workers import processes
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.wire.client import command
from ftcore.runtime.wire.security import Security
from ftcore.runtime.wire.transport import GrpcTransport

BACK_OFF_S = (0.0, 0.2, 1.0, 2.0, 5.0)
"""Pauses before an agent that dies early is started again; after the last one the node is given up."""

SIGNAL_GAP_S = 0.2
"""Pause between two signals to the same agent, so that the kernel does not merge them."""

STORE_RETRY_S = 1.0
"""Pause before a node that could not reach the store is started again."""

RELEASE_SEEN_S = 0.5
"""Longest wait for the log to show that the job released an agent."""

SHORT_LIFE_S = 5.0
"""An agent that ran longer than this is replaced without a pause."""

NO_AGENT_S = 60.0
"""Time without a running agent after which the job is given up, if a master could still launch one."""

ENDED_MAX = 256
"""Ends of agents that are kept for a new master."""

STOP_REQUEST_S = 5.0
"""How long a stop is requested from the master before the agents get SIGTERM."""

logger = structlog.get_logger()


class LocalNodes:
    """Agents of one machine.

    Args:
        nodes: number of nodes.
        command: returns the command line of an agent, given its place and the id of this launch.
        store: URL of the log store.
        job: the job.
        security: credentials for its master.
        socket: path at which the platform is served.
        options: of the platform.
        name: prefix of the nodes' names, before the number of their place.
        signals: signals that shut the job down gracefully.
    """

    def __init__(
        self,
        *,
        nodes: int,
        command: Callable[[Place, str], Sequence[str]],
        store: str,
        job: str,
        security: Security,
        socket: str,
        options: LocalOptions,
        name: str = "node",
        signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    ) -> None:
        self._command = command
        self._store = store
        self._job = job
        self._handled_signals = handled_signals(signals)
        self._security = security
        self._machines = Machines(nodes, name, options)
        self._launch = secrets.token_hex(8)  # an agent that joins after the run's end does not begin another run
        self._server = LocalServer(socket, self)
        self._free = options.capacity
        self._timer: asyncio.TimerHandle | None = None
        self._alive: set[int] = set()
        self._settling: set[int] = set()
        self._preempted: set[int] = set()
        self._ended_nodes: list[NodeEnded] = []
        self._maintenance: dict[str, MaintenanceAnnounced | MaintenanceOver] = {}
        self._born: dict[int, float] = {}
        self._short_lives: dict[int, int] = {}
        self._codes: list[int] = []
        self._signals = 0
        self._signal = signal.SIGTERM
        self._refused = False
        self._closed = False
        self._stopping: set[asyncio.Task[None]] = set()
        self._all_ended = asyncio.Event()

    async def run(self) -> Outcome:
        """Run until every agent has ended for good.

        Raises:
            FtcoreError: the store cannot be used.
        """
        async with opened(self._store, self._job, create=True) as log:
            finished = await self._run_nodes(log)
        if finished is not None:
            return Outcome(exit_code=finished.exit_code, outcome=finished.outcome, reason=finished.reason)
        if self._signals:
            reason = f"ended by {self._signal.name} before the job's own end; it can be started again"
            return Outcome(exit_code=signal_code(self._signal), outcome="stopped", reason=reason)
        code = next((code for code in self._codes if code), 1)
        reason = "no agent could continue; see the messages above"
        return Outcome(exit_code=code if code > 0 else 1, outcome="failed", reason=reason)

    async def _run_nodes(self, log: EventLog) -> JobFinished | None:
        self._loop = asyncio.get_running_loop()
        self._reaper = Reaper()
        for number in self._handled_signals:
            self._loop.add_signal_handler(number, self._on_signal, number, log)
        preempting: asyncio.Task[None] | None = None
        try:
            await self._server.start()
            async with Narrator(log, job=self._job, store=elsewhere(self._store)) as narrator:
                self._narrator = narrator
                narrator.on_admitted = self._admitted
                preempting = self._loop.create_task(self._disturb_in_time())
                self._start_due()
                await self._all_ended.wait()
                return narrator.finished
        finally:
            self._closed = True
            if preempting is not None:
                preempting.cancel()
            for pid in self._alive:
                processes.kill(pid, signal.SIGKILL)
            await self._server.close()
            self._reaper.close()

    @property
    def _over(self) -> bool:
        """Whether no further agent is to be started."""
        return self._narrator.finished is not None or self._signals > 0 or self._refused or self._closed

    # -- agents

    def _start_due(self) -> None:
        """Start agents that are due, report changed capacity, and end if no agent is left."""
        now = self._loop.time()
        due = self._machines.due(now)
        for place in due if not self._over else ():
            self._start(place)
        if self._timer is not None:
            self._timer.cancel()
        coming = self._machines.next_due()
        if coming is not None and not self._over:
            self._timer = self._loop.call_at(coming, self._start_due)
        if self._machines.capacity() != self._free:
            self._free = self._machines.capacity()
            self._server.publish(CapacityChanged(free=self._free))
        if self._alive or self._settling:
            return
        if self._over or (coming is None and self._machines.options.fill):
            self._all_ended.set()
        elif coming is None:
            self._loop.call_later(NO_AGENT_S, self._give_up)

    def _give_up(self) -> None:
        if not self._alive and not self._settling and self._machines.next_due() is None:
            self._all_ended.set()

    def _start(self, place: Place) -> None:
        pid = processes.spawn(self._command(place, self._launch), os.environ, {1: 1, 2: 2}, null=(0,))
        self._machines.started(place, pid)
        self._alive.add(pid)
        self._born[pid] = self._loop.time()
        self._reaper.watch(pid, lambda code, mono: self._ended(pid, code))

    def _ended(self, pid: int, code: int) -> None:
        self._alive.discard(pid)
        self._settling.add(pid)
        self._codes.append(code)
        name = self._machines.name_of(pid)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        ended = NodeEnded(node=name, reason=f"its agent {how}", pid=pid)
        self._ended_nodes = [*self._ended_nodes[1 - ENDED_MAX :], ended]
        self._server.publish(ended)
        if self._over or code >= 0:
            is_final = self._over or code != STOPPED
            self._loop.call_later(0.05 if is_final else RELEASE_SEEN_S, self._settle, pid, name, code)
        else:
            self._settle(pid, name, code)

    def _settle(self, pid: int, name: str, code: int) -> None:
        """Decide whether an agent is replaced: not if the job has ended, or has released or refused it."""
        self._settling.discard(pid)
        self._refused = self._refused or code == UsageError.exit_code
        now = self._loop.time()
        released = code == STOPPED and name in self._narrator.released
        if self._over or code == 0 or released:
            self._machines.left(pid, now)
        elif code == Unreachable.exit_code:
            self._machines.again(pid, now, STORE_RETRY_S)
        else:
            self._replace(pid, name, code, now)
        if code == UsageError.exit_code:
            for other in self._alive:
                processes.kill(other, signal.SIGTERM)
        self._start_due()

    def _replace(self, pid: int, name: str, code: int, now: float) -> None:
        """Start a successor of an agent, after a back-off if agents at this place die early."""
        place = self._machines.place_of(pid)
        number = place.number if place is not None else -1
        lived = now - self._born.pop(pid)
        short = self._short_lives[number] = 0 if lived > SHORT_LIFE_S else self._short_lives.get(number, 0) + 1
        if short >= len(BACK_OFF_S):
            logger.error("agents of a node died early too often; giving up", node=name)
            self._machines.left(pid, now)
        elif code < 0 or pid in self._preempted:
            self._machines.lost(pid, now, BACK_OFF_S[short])
        else:
            self._machines.again(pid, now, BACK_OFF_S[short])

    # -- requests to the platform (``platforms.local.NodeLauncher``)

    def capacity(self) -> int | None:
        """See ``Platform``."""
        return self._machines.capacity()

    def launch(self, request: LaunchRequest) -> None:
        """See ``Platform``."""
        for pid in self._machines.launch(request, self._loop.time()):
            processes.kill(pid, signal.SIGKILL)
        self._start_due()

    def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``Platform``."""
        pid = self._machines.find(place)
        if pid in self._alive:
            self._loop.call_later(grace_s, self._end, pid, self._born[pid])

    def cordon(self, place: Occupant, reason: str) -> None:
        """See ``Platform``."""
        self._machines.cordon(place)

    def happened(self) -> list[PlatformEvent]:
        """See ``NodeLauncher``."""
        return [*self._ended_nodes, *self._maintenance.values()]

    def _end(self, pid: int, born: float) -> None:
        if pid in self._alive and self._born.get(pid) == born:
            processes.kill(pid, signal.SIGKILL)

    async def _disturb_in_time(self) -> None:
        """Start the preemptions and the maintenance of the options; their times count from the first world."""
        options = self._machines.options
        if options.preempt or options.maintain:
            while not self._narrator.formed:  # noqa: ASYNC110  (the narrator reads it from the log)
                await asyncio.sleep(0.1)
        for node, after_s in options.preempt:
            self._loop.call_later(after_s, self._preempt, node)
        for node, after_s, length_s in options.maintain:
            self._loop.call_later(after_s, self._maintain, node, length_s)

    def _maintain(self, node: str, length_s: float) -> None:
        """Announce maintenance of a machine, and its end later; the node runs on."""
        pid = self._machines.find(Occupant(node=node))
        if pid not in self._alive:
            logger.warning("no such node runs; no maintenance is announced", node=node)
            return
        reason = f"the machine of {node} is maintained for {length_s:g} s"
        self._announce(MaintenanceAnnounced(node=node, reason=reason, pid=pid))
        over = MaintenanceOver(node=node, reason=f"the machine of {node} is back", pid=pid)
        self._loop.call_later(length_s, self._announce, over)

    def _announce(self, event: MaintenanceAnnounced | MaintenanceOver) -> None:
        self._maintenance[event.node] = event
        self._server.publish(event)

    def _preempt(self, node: str) -> None:
        """Preempt a machine: notice and SIGTERM now, SIGKILL after the grace period."""
        pid = self._machines.find(Occupant(node=node))
        if pid not in self._alive:
            logger.warning("no such node runs; nothing is preempted", node=node)
            return
        grace_s = self._machines.options.grace_s
        self._preempted.add(pid)
        reason = f"the machine of {node} is preempted in {grace_s:g} s"
        self._server.publish(NodeWarned(node=node, reason=reason, within_s=grace_s, pid=pid))
        processes.kill(pid, signal.SIGTERM)
        self._loop.call_later(grace_s, self._end, pid, self._born[pid])

    # -- signals

    def _admitted(self, node: str) -> None:
        """An operator admitted a node again: start its agent."""
        place = self._machines.admit(node, self._loop.time())
        if place is not None:
            self._short_lives[place.number] = 0
            self._start_due()

    def _on_signal(self, number: signal.Signals, log: LeaderElection) -> None:
        self._signals += 1
        self._signal = number
        if self._signals == 1:
            task = self._loop.create_task(self._request_stop(number, log))
            self._stopping.add(task)
        else:
            self._signal_agents(signal.SIGTERM if self._signals == 2 else signal.SIGKILL)
            if self._signals == 2:  # a second SIGTERM makes an agent kill its workers without a grace period
                self._loop.call_later(SIGNAL_GAP_S, self._signal_agents, signal.SIGTERM)

    def _signal_agents(self, number: signal.Signals) -> None:
        for pid in self._alive:
            processes.kill(pid, number)
        self._start_due()

    async def _request_stop(self, number: signal.Signals, log: LeaderElection) -> None:
        code = signal_code(number)
        deadline = self._loop.time() + STOP_REQUEST_S
        while self._loop.time() < deadline:
            try:
                leader = await log.leader()
                if leader is not None and leader.alive:
                    sender = f"{number.name} to ftrun"
                    await command(
                        GrpcTransport(self._security),
                        leader.candidate.address,
                        self._job,
                        "stop",
                        security=self._security,
                        who=sender,
                        exit_code=code,
                        timeout_s=STOP_REQUEST_S,
                    )
                    return
            except FtcoreError as error:
                logger.debug("the master did not accept the stop request", error=str(error))
            await asyncio.sleep(0.1)
        self._signal_agents(signal.SIGTERM)

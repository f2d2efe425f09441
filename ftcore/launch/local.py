"""``ftrun --local-nodes N``: the platform of N nodes on one machine.

It starts one agent per node, starts a new one in the place of one that died (not of one that the job has released) or
that the master orders to be replaced, forwards signals to the job, and ends with it. It runs no worker. Which machine
is where is kept by ``platforms/machines.py``; what the job is and how it ended stands in the log. The master, whichever
process that is, reaches it over a private socket (``platforms/local.py``).
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
from ftcore.launch.process import obeyed, signal_code
from ftcore.logs.stores import opened
from ftcore.platforms.local import LocalServer
from ftcore.platforms.machines import Machines, Place
from ftcore.platforms.options import LocalOptions
from ftcore.ports import CapacityChanged, EventLog, Happening, NodeEnded, NodeWarned, Occupant
from ftcore.runtime.agent import processes
from ftcore.runtime.agent.config import Outcome
from ftcore.runtime.agent.reaper import Reaper
from ftcore.runtime.wire.client import command
from ftcore.runtime.wire.security import Security
from ftcore.runtime.wire.transport import GrpcTransport

AGAIN_S = (0.0, 0.2, 1.0, 2.0, 5.0)
"""Pauses before a node that died at once, again and again, is started anew; then it is given up."""

TWICE_S = 0.2
"""Between two signals to the same agent, so that they are two."""

STORE_AWAY_S = 1.0
"""Pause before a node is started anew that could not reach the store; the store was there, so it may come back."""

RELEASE_SEEN_S = 0.5
"""How long the log may take to tell whether the job wanted an agent to leave."""

SHORT_LIFE_S = 5.0
"""An agent that lived longer than this was a good one: its successor starts without a pause."""

FORSAKEN_S = 60.0
"""How long no agent runs before the job is given up, if somebody else than this process could still bring one."""

GONE_MAX = 256
"""Ends of agents that a new master is told of."""

PATIENCE_S = 5.0
"""How long the end of the job is asked for before the agents are told themselves."""

logger = structlog.get_logger()


class LocalNodes:
    """Agents of one machine.

    Args:
        nodes: how many.
        command: the command line of the agent at a place, given the name of this launch, the same for all agents.
        store: URL of the log store.
        job: the job.
        security: what is shown to its master.
        socket: path at which the platform is served.
        options: of the platform.
        name: what the nodes are called, before the number of their place.
        signals: those that end the job in order.
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
        self._obeyed = obeyed(signals)
        self._security = security
        self._machines = Machines(nodes, name, options)
        self._launch = secrets.token_hex(8)  # an agent that comes after the run's end begins no other
        self._server = LocalServer(socket, self)
        self._free = options.capacity
        self._timer: asyncio.TimerHandle | None = None
        self._alive: set[int] = set()
        self._settling: set[int] = set()
        self._preempted: set[int] = set()
        self._gone: list[NodeEnded] = []
        self._born: dict[int, float] = {}
        self._short_lives: dict[int, int] = {}
        self._codes: list[int] = []
        self._signals = 0
        self._signal = signal.SIGTERM
        self._refused = False
        self._closed = False
        self._stopping: set[asyncio.Task[None]] = set()
        self._all_gone = asyncio.Event()

    async def run(self) -> Outcome:
        """Run until every agent has ended for good.

        Raises:
            FtcoreError: the store cannot be used.
        """
        async with opened(self._store, self._job, create=True) as log:
            finished = await self._play(log)
        if finished is not None:
            return Outcome(exit_code=finished.exit_code, outcome=finished.outcome, reason=finished.reason)
        if self._signals:
            reason = f"ended by {self._signal.name} before the job's own end; it can be started again"
            return Outcome(exit_code=signal_code(self._signal), outcome="stopped", reason=reason)
        code = next((code for code in self._codes if code), 1)
        reason = "an agent could not go on; its message is above"
        return Outcome(exit_code=code if code > 0 else 1, outcome="failed", reason=reason)

    async def _play(self, log: EventLog) -> JobFinished | None:
        self._loop = asyncio.get_running_loop()
        self._reaper = Reaper()
        for number in self._obeyed:
            self._loop.add_signal_handler(number, self._obey, number, log)
        preempting: asyncio.Task[None] | None = None
        try:
            await self._server.start()
            async with Narrator(log, job=self._job, store=elsewhere(self._store)) as narrator:
                self._narrator = narrator
                narrator.on_admitted = self._admitted
                preempting = self._loop.create_task(self._preempt_in_time())
                self._look()
                await self._all_gone.wait()
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
        """Nobody is to be started any more."""
        return self._narrator.finished is not None or self._signals > 0 or self._refused or self._closed

    # -- agents

    def _look(self) -> None:
        """Start what is due, say what has changed, and see whether this is the end."""
        now = self._loop.time()
        due = self._machines.due(now)
        for place in due if not self._over else ():
            self._start(place)
        if self._timer is not None:
            self._timer.cancel()
        coming = self._machines.next_due()
        if coming is not None and not self._over:
            self._timer = self._loop.call_at(coming, self._look)
        if self._machines.capacity() != self._free:
            self._free = self._machines.capacity()
            self._server.tell(CapacityChanged(free=self._free))
        if self._alive or self._settling:
            return
        if self._over or (coming is None and self._machines.options.fill):
            self._all_gone.set()
        elif coming is None:
            self._loop.call_later(FORSAKEN_S, self._give_up)

    def _give_up(self) -> None:
        if not self._alive and not self._settling and self._machines.next_due() is None:
            self._all_gone.set()

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
        self._gone = [*self._gone[1 - GONE_MAX :], ended]
        self._server.tell(ended)
        if self._over or code >= 0:
            told = self._over or code != STOPPED
            self._loop.call_later(0.05 if told else RELEASE_SEEN_S, self._settle, pid, name, code)
        else:
            self._settle(pid, name, code)

    def _settle(self, pid: int, name: str, code: int) -> None:
        """An exit by itself is final if the job has ended, or released or refused the agent; a crash is not."""
        self._settling.discard(pid)
        self._refused = self._refused or code == UsageError.exit_code
        now = self._loop.time()
        released = code == STOPPED and name in self._narrator.released
        if self._over or code == 0 or released:
            self._machines.left(pid, now)
        elif code == Unreachable.exit_code:
            self._machines.again(pid, now, STORE_AWAY_S)
        else:
            self._succeed(pid, name, code, now)
        if code == UsageError.exit_code:
            for other in self._alive:
                processes.kill(other, signal.SIGTERM)
        self._look()

    def _succeed(self, pid: int, name: str, code: int, now: float) -> None:
        """Somebody follows in the place of an agent; after a pause if it dies at once, again and again."""
        place = self._machines.place_of(pid)
        number = place.number if place is not None else -1
        lived = now - self._born.pop(pid)
        short = self._short_lives[number] = 0 if lived > SHORT_LIFE_S else self._short_lives.get(number, 0) + 1
        if short >= len(AGAIN_S):
            logger.error("an agent dies again and again; giving up", node=name)
            self._machines.left(pid, now)
        elif code < 0 or pid in self._preempted:
            self._machines.lost(pid, now, AGAIN_S[short])
        else:
            self._machines.again(pid, now, AGAIN_S[short])

    # -- what the platform is asked (``platforms.local.Host``)

    def capacity(self) -> int | None:
        """See ``Platform``."""
        return self._machines.capacity()

    def launch(self, effect: str, place: Occupant) -> None:
        """See ``Platform``."""
        for pid in self._machines.launch(effect, place, self._loop.time()):
            processes.kill(pid, signal.SIGKILL)
        self._look()

    def delete(self, place: Occupant, grace_s: float) -> None:
        """See ``Platform``."""
        pid = self._machines.find(place)
        if pid in self._alive:
            self._loop.call_later(grace_s, self._end, pid, self._born[pid])

    def cordon(self, place: Occupant, reason: str) -> None:
        """See ``Platform``."""
        self._machines.cordon(place)

    def happened(self) -> list[Happening]:
        """See ``Host``."""
        return list(self._gone)

    def _end(self, pid: int, born: float) -> None:
        if pid in self._alive and self._born.get(pid) == born:
            processes.kill(pid, signal.SIGKILL)

    async def _preempt_in_time(self) -> None:
        """The options count from the first world: before it, there is nothing to interrupt."""
        if self._machines.options.preempt:
            while not self._narrator.formed:  # noqa: ASYNC110  (the narrator reads it from the log)
                await asyncio.sleep(0.1)
        for node, after_s in self._machines.options.preempt:
            self._loop.call_later(after_s, self._preempt, node)

    def _preempt(self, node: str) -> None:
        """Take a machine away: notice, SIGTERM, and the end after the grace."""
        pid = self._machines.find(Occupant(node=node))
        if pid not in self._alive:
            logger.warning("no such node runs; nothing is preempted", node=node)
            return
        grace_s = self._machines.options.grace_s
        self._preempted.add(pid)
        reason = f"the machine of {node} is taken away in {grace_s:g} s"
        self._server.tell(NodeWarned(node=node, reason=reason, within_s=grace_s, pid=pid))
        processes.kill(pid, signal.SIGTERM)
        self._loop.call_later(grace_s, self._end, pid, self._born[pid])

    # -- signals

    def _admitted(self, node: str) -> None:
        """An operator lets a node in again: whoever plays its machine starts it."""
        place = self._machines.admit(node, self._loop.time())
        if place is not None:
            self._short_lives[place.number] = 0
            self._look()

    def _obey(self, number: signal.Signals, log: EventLog) -> None:
        self._signals += 1
        self._signal = number
        if self._signals == 1:
            task = self._loop.create_task(self._ask_to_stop(number, log))
            self._stopping.add(task)
        else:
            self._tell_agents(signal.SIGTERM if self._signals == 2 else signal.SIGKILL)
            if self._signals == 2:  # an agent that is told twice gives its workers no grace
                self._loop.call_later(TWICE_S, self._tell_agents, signal.SIGTERM)

    def _tell_agents(self, number: signal.Signals) -> None:
        for pid in self._alive:
            processes.kill(pid, number)
        self._look()

    async def _ask_to_stop(self, number: signal.Signals, log: EventLog) -> None:
        code = signal_code(number)
        deadline = self._loop.time() + PATIENCE_S
        while self._loop.time() < deadline:
            try:
                leader = await log.leader()
                if leader is not None and leader.alive:
                    who = f"{number.name} to ftrun"
                    await command(
                        GrpcTransport(self._security),
                        leader.candidate.address,
                        self._job,
                        "stop",
                        security=self._security,
                        who=who,
                        exit_code=code,
                        timeout_s=PATIENCE_S,
                    )
                    return
            except FtcoreError as error:
                logger.debug("the master does not take the command", error=str(error))
            await asyncio.sleep(0.1)
        self._tell_agents(signal.SIGTERM)

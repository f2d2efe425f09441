"""``ftrun --local-nodes N``: the platform of N nodes on one machine.

It starts one agent per node, starts a new one in the place of one that died (not of one that the job has released),
forwards signals to the job, and ends with it. It runs no worker and holds no state: what the job is and how it ended
stands in the log.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import structlog

from ftcore.cli.narrator import Narrator
from ftcore.cli.node import obeyed, signal_code
from ftcore.errors import FtcoreError
from ftcore.ids import JobName
from ftcore.logs import open_store
from ftcore.ports import EventLog
from ftcore.runtime.agent import processes
from ftcore.runtime.agent.agent import Outcome
from ftcore.runtime.agent.reaper import Reaper
from ftcore.runtime.wire.client import command

AGAIN_S = (0.0, 0.2, 1.0, 2.0, 5.0)
"""Pauses before a node that died at once, again and again, is started anew; then it is given up."""

TWICE_S = 0.2
"""Between two signals to the same agent, so that they are two."""

STORE_AWAY_S = 1.0
"""Pause before a node is started anew that could not reach the store; the store was there, so it may come back."""

RELEASED = 5
"""Exit code of an agent that was told to leave: by the job, or by a signal of its own."""

RELEASE_SEEN_S = 0.5
"""How long the log may take to tell whether the job wanted an agent to leave."""

SHORT_LIFE_S = 5.0
"""An agent that lived longer than this was a good one: its successor starts without a pause."""

PATIENCE_S = 5.0
"""How long the end of the job is asked for before the agents are told themselves."""

logger = structlog.get_logger()


class LocalNodes:
    """Agents of one machine.

    Args:
        nodes: how many.
        argv: command line of an agent, to which its place is added.
        store: URL of the log store.
        job: the job.
        name: what the nodes are called, before the number of their place.
    """

    def __init__(self, *, nodes: int, argv: Sequence[str], store: str, job: str, name: str = "node") -> None:
        self._argv = list(argv)
        self._name = name
        self._nodes = nodes
        self._store = store
        self._job = job
        self._agents: dict[int, int] = {}
        self._born: dict[int, float] = {}
        self._short_lives: dict[int, int] = {}
        self._codes: dict[int, int] = {}
        self._signals = 0
        self._signal = signal.SIGTERM
        self._refused = False
        self._stopping: set[asyncio.Task[None]] = set()
        self._all_gone = asyncio.Event()

    async def run(self) -> Outcome:
        """Run until every agent has ended for good.

        Raises:
            FtcoreError: the store cannot be used.
        """
        store = open_store(self._store)
        log = await store.open(JobName(self._job), create=True)
        self._loop = asyncio.get_running_loop()
        self._reaper = Reaper()
        for number in obeyed():
            self._loop.add_signal_handler(number, self._obey, number, log)
        try:
            async with Narrator(log) as narrator:
                self._narrator = narrator
                for place in range(self._nodes):
                    self._start(place)
                await self._all_gone.wait()
                finished = narrator.finished
        finally:
            for pid in self._agents.values():
                processes.kill(pid, signal.SIGKILL)
            self._reaper.close()
            await log.close()
            await store.close()
        if finished is not None:
            return Outcome(exit_code=finished.exit_code, outcome=finished.outcome, reason=finished.reason)
        if self._signals:
            reason = f"ended by {self._signal.name} before the job's own end; it can be started again"
            return Outcome(exit_code=signal_code(self._signal), outcome="stopped", reason=reason)
        code = next((code for code in self._codes.values() if code), 1)
        reason = "an agent could not go on; its message is above"
        return Outcome(exit_code=code if code > 0 else 1, outcome="failed", reason=reason)

    def _start(self, place: int) -> None:
        argv = [*self._argv[:1], "--local-place", str(place), "--local-parent", str(os.getpid()), *self._argv[1:]]
        files = {1: 1, 2: 2}
        pid = processes.spawn([sys.executable, "-m", "ftcore.cli.ftrun", *argv[1:]], os.environ, files, null=(0,))
        self._agents[place], self._born[place] = pid, self._loop.time()
        self._reaper.watch(pid, lambda code, mono: self._ended(place, code))

    def _ended(self, place: int, code: int) -> None:
        del self._agents[place]
        self._codes[place] = code
        if self._narrator.finished is not None or code >= 0 or self._signals:
            told = self._narrator.finished is not None or self._signals or code != RELEASED
            self._loop.call_later(0.05 if told else RELEASE_SEEN_S, self._leave_or_replace, place, code)
        else:
            self._replace(place)

    def _leave_or_replace(self, place: int, code: int) -> None:
        """An exit by itself is final if the job has ended, or released or refused the agent; a crash is not."""
        self._refused = self._refused or code == 2
        released = code == RELEASED and f"{self._name}{place}" in self._narrator.released
        if self._narrator.finished is None and not self._signals and not self._refused and code != 0 and not released:
            self._replace(place, store_away=code == 3)
        elif not self._agents:
            self._all_gone.set()
        elif code == 2:
            for pid in self._agents.values():
                processes.kill(pid, signal.SIGTERM)

    def _replace(self, place: int, *, store_away: bool = False) -> None:
        if store_away:
            self._loop.call_later(STORE_AWAY_S, self._start_again, place)
            return
        lived = self._loop.time() - self._born[place]
        short = self._short_lives[place] = 0 if lived > SHORT_LIFE_S else self._short_lives.get(place, 0) + 1
        if short >= len(AGAIN_S):
            logger.error("an agent dies again and again; giving up", node=f"{self._name}{place}")
            if not self._agents:
                self._all_gone.set()
            return
        self._loop.call_later(AGAIN_S[short], self._start_again, place)

    def _start_again(self, place: int) -> None:
        if self._narrator.finished is None and not self._signals and not self._refused:
            self._start(place)
        elif not self._agents:
            self._all_gone.set()

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

    async def _see_off(self) -> None:
        """Once the run has ended: an agent that had not joined it by then must not begin another one."""
        while self._narrator.finished is None:  # noqa: ASYNC110  (the narrator reads it from the log)
            await asyncio.sleep(0.1)
        self._tell_agents(signal.SIGTERM)

    def _tell_agents(self, number: signal.Signals) -> None:
        for pid in self._agents.values():
            processes.kill(pid, number)
        if not self._agents:
            self._all_gone.set()

    async def _ask_to_stop(self, number: signal.Signals, log: EventLog) -> None:
        code = signal_code(number)
        deadline = self._loop.time() + PATIENCE_S
        while self._loop.time() < deadline:
            try:
                leader = await log.leader()
                if leader is not None and leader.alive:
                    who = f"{number.name} to ftrun"
                    await command(
                        leader.candidate.address, self._job, "stop", who=who, exit_code=code, timeout_s=PATIENCE_S
                    )
                    await self._see_off()
                    return
            except FtcoreError as error:
                logger.debug("the master does not take the command", error=str(error))
            await asyncio.sleep(0.1)
        self._tell_agents(signal.SIGTERM)

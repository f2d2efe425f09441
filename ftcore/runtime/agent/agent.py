"""The agent: one per node. Obeys orders, reports facts, and never decides.

What it makes of an order, of a worker's end or of the loss of its master is said by ``engine/agent.py``; here is what
waits and works: the event loop's tasks, the supervisor, the outbox and the link. Each action of the core has one method
here, and what comes of it is told to the core.
"""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import attrs
import structlog

from ftcore.commands import CheckHealth
from ftcore.engine import actions as act
from ftcore.errors import Refused, StoreError, UsageError
from ftcore.events.node import NodeJoined
from ftcore.events.worker import LogMatched
from ftcore.faults.scan import Hit
from ftcore.ids import Round
from ftcore.ports import EventLog, Inspector, Leader, Supervisor, Transport, Warmer
from ftcore.runtime import tasks
from ftcore.runtime.agent.config import FAREWELL_S, GOODBYE_S, AgentConfig, AgentParts, NodeChecker, Outcome
from ftcore.runtime.agent.evidence import Evidence
from ftcore.runtime.agent.link import Link, make_hello
from ftcore.runtime.agent.node_info import NodeInfoWatch
from ftcore.runtime.agent.outbox import Outbox
from ftcore.runtime.agent.watch_notes import LOOK_S as NOTES_LOOK_S
from ftcore.runtime.agent.watch_progress import ProgressWatch
from ftcore.runtime.checks.protocol import Said
from ftcore.runtime.clock import at
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.states.agent import AgentPhase
from ftcore.version import __version__

FIRST_STEP_LOOK_S = 0.02
"""How often the pages are looked at until every worker has made its first step."""

logger = structlog.get_logger()

KERNEL_RANK = -1
"""Who said it, of lines that are the kernel's: no worker."""


class Agent:
    """One node's agent.

    Args:
        config: what it needs to know.
        log: the job's log, to find the master by; closed by the caller.
        supervisor: runs the workers; closed by the caller.
        put_up_candidate: starts a process that wants the master role, unless one that it started lives. It is given
            None for a standby; else nobody leads, and it is given the process id of a leader of this host that fell
            silent and does not count as living, or 0. None: this agent never does.
        checker: checks this node's devices and links; None: this agent cannot.
        transport: how masters are reached; None: gRPC.
        parts: what else it stands on.
    """

    def __init__(
        self,
        config: AgentConfig,
        log: EventLog,
        supervisor: Supervisor,
        put_up_candidate: Callable[[int | None], None] | None = None,
        checker: NodeChecker | None = None,
        transport: Transport | None = None,
        parts: AgentParts | None = None,
    ) -> None:
        self.config = config
        self._parts = parts = parts or AgentParts()
        self._host = parts.host
        self._log = log
        self._supervisor = supervisor
        self._transport = transport or GrpcTransport(config.security)
        self._put_up_candidate = put_up_candidate
        self._checker = checker
        self._checking: asyncio.Task[None] | None = None
        self._timing = config.submission.spec.timing
        leads = put_up_candidate is not None
        self._core = parts.make_core(
            config.node,
            config.slots,
            self._timing,
            able=(*parts.performers, *((CheckHealth,) if checker is not None else ())),
            lead_delay_s=config.lead_delay_s if leads else None,
        )
        inspector = supervisor if isinstance(supervisor, Inspector) else None
        self._progress = ProgressWatch(self._timing, config.slots, inspector, parts.kernel, parts.host)
        self._evidence = Evidence(config.node, supervisor)
        self._warmer = supervisor if isinstance(supervisor, Warmer) else None
        self._node_info = NodeInfoWatch(config.address, self._host)
        self._rejoin = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._farewell_grace_s = self._timing.stop_grace_s
        if config.leave_within_s is not None:
            self._farewell_grace_s = max(0.0, config.leave_within_s - GOODBYE_S)
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._log_id = ""
        self._outbox: Outbox
        self._link: Link
        self._begin_life()

    # -- life

    def _begin_life(self) -> None:
        """A new incarnation: new identity, nothing obeyed, first fact ``node.joined``."""
        config = self.config
        incarnation = f"{self._host.pid:x}-{self._host.unique()[:8]}"
        self._outbox = Outbox(config.node, incarnation, lambda: self._link.wake())
        self._link = Link(
            host=self._host,
            transport=self._transport,
            log=self._log,
            hello=make_hello(
                job=config.job,
                node=config.node,
                incarnation=incarnation,
                submission=config.submission,
                again=bool(self._core.incarnation),  # who joins anew was fenced, so its last life is in the log
            ),
            outbox=self._outbox,
            security=config.security,
            beat=self._beat,
            timing=self._timing,
            on_welcome=self._welcomed,
            on_broken=lambda: self._do(self._core.stream_broken()),
            on_refused=lambda frame: self._do(self._core.refused(frame.reason, frame.rejoin, frame.release)),
            on_orders=self._obey_all,
            on_standby=lambda: self._do(self._core.standby_wanted()),
            on_looked=lambda led: self._core.looked_up(_now(), led),
            on_leaderless=self._leaderless,
        )
        spec = config.submission.spec
        joined = NodeJoined(
            node=config.node,
            incarnation=incarnation,
            slots=config.slots,
            host=self._host.name,
            pid=self._host.pid,
            address=config.address,
            version=__version__,
            ordinal=config.ordinal,
            labels=dict(config.labels),
            accelerators=self._checker.accelerators if self._checker is not None else 0,
            checks=self._checker is not None,
            role=spec.role if spec.own_commands else "",
            command=spec.argv if spec.own_commands else (),
            warms=self._warmer is not None,
        )
        self._do(self._core.begin(joined))

    async def run(self) -> Outcome:
        """Take part until the job has ended or this node is told to leave.

        Raises:
            Refused: the job does not want this agent; the message says why.
        """
        work = (
            self._keep_bond(),
            self._watch_exits(),
            self._watch_grace(),
            self._watch_progress(),
            self._watch_notes(),
        )
        duties = [asyncio.ensure_future(duty) for duty in work]
        if self._checker is not None and self._checker.accelerators:
            self._spawn(self._checker.watch(self._watched))
        if self._warmer is not None:
            self._spawn(self._warm(self._warmer))
        try:
            awaited: list[asyncio.Future[Any]] = [self._ended, *duties]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for duty in duties:
                if duty.done():
                    duty.result()
            outcome = self._ended.result()
            await self._say_farewell(outcome)
            return outcome
        finally:
            await tasks.end([*duties, *self._tasks])
            await self._outbox.close()

    async def _warm(self, warmer: Warmer) -> None:
        if await warmer.warmed():
            self._warmer = None  # a life that begins from now on is warm when it joins
            self._do(self._core.warmed())

    async def _keep_bond(self) -> None:
        while True:
            link = asyncio.create_task(self._link.run())
            self._rejoin.clear()
            again = asyncio.create_task(self._rejoin.wait())
            try:
                await asyncio.wait({link, again}, return_when=asyncio.FIRST_COMPLETED)
                if link.done():
                    link.result()
            finally:
                await tasks.end([link, again])
            await self._halt(self._timing.stop_grace_s)
            if self._ended.done():
                return
            await self._outbox.close()
            self._begin_life()
            await asyncio.sleep(self._timing.reconnect_s)

    async def _say_farewell(self, outcome: Outcome) -> None:
        await self._halt(self._farewell_grace_s)
        if self._core.unheard:
            return
        goes_on = outcome.outcome in ("left", "lost")
        self._do(self._core.farewell(outcome.reason if goes_on else outcome.outcome, lost=outcome.outcome == "lost"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._outbox.emptied()

    async def _halt(self, grace_s: float) -> None:
        """Stop the workers because this life ends."""
        self._core.halt()
        self._give_up_start()
        self._give_up_check()
        await self._supervisor.stop(grace_s)

    @property
    def phase(self) -> AgentPhase:
        """Where its bond with the master is."""
        return self._core.phase

    @property
    def following(self) -> bool:
        """A master takes its facts."""
        return self.phase is AgentPhase.FOLLOWING

    @property
    def over(self) -> bool:
        """Its work has ended, or is about to: it only says goodbye."""
        return self._ended.done()

    def leave(self, reason: str, exit_code: int = 5, grace_s: float | None = None, *, lost: bool = False) -> None:
        """Stop the workers, say goodbye and end; the job may go on without this node.

        Args:
            reason: why, for people.
            exit_code: what ``ftrun`` should exit with.
            grace_s: seconds between TERM and KILL of the workers; a second call may shorten it. None: the job's own.
            lost: the launcher of the workers died.
        """
        if not self._ended.done():
            self._do(self._core.told_to_leave(reason, exit_code, lost=lost))
        if grace_s is not None:
            self._farewell_grace_s = min(self._farewell_grace_s, grace_s)
            self._spawn(self._supervisor.stop(grace_s))

    def cannot_lead(self, reason: str) -> None:
        """The candidate of this node ended because it cannot use the log; nothing to wait for if nobody ever led."""
        if self.phase is AgentPhase.CONNECTING and not self._ended.done():
            self._ended.set_exception(StoreError(reason))
        else:
            self._link.say("this node puts up no master; training goes on", reason)

    def ask_to_stop(self, who: str, exit_code: int) -> None:
        """Ask the master to end the job (a signal to a standalone ``ftrun``); too late once this agent has ended."""
        if not self._ended.done():
            self._do(self._core.told_to_stop(who, exit_code))

    def give_up(self, reason: str, exit_code: int) -> None:
        """Tell the master that the launcher of the workers starts no more of them; the run ends as failed."""
        self._do(self._core.gave_up(reason, exit_code))

    def store_lost(self, round_: Round) -> None:
        """The supervisor lost the store of a round."""
        self._do(self._core.store_lost(round_))

    def matched(self, round_: Round, rank: int, hit: Hit) -> None:
        """A rule knows lines that a worker printed."""
        self._node_info.matched(hit.cls, hit.count)
        if self._core.round == round_:
            fact = LogMatched(
                node=self.config.node,
                incarnation=self._core.incarnation,
                round=round_,
                rank=rank,
                rule=hit.rule,
                cls=hit.cls,
                line=hit.line,
                count=hit.count,
            )
            self._record(fact)

    def _record(self, data: Any, mono: int | None = None) -> None:
        self._outbox.add(data, at(mono, self._host))

    def _watched(self, said: Said) -> None:
        """The accelerators were looked at, and the kernel had something to say of them."""
        self._node_info.gauged(said.gauges, said.detail)
        for hit in said.hits:
            if self._core.running:
                self.matched(self._core.round, KERNEL_RANK, hit)
            else:
                self._node_info.matched(hit.cls, hit.count)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None and not self._ended.done():
            self._ended.set_exception(task.exception() or AssertionError)

    # -- the bond

    def _leaderless(self, silent: Leader | None) -> None:
        here = silent is not None and silent.candidate.host == self._host.name
        self._do(self._core.leaderless(_now(), silent.candidate.pid if silent is not None and here else 0))

    def _welcomed(self, frame: frames.Welcome) -> None:
        self._log_id = frame.mark.log_id
        path = self.config.state_dir / frame.mark.log_id / f"{self.config.node}.outbox"
        self._outbox.open(lambda: self._parts.journal(path))
        self._node_info.forget()
        self._progress.forget()
        self._do(self._core.welcomed(frame.term))

    def _beat(self) -> frames.Beat:
        pulse = self._core.pulse(self._supervisor.progress() if self._core.running else ())
        about = self._node_info.changes(_now(), self._doing())
        own_s, whole_s = (pulse.pace.own_s, pulse.pace.whole_s) if pulse.pace is not None else (None, None)
        stands = self._progress.news() if self._core.running else None
        net = self._progress.net if stands is not None else None
        return frames.Beat(pulse.round, pulse.step, pulse.absolute, pulse.loss, about, own_s, whole_s, stands, net)

    def _doing(self) -> str:
        if self._checking is not None and not self._checking.done():
            return "checking"
        return self._core.doing

    async def _watch_grace(self) -> None:
        while True:
            await asyncio.sleep(min(self._timing.orphan_grace_s / 10, 1.0))
            self._do(self._core.waited(_now(), self._supervisor.progress() if self._core.running else ()))

    def _obey_all(self, frame: frames.Orders) -> None:
        for order in frame.orders:
            self._do(self._core.obey(order))

    # -- actions

    def _do(self, actions: act.Actions) -> None:
        for action in actions:
            self._doers[type(action)](self, action)

    def _tell(self, action: act.Tell) -> None:
        self._record(action.data, action.mono)

    def _perform(self, action: act.Perform) -> None:
        if isinstance(action.command, CheckHealth):
            self._give_up_check()
            self._checking = self._spawn(self._check(action, action.command))
        else:
            self._spawn(self._perform_in_place(action))

    async def _perform_in_place(self, action: act.Perform) -> None:
        try:
            step = await self._parts.performers[type(action.command)].perform(action.command, action.effect)
        except Refused as error:
            self._do(self._core.failed_to(action, str(error)))
        else:
            self._do(self._core.performed(action, step))

    async def _check(self, action: act.Perform, command: CheckHealth) -> None:
        assert self._checker is not None
        begun = asyncio.get_running_loop().time()
        try:
            found = await self._checker.run(command, action.effect)
        except OSError as error:  # out of descriptors or memory: that must not keep anybody from training
            found = act.Findings(verdict="unavailable", detail=f"the check cannot be made: {error}")
        took_s = round(asyncio.get_running_loop().time() - begun, 3)
        self._do(self._core.checked(action, attrs.evolve(found, took_s=took_s)))

    def _give_up_check(self) -> None:
        if self._checking is not None and not self._checking.done():
            self._checking.cancel()

    def _begin_start(self, action: act.Start) -> None:
        self._give_up_check()
        self._starting = self._spawn(self._start(action))

    async def _start(self, action: act.Start) -> None:
        try:
            launch = self.config.launch(action.round, action.part, self._log_id)
            pids, how = await self._supervisor.start(launch)
        except UsageError as error:
            self._do(self._core.unstartable(action, str(error)))
            return
        self._progress.begin(pids, action.part.base_rank, _now(), launch.log_dirs)
        self._evidence.begin(action.round, action.part.base_rank)
        self._do(self._core.started(action, pids, how))
        if self._core.awaits_steps:
            self._watching = self._spawn(self._watch_first_steps())

    async def _watch_first_steps(self) -> None:
        while self._core.awaits_steps:
            self._do(self._core.looked(self._supervisor.progress()))
            await asyncio.sleep(FIRST_STEP_LOOK_S)  # shared memory wakes nobody

    async def _watch_exits(self) -> None:
        async for ended in self._supervisor.exits():
            if self._core.running:
                self._tell_notes()
            self._do(self._core.exited(ended, self._supervisor.progress()))

    async def _watch_progress(self) -> None:
        while True:
            await asyncio.sleep(self._progress.look_s)
            if self._core.running:
                await self._progress.look(self._supervisor.progress, _now)

    def _tell_notes(self) -> None:
        for told in self._evidence.notes(_now(), self._core.incarnation):
            self._record(told.fact, told.mono)

    def _tell_failure(self, action: act.TellFailure) -> None:
        self._tell_notes()
        self._record(self._evidence.of_failure(action.data, action.mono), action.mono)

    async def _watch_notes(self) -> None:
        while True:
            await asyncio.sleep(NOTES_LOOK_S)
            if self._core.running:
                self._tell_notes()

    def _begin_stop(self, action: act.Stop) -> None:
        self._give_up_start()
        self._spawn(self._stop(action))

    def _give_up_start(self) -> None:
        for task in (self._starting, self._watching):
            if task is not None and not task.done():
                task.cancel()

    async def _stop(self, action: act.Stop) -> None:
        codes = await self._supervisor.stop(action.grace_s)
        self._tell_notes()
        self._do(self._core.stopped(action, codes))

    def _begin_open(self, action: act.Open) -> None:
        self._spawn(self._open(action))

    async def _open(self, action: act.Open) -> None:
        try:
            host, port = await self._supervisor.open_store(action.round, self.config.address)
        except UsageError as error:
            self._do(self._core.store_failed(action, str(error)))
        else:
            self._do(self._core.store_opened(action, host, port))

    def _leave(self, action: act.Leave) -> None:
        if not self._ended.done():
            if action.outcome == "left" and action.exit_code == 0:
                logger.warning("this node leaves a job that has not ended", reason=action.reason)
            self._ended.set_result(Outcome(exit_code=action.exit_code, outcome=action.outcome, reason=action.reason))

    def _join_anew(self, action: act.Rejoin) -> None:
        if not self._ended.done():
            logger.warning("fenced; stopping the workers and joining anew", reason=action.reason)
            self._rejoin.set()

    def _give_up(self, action: act.GiveUp) -> None:
        if not self._ended.done():
            self._ended.set_exception(Refused(action.reason))

    def _lead(self, action: act.Lead) -> None:
        if self._put_up_candidate is not None:
            self._put_up_candidate(action.silent)

    _doers: ClassVar[dict[type[Any], Callable[["Agent", Any], None]]] = {
        act.Tell: _tell,
        act.TellFailure: _tell_failure,
        act.Start: _begin_start,
        act.Stop: _begin_stop,
        act.Open: _begin_open,
        act.Perform: _perform,
        act.Leave: _leave,
        act.Rejoin: _join_anew,
        act.GiveUp: _give_up,
        act.Lead: _lead,
    }


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The agent of a node: carries out orders and reports facts; it makes no decisions about the job.

``engine/agent.py`` (the core) determines the reaction to an order, a worker's end or the loss of the master. This
module does the work: tasks of the event loop, supervisor, outbox and link. Each action of the core has one method here,
which reports its result to the core.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import structlog

from ftcore.commands import CheckHealth
from ftcore.engine import actions as act
from ftcore.errors import Refused, StoreError, UsageError
from ftcore.events.worker import KERNEL_RANK, LogMatched
from ftcore.faults.scan import Hit
from ftcore.ids import Round
from ftcore.ports import Inspector, Leader, LeaderElection, Progress, Supervisor, Transport, Warmer
from ftcore.runtime import tasks
from ftcore.runtime.agent.config import LAST_FACTS_S, LEAVE_MARGIN_S, AgentConfig, AgentParts, NodeChecker, Outcome
from ftcore.runtime.agent.link.link import Link, make_hello
from ftcore.runtime.agent.link.outbox import Outbox
from ftcore.runtime.agent.telemetry.evidence import Evidence
from ftcore.runtime.agent.telemetry.node_info import NodeInfoWatch
from ftcore.runtime.agent.telemetry.watch_notes import PAGES_POLL_S
from ftcore.runtime.agent.telemetry.watch_progress import ProgressWatch
from ftcore.runtime.agent.workers.parking import WorkerFault
from ftcore.runtime.checks.protocol import CheckReport
from ftcore.runtime.clock import at
from ftcore.runtime.log_context import describe
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.states.agent import AgentPhase

FIRST_STEP_POLL_S = 0.02  # least interval: shared memory has no notification; pages have the time of the step
"""Interval of polling the shared pages until every worker has completed its first step."""

logger = structlog.get_logger()


class Agent:
    """One node's agent.

    Args:
        config: the configuration.
        log: the job's log, to look up the master; closed by the caller.
        supervisor: runs the workers; closed by the caller.
        start_candidate: starts a master candidate, unless one is alive. Its argument is None for a standby; without a
            leader it is the process id of a silent leader on this host, or 0. None: this agent starts no candidates.
        checker: checks this node's devices and links; None: no checks.
        transport: connects to masters; None: gRPC.
        parts: other dependencies.
    """

    def __init__(
        self,
        config: AgentConfig,
        log: LeaderElection,
        supervisor: Supervisor,
        start_candidate: Callable[[int | None], None] | None = None,
        checker: NodeChecker | None = None,
        transport: Transport | None = None,
        parts: AgentParts | None = None,
    ) -> None:
        self.config = config
        self._parts = parts = parts or AgentParts()
        self._host = parts.host
        self._now = asyncio.get_running_loop().time
        self._log = log
        self._supervisor = supervisor
        self._transport = transport or GrpcTransport(config.security)
        self._start_candidate = start_candidate
        self._checker = checker
        self._checking: asyncio.Task[None] | None = None
        self._timing = config.submission.spec.timing
        self._core = parts.make_core(
            config.node,
            config.slots,
            self._timing,
            able=(*parts.performers, *((CheckHealth,) if checker is not None else ())),
            lead_delay_s=config.lead_delay_s if start_candidate is not None else None,
        )
        inspector = supervisor if isinstance(supervisor, Inspector) else None
        self._progress = ProgressWatch(self._timing, config.slots, inspector, parts.kernel, parts.host)
        self._evidence = Evidence(config.node, supervisor)
        self._warmer = supervisor if isinstance(supervisor, Warmer) else None
        self._node_info = NodeInfoWatch(config.address, self._host)
        self._rejoin = asyncio.Event()
        self._runs, self._orphaned = asyncio.Event(), asyncio.Event()  # as the core: a standby polls nothing
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._sampling: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._leave_grace_s = self._timing.stop_grace_s
        if config.leave_within_s is not None:
            self._leave_grace_s = max(0.0, config.leave_within_s - LEAVE_MARGIN_S)
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._log_id = ""
        self._noticed: list[WorkerFault] = []
        self._checkpoints = parts.checkpoints
        self._checkpoints.attach(self._record, lambda: (config.node, self._core.incarnation))
        self._outbox: Outbox
        self._link: Link
        self._begin_life()

    # -- life

    def _begin_life(self) -> None:
        """Begin a new incarnation: a new id, no orders carried out, ``node.joined`` as the first fact."""
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
                again=bool(self._core.incarnation),  # rejoins after fencing, so the log has its last incarnation
            ),
            outbox=self._outbox,
            security=config.security,
            beat=self._beat,
            timing=self._timing,
            on_welcome=self._welcomed,
            on_broken=lambda: self._do(self._core.stream_broken()),
            on_refused=lambda frame: self._do(self._core.refused(frame.reason, frame.rejoin, frame.release)),
            on_orders=self._carry_out,
            on_queue=self._checkpoints.queues.told,
            on_standby=lambda: self._do(self._core.standby_wanted()),
            on_lookup=lambda led: self._core.looked_up(self._now(), led),
            on_leaderless=self._leaderless,
        )
        warms = self._warmer is not None
        self._do(self._core.begin(config.joined(incarnation, self._host, self._checker, self._checkpoints, warms)))
        self._checkpoints.joined()

    async def run(self) -> Outcome:
        """Work for the job until it has ended or this node has to leave.

        Raises:
            Refused: the master refuses this agent; the message says why.
        """
        watches = (self._watch_exits, self._watch_grace, self._watch_pages)
        duties = [asyncio.ensure_future(duty()) for duty in (self._maintain_link, *watches)]
        if self._checker is not None and self._checker.accelerators:
            self._spawn(self._checker.watch(self._on_device_report))
        if self._warmer is not None:
            self._spawn(self._warm(self._warmer))
        try:
            awaited: list[asyncio.Future[Any]] = [self._ended, *duties]
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
            for duty in duties:
                if duty.done():
                    duty.result()
            outcome = self._ended.result()
            await self._depart(outcome)
            return outcome
        finally:
            await tasks.end([*duties, *self._tasks])
            await self._outbox.close()

    async def _warm(self, warmer: Warmer) -> None:
        if await warmer.warmed():
            self._warmer = None  # later incarnations are warm when they join
            self._do(self._core.warmed())

    async def _maintain_link(self) -> None:
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
            await self._checkpoints.prepare()
            self._begin_life()
            await asyncio.sleep(self._timing.reconnect_s)

    async def _depart(self, outcome: Outcome) -> None:
        await self._halt(self._leave_grace_s)
        if self._core.unheard:
            return
        goes_on = outcome.outcome in ("left", "lost")
        self._do(self._core.farewell(outcome.reason if goes_on else outcome.outcome, lost=outcome.outcome == "lost"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_FACTS_S):
                await self._outbox.emptied()

    async def _halt(self, grace_s: float) -> None:
        """Stop the workers at the end of this incarnation."""
        self._core.halt()
        self._give_up_start()
        self._give_up_check()
        await self._supervisor.stop(grace_s)

    @property
    def phase(self) -> AgentPhase:
        """The phase of the connection to the master."""
        return self._core.phase

    @property
    def following(self) -> bool:
        """Whether a master accepts the agent's facts."""
        return self.phase is AgentPhase.FOLLOWING

    @property
    def over(self) -> bool:
        """Whether the agent's work has ended, apart from sending its last facts."""
        return self._ended.done()

    def leave(self, reason: str, exit_code: int = 5, grace_s: float | None = None, *, lost: bool = False) -> None:
        """Stop the workers, report the departure and end; the job may continue without this node.

        Args:
            reason: the reason, for operators.
            exit_code: exit code of ``ftrun``.
            grace_s: seconds between SIGTERM and SIGKILL of the workers, only ever shortened; None: the job's setting.
            lost: the launcher of the workers died.
        """
        if not self._ended.done():
            self._do(self._core.leave_ordered(reason, exit_code, lost=lost))
        if grace_s is not None:
            self._leave_grace_s = min(self._leave_grace_s, grace_s)
            self._spawn(self._supervisor.stop(grace_s))

    def warn(self, reason: str, within_s: float) -> None:
        """Report that this node leaves within so many seconds, for example because its machine is preempted."""
        self._do(self._core.warned(reason, within_s))

    def cannot_lead(self, reason: str) -> None:
        """Note that this node's candidate cannot use the log; end the agent if it never had a master."""
        if self.phase is AgentPhase.CONNECTING and not self._ended.done():
            self._ended.set_exception(StoreError(reason))
        else:
            self._link.warn_once("cannot start a master on this node; training continues", reason)

    def ask_to_stop(self, who: str, exit_code: int) -> None:
        """Ask the master to end the job, after a signal to a standalone ``ftrun``; ignored after its end."""
        if not self._ended.done():
            self._do(self._core.told_to_stop(who, exit_code))

    def give_up(self, reason: str, exit_code: int) -> None:
        """Report that the launcher of the workers starts no more of them; the run ends as failed."""
        self._do(self._core.gave_up(reason, exit_code))

    def store_lost(self, round_: Round) -> None:
        """Report that the supervisor lost the store of a round."""
        self._do(self._core.store_lost(round_))

    def matched(self, round_: Round, rank: int, hit: Hit) -> None:
        """Report lines of a worker's output that match a rule."""
        self._node_info.matched(hit.cls, hit.count)
        if self._core.round == round_:
            node, life = self.config.node, self._core.incarnation
            self._record(LogMatched(node=node, incarnation=life, round=round_, rank=rank, **attrs.asdict(hit)))

    def noticed(self, fault: WorkerFault) -> None:
        """Report a fault that a worker of this node noticed and stays alive after, once its round has started."""
        self._noticed.append(fault)
        if self._core.running:
            self._report_noticed()

    def _report_noticed(self) -> None:
        noticed, self._noticed = self._noticed, []
        for fault in noticed:
            if fault.round == self._core.round and self._core.part is not None:
                self._record(fault.fact(self.config.node, self._core.incarnation, self._core.part.base_rank))

    def _record(self, data: Any, mono: int | None = None) -> None:
        self._outbox.add(data, at(mono, self._host))

    def _on_device_report(self, report: CheckReport) -> None:
        """Process a report about the accelerators."""
        self._node_info.gauged(report.gauges, report.detail)
        for hit in report.hits:
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

    # -- connection to the master

    def _leaderless(self, silent: Leader | None) -> None:
        here = silent is not None and silent.candidate.host == self._host.name
        self._do(self._core.leaderless(self._now(), silent.candidate.pid if silent is not None and here else 0))

    def _welcomed(self, frame: frames.Welcome) -> None:
        self._log_id = frame.mark.log_id
        path = self.config.state_dir / frame.mark.log_id / f"{self.config.node}.outbox"
        self._outbox.open(lambda: self._parts.journal(path))
        self._checkpoints.welcomed(self._log_id)
        self._node_info.forget()
        self._progress.forget()
        self._do(self._core.welcomed(frame.term))

    def _beat(self) -> frames.Beat:
        pulse = self._core.pulse(self._supervisor.progress() if self._core.running else ())
        about = self._node_info.changes(self._now(), self._activity())
        describe(round=pulse.round or None)
        pace: tuple[float | None, float | None] = attrs.astuple(pulse.pace) if pulse.pace is not None else (None, None)
        stands = self._progress.changes() if self._core.running else None
        measured = (*pace, stands, self._progress.net if stands is not None else None, pulse.ranks, pulse.reporting)
        return frames.Beat(pulse.round, pulse.step, pulse.absolute, pulse.loss, about, *measured)

    def _activity(self) -> str:
        return "checking" if self._checking is not None and not self._checking.done() else self._core.doing

    async def _watch_grace(self) -> None:
        while True:
            await self._orphaned.wait()
            await asyncio.sleep(min(self._timing.orphan_grace_s / 10, 1.0))
            self._do(self._core.waited(self._now(), self._supervisor.progress() if self._core.running else ()))

    def _carry_out(self, frame: frames.Orders) -> None:
        for order in frame.orders:
            self._do(self._core.obey(order))

    # -- actions

    def _do(self, actions: act.Actions) -> None:
        for action in actions:
            self._handlers[type(action)](self, action)
        for event, holds in ((self._runs, self._core.running), (self._orphaned, self._core.orphaned)):
            if holds:
                event.set()
            else:
                event.clear()

    def _report(self, action: act.Tell) -> None:
        self._record(action.data, action.mono)

    def _perform(self, action: act.Perform) -> None:
        if isinstance(action.command, CheckHealth):
            self._give_up_check()
            self._checking = self._spawn(self._check(action, action.command))
        else:
            self._spawn(self._perform_in_place(action))

    async def _perform_in_place(self, action: act.Perform) -> None:
        try:
            done = await self._parts.performers[type(action.command)].perform(action.command, action.effect)
        except Refused as error:
            self._do(self._core.failed_to(action, str(error)))
        else:
            self._do(self._core.performed(action, done))

    async def _check(self, action: act.Perform, command: CheckHealth) -> None:
        assert self._checker is not None
        begun = asyncio.get_running_loop().time()
        try:
            found = await self._checker.run(command, action.effect)
        except OSError as error:  # out of descriptors or memory: no reason not to train
            found = act.Findings(verdict="unavailable", detail=f"the check cannot run: {error}")
        took_s = round(asyncio.get_running_loop().time() - begun, 3)
        self._do(self._core.checked(action, attrs.evolve(found, took_s=took_s)))

    def _give_up_check(self) -> None:
        if self._checking is not None and not self._checking.done():
            self._checking.cancel()

    def _begin_start(self, action: act.StartRound) -> None:
        self._give_up_check()
        self._starting = self._spawn(self._start(action))

    async def _start(self, action: act.StartRound) -> None:
        try:
            self._checkpoints.begin_round(action.part)
            launch = self.config.launch(action.round, action.part, self._log_id)
            pids, how = await self._supervisor.start(launch)
        except UsageError as error:
            self._do(self._core.unstartable(action, str(error)))
            return
        self._progress.begin(pids, action.part.base_rank, self._now(), launch.log_dirs, how)
        self._evidence.begin(action.round, action.part.base_rank)
        log_dir = str(Path(launch.log_dirs[0]).parent) if self.config.writes_output and launch.log_dirs else ""
        self._do(self._core.started(action, pids, how, log_dir))
        self._report_noticed()
        if self._core.awaits_steps:
            self._watching = self._spawn(self._watch_first_steps())

    async def _watch_first_steps(self) -> None:
        began = self._now()
        while self._core.awaits_steps:
            self._do(self._core.looked(self._supervisor.progress(), self._now()))
            await asyncio.sleep(max(FIRST_STEP_POLL_S, min((self._now() - began) / 20, PAGES_POLL_S)))

    async def _watch_exits(self) -> None:
        async for ended in self._supervisor.exits():
            pages = self._supervisor.progress()
            if self._core.running:
                self._report_notes(pages)
                if ended.exitcode == 0:  # before the answer: the job may end with it
                    await self._checkpoints.report_queues()
            self._do(self._core.exited(ended, pages))

    async def _watch_pages(self) -> None:
        """Read the workers' pages: their notes every time, their progress at its own interval."""
        while True:
            await self._runs.wait()
            await asyncio.sleep(min(PAGES_POLL_S, self._progress.check_s))
            if self._core.running:
                pages = self._supervisor.progress()
                self._report_notes(pages)
                quiet = self._progress.check(pages, self._now()) if self._progress.is_due(self._now()) else []
                if quiet and (self._sampling is None or self._sampling.done()):
                    self._sampling = self._spawn(self._progress.sample(quiet, self._supervisor.progress, self._now))

    def _report_notes(self, pages: Sequence[Progress | None]) -> None:
        for note in self._evidence.notes(pages, self._now(), self._core.incarnation):
            self._record(note.fact, note.mono)

    def _report_failure(self, action: act.TellFailure) -> None:
        self._report_notes(self._supervisor.progress())
        self._record(self._evidence.of_failure(action.data, action.mono), action.mono)

    def _begin_stop(self, action: act.StopRound) -> None:
        self._give_up_start()
        self._spawn(self._stop(action))

    def _give_up_start(self) -> None:
        for task in (self._starting, self._watching):
            if task is not None and not task.done():
                task.cancel()

    async def _stop(self, action: act.StopRound) -> None:
        codes = await self._supervisor.stop(action.grace_s)
        self._report_notes(self._supervisor.progress())
        await self._checkpoints.report_held()  # before the answer: the next world depends on it
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

    def _join_again(self, action: act.Rejoin) -> None:
        if not self._ended.done():
            logger.warning("this node was fenced; stopping the workers and joining again", reason=action.reason)
            self._rejoin.set()

    def _give_up(self, action: act.GiveUp) -> None:
        if not self._ended.done():
            self._ended.set_exception(Refused(action.reason))

    def _lead(self, action: act.Lead) -> None:
        if self._start_candidate is not None:
            self._start_candidate(action.silent)

    _handlers: ClassVar[dict[type[Any], Callable[["Agent", Any], None]]] = {
        act.Tell: _report,
        act.TellFailure: _report_failure,
        act.StartRound: _begin_start,
        act.StopRound: _begin_stop,
        act.Open: _begin_open,
        act.Perform: _perform,
        act.Leave: _leave,
        act.Rejoin: _join_again,
        act.GiveUp: _give_up,
        act.Lead: _lead,
    }

"""The agent: one per node. Obeys orders, reports facts, and never decides.

House rules: an order of an older term or round than one obeyed before is refused; an order seen twice is carried out
once; losing the master stops nothing by itself. The agent's bond is the machine ``states/agent.py``.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import structlog

from ftcore import __version__
from ftcore.commands import OpenStore, ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.orders import Order, Slice
from ftcore.errors import Refused, StoreError, UsageError
from ftcore.events.node import NodeJoined, NodeLeft, OrderRefused
from ftcore.events.operator import OperatorCommanded
from ftcore.events.worker import (
    EVIDENCE_BYTES_MAX,
    WorkerFailed,
    WorkersFinished,
    WorkersStarted,
    WorkersStepped,
    WorkersStopped,
    WorkersUnstartable,
)
from ftcore.events.world import StoreFailed, StoreOpened
from ftcore.ids import Round, Term
from ftcore.ports import EventLog, Launch, Leader, Progress, Supervisor, WorkerExit
from ftcore.runtime import tasks
from ftcore.runtime.agent.environment import worker_env
from ftcore.runtime.agent.errorfile import read_error_file
from ftcore.runtime.agent.link import Link, make_hello
from ftcore.runtime.agent.outbox import Outbox
from ftcore.runtime.clock import at
from ftcore.runtime.wire import frames
from ftcore.states.agent import AGENT, AgentPhase

FIRST_STEP_LOOK_S = 0.02
"""How often the pages are looked at until every worker has made its first step."""

FAREWELL_S = 3.0
"""How long an agent that leaves waits for its last facts to be acknowledged."""

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class AgentConfig:
    """What an agent needs to know.

    Args:
        job: the job.
        node: the node's name.
        slots: workers to run.
        address: host name or address at which other nodes reach this one.
        submission: what was asked to be run.
        log_dir: directory for the workers' logs and error files.
        state_dir: directory for the agent's own files.
        env: environment that workers inherit.
        ordinal: the place asked for, or None.
        token: the job's token.
        lead_delay_s: how long nobody must lead before this agent puts up a candidate; None: it never does.
    """

    job: str
    node: str
    slots: int
    address: str
    submission: frames.Submission
    log_dir: Path
    state_dir: Path
    env: Mapping[str, str]
    ordinal: int | None = None
    token: str = ""
    lead_delay_s: float | None = 0.0


@attrs.frozen(kw_only=True)
class Outcome:
    """How an agent's work ended.

    Args:
        exit_code: what ``ftrun`` should exit with.
        outcome: ``succeeded``, ``failed``, ``stopped``, or ``left`` if the job goes on without this node.
        reason: one sentence.
    """

    exit_code: int
    outcome: str
    reason: str


class Agent:
    """One node's agent.

    Args:
        config: what it needs to know.
        log: the job's log, to find the master by; closed by the caller.
        supervisor: runs the workers; closed by the caller.
        put_up_candidate: starts a process that wants the master role, unless one that it started lives. It is given
            None for a standby; else nobody leads, and it is given the process id of a leader of this host that fell
            silent and does not count as living, or 0. None: this agent never does.
    """

    def __init__(
        self,
        config: AgentConfig,
        log: EventLog,
        supervisor: Supervisor,
        put_up_candidate: Callable[[int | None], None] | None = None,
    ) -> None:
        self.config = config
        self.phase: AgentPhase = AgentPhase.CONNECTING
        self._log = log
        self._supervisor = supervisor
        self._put_up_candidate = put_up_candidate
        self._timing = config.submission.spec.timing
        self._term = Term(0)
        self._round = Round(0)
        self._part: Slice | None = None
        self._effects: set[str] = set()
        self._running = False
        self._stepped_told = False
        self._rejoin = asyncio.Event()
        self._exited: dict[int, int] = {}
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaderless_since: float | None = None
        self._candidate_at = 0.0
        self._farewell_grace_s = self._timing.stop_grace_s
        self._orphaned_at = 0.0
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._incarnation = ""
        self._outbox: Outbox
        self._link: Link
        self._begin_life()

    # -- life

    def _begin_life(self) -> None:
        """A new incarnation: new identity, nothing obeyed, first fact ``node.joined``."""
        self._incarnation = f"{os.getpid():x}-{os.urandom(4).hex()}"
        config = self.config
        path = config.state_dir / f"{config.node}.outbox"
        self._outbox = Outbox(path, config.node, self._incarnation, lambda: self._link.wake())
        self._link = Link(
            log=self._log,
            hello=make_hello(
                job=config.job,
                token=config.token,
                node=config.node,
                incarnation=self._incarnation,
                submission=config.submission,
            ),
            outbox=self._outbox,
            beat=self._beat,
            timing=self._timing,
            on_welcome=self._welcomed,
            on_broken=self._broken,
            on_refused=self._refused,
            on_orders=self._obey_all,
            on_standby=self._host_standby,
            on_leaderless=self._leaderless,
        )
        self._effects.clear()
        self._term, self._round = Term(0), Round(0)
        self._tell(
            NodeJoined(
                node=config.node,
                incarnation=self._incarnation,
                slots=config.slots,
                host=socket.gethostname(),
                pid=os.getpid(),
                address=config.address,
                version=__version__,
                ordinal=config.ordinal,
            )
        )

    async def run(self) -> Outcome:
        """Take part until the job has ended or this node is told to leave.

        Raises:
            Refused: the job does not want this agent; the message says why.
        """
        duties = [asyncio.ensure_future(duty) for duty in (self._keep_bond(), self._watch_exits(), self._watch_grace())]
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
            self._outbox.close()

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
            await self._stop_workers(self._timing.stop_grace_s)
            if self._ended.done():
                return
            self._outbox.close()
            self._step("rejoin")
            self._begin_life()
            await asyncio.sleep(self._timing.reconnect_s)

    async def _say_farewell(self, outcome: Outcome) -> None:
        await self._stop_workers(self._farewell_grace_s)
        self._tell(NodeLeft(node=self.config.node, incarnation=self._incarnation, reason=outcome.outcome))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._outbox.emptied()

    @property
    def following(self) -> bool:
        """A master takes its facts."""
        return self.phase is AgentPhase.FOLLOWING

    def leave(self, reason: str, exit_code: int = 5, grace_s: float | None = None) -> None:
        """Stop the workers, say goodbye and end; the job may go on without this node.

        Args:
            reason: why, for people.
            exit_code: what ``ftrun`` should exit with.
            grace_s: seconds between TERM and KILL of the workers; a second call may shorten it. None: the job's own.
        """
        if not self._ended.done():
            self._step("told.to.leave")
            self._ended.set_result(Outcome(exit_code=exit_code, outcome="left", reason=reason))
        if grace_s is not None:
            self._farewell_grace_s = min(self._farewell_grace_s, grace_s)
            self._spawn(self._hurry(grace_s))

    async def _hurry(self, grace_s: float) -> None:
        await self._supervisor.stop(grace_s)

    def cannot_lead(self, reason: str) -> None:
        """The candidate of this node ended because it cannot use the log; nothing to wait for if nobody ever led."""
        if self.phase is AgentPhase.CONNECTING and not self._ended.done():
            self._ended.set_exception(StoreError(reason))
        else:
            logger.warning("no standby on this node", reason=reason)

    def ask_to_stop(self, who: str, exit_code: int) -> None:
        """Ask the master to end the job (a signal to a standalone ``ftrun``)."""
        self._tell(OperatorCommanded(command="stop", who=who, exit_code=exit_code))

    def _step(self, trigger: str) -> None:
        following = AGENT.step(self.phase, trigger)
        assert following is not None, f"agent in {self.phase}: {trigger}"
        self.phase = cast(AgentPhase, following)

    def _tell(self, data: Any, mono_ns: int | None = None) -> None:
        self._outbox.add(data, at(mono_ns))

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and not self._ended.done():
            self._ended.set_exception(task.exception() or AssertionError)

    # -- the bond

    def _welcomed(self, frame: frames.Welcome) -> None:
        self._step("welcomed")
        self._term = max(self._term, frame.term)
        self._leaderless_since = None

    def _broken(self) -> None:
        self._step("stream.broken")
        self._orphaned_at = _now()

    def _refused(self, frame: frames.Refused) -> None:
        if self._ended.done():
            return
        self._step("refused")
        if frame.rejoin:
            logger.warning("fenced; stopping the workers and joining anew", reason=frame.reason)
            self._rejoin.set()
        else:
            self._ended.set_exception(Refused(frame.reason))

    def _leaderless(self, silent: Leader | None) -> None:
        delay_s = self.config.lead_delay_s
        if self._put_up_candidate is None or delay_s is None:
            return
        now = _now()
        if self._leaderless_since is None:
            self._leaderless_since = now
        if now - self._leaderless_since >= delay_s and now >= self._candidate_at:
            self._candidate_at = now + self._timing.master_lease_s
            here = silent is not None and silent.candidate.host == socket.gethostname()
            self._put_up_candidate(silent.candidate.pid if silent is not None and here else 0)

    def _host_standby(self) -> None:
        if self._put_up_candidate is not None:
            self._put_up_candidate(None)

    def _beat(self) -> frames.Beat:
        told = [page for page in self._supervisor.progress() if page is not None] if self._running else []
        if not told:
            return frames.Beat(round=self._round if self._running else 0)
        return frames.Beat(
            round=self._round,
            step=min(page.step for page in told),
            absolute=all(page.absolute for page in told),
            loss=next((page.loss for page in told if page.loss is not None), None),
        )

    async def _watch_grace(self) -> None:
        """Stop workers that stand still while there is no master to say anything about it."""
        grace_s = self._timing.orphan_grace_s
        while True:
            await asyncio.sleep(min(grace_s / 10, 1.0))
            if self.phase is not AgentPhase.ORPHANED or not self._running:
                continue
            stepped = max((page.mono / 1e9 for page in self._supervisor.progress() if page is not None), default=0.0)
            if _now() - max(stepped, self._orphaned_at) > grace_s:
                await self._stop_workers(self._timing.stop_grace_s)
                self._tell(
                    WorkersStopped(
                        node=self.config.node,
                        incarnation=self._incarnation,
                        round=self._round,
                        exitcodes=(),
                        reason=f"no master and no completed step for {grace_s:g} s",
                    )
                )

    # -- orders

    def _obey_all(self, frame: frames.Orders) -> None:
        for order in frame.orders:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        if order.term < self._term or order.effect in self._effects:
            return
        self._term = order.term
        self._effects.add(order.effect)
        command = order.command
        if isinstance(command, StartWorkers):
            if command.round <= self._round:
                return
            assert order.slice is not None
            self._round, self._part = command.round, order.slice
            self._starting = self._spawn(self._start(order, order.slice))
        elif isinstance(command, StopWorkers):
            self._round = max(self._round, command.round)
            self._stopping = self._spawn(self._stop(order, command))
        elif isinstance(command, OpenStore):
            self._spawn(self._open_store(order, command))
        elif not isinstance(command, ReleaseNode):
            reason = f"this agent's workers cannot {type(command).__struct_config__.tag}"
            node, life = self.config.node, self._incarnation
            self._tell(OrderRefused(node=node, incarnation=life, round=self._round, effect=order.effect, reason=reason))
        elif not self._ended.done():
            self._step("released")
            self._ended.set_result(Outcome(exit_code=command.exit_code, outcome=command.outcome, reason=command.reason))

    async def _start(self, order: Order, part: Slice) -> None:
        if self._stopping is not None:
            await asyncio.wait({self._stopping})
        round_ = self._round
        spec = self.config.submission.spec
        base = self.config.log_dir / f"round_{round_}"
        dirs = tuple(str(base / f"rank_{part.base_rank + i}") for i in range(part.slots))
        envs = tuple(
            worker_env(
                self.config.env,
                part,
                i,
                job=self.config.job,
                role=spec.role,
                error_file=str(Path(dirs[i]) / "error.json"),
            )
            for i in range(part.slots)
        )
        launch = Launch(
            round=round_,
            argv=spec.argv,
            module=spec.module,
            no_python=spec.no_python,
            cwd=spec.cwd or str(Path.cwd()),
            envs=envs,
            log_dirs=dirs,
        )
        node, life = self.config.node, self._incarnation
        self._exited, self._stepped_told = {}, False
        try:
            pids, how = await self._supervisor.start(launch)
        except UsageError as error:
            self._tell(
                WorkersUnstartable(node=node, incarnation=life, round=round_, effect=order.effect, error=str(error))
            )
            return
        self._running = True
        self._tell(WorkersStarted(node=node, incarnation=life, round=round_, pids=pids, how=how))
        self._watching = self._spawn(self._watch_first_steps(round_))

    async def _stop(self, order: Order, command: StopWorkers) -> None:
        codes = await self._stop_workers(command.grace_s)
        self._tell(
            WorkersStopped(
                node=self.config.node,
                incarnation=self._incarnation,
                round=max(command.round, self._round),
                exitcodes=codes,
                effect=order.effect,
            )
        )

    async def _stop_workers(self, grace_s: float) -> tuple[int | None, ...]:
        self._running = False
        for task in (self._starting, self._watching):
            if task is not None and not task.done():
                task.cancel()
        codes = await self._supervisor.stop(grace_s)
        self._running = False
        return codes

    async def _open_store(self, order: Order, command: OpenStore) -> None:
        node, life, effect = self.config.node, self._incarnation, order.effect
        try:
            host, port = await self._supervisor.open_store(command.round, self.config.address)
        except UsageError as error:
            failed = StoreFailed(node=node, incarnation=life, round=command.round, effect=effect, error=str(error))
            self._tell(failed)
        else:
            self._tell(
                StoreOpened(node=node, incarnation=life, round=command.round, host=host, port=port, effect=effect)
            )

    def store_lost(self, round_: Round) -> None:
        """The supervisor lost the store of a round."""
        self._tell(
            StoreFailed(
                node=self.config.node,
                incarnation=self._incarnation,
                round=round_,
                effect="",
                error="the store host died",
            )
        )

    # -- what workers do

    async def _watch_exits(self) -> None:
        async for ended in self._supervisor.exits():
            if ended.round != self._round or not self._running:
                continue
            self._exited[ended.local_rank] = ended.exitcode
            if ended.exitcode != 0:
                self._tell_failure(ended)
            elif len(self._exited) == self.config.slots and not any(self._exited.values()):
                self._running = False
                self._tell_step_if_any()
                self._tell(
                    WorkersFinished(
                        node=self.config.node,
                        incarnation=self._incarnation,
                        round=self._round,
                        step=self._last_step(),
                    ),
                    ended.mono,
                )

    def _tell_failure(self, ended: WorkerExit) -> None:
        part = self._part
        assert part is not None
        page = self._supervisor.progress()[ended.local_rank]
        stepped = page is not None and page.steps > 0
        self._tell(
            WorkerFailed(
                node=self.config.node,
                incarnation=self._incarnation,
                round=ended.round,
                rank=part.base_rank + ended.local_rank,
                local_rank=ended.local_rank,
                pid=ended.pid,
                exitcode=ended.exitcode,
                error=read_error_file(self._supervisor.error_file(ended.local_rank)),
                tail=self._supervisor.tail(ended.local_rank, EVIDENCE_BYTES_MAX // 2),
                log_dir=str(self.config.log_dir / f"round_{ended.round}" / f"rank_{part.base_rank + ended.local_rank}"),
                step=page.step if page is not None and stepped else None,
                absolute=page.absolute if page is not None and stepped else False,
            ),
            ended.mono,
        )

    async def _watch_first_steps(self, round_: Round) -> None:
        while self._running and self._round == round_ and not self._tell_step_if_any():  # noqa: ASYNC110
            await asyncio.sleep(FIRST_STEP_LOOK_S)  # shared memory wakes nobody

    def _tell_step_if_any(self) -> bool:
        """Report the round's first completed steps, once every worker that reports any has made one."""
        if self._stepped_told:
            return True
        told: list[Progress] = [page for page in self._supervisor.progress() if page is not None and page.steps > 0]
        if len(told) < self.config.slots:
            return False
        self._stepped_told = True
        first = min(page.step - page.steps + 1 for page in told)
        self._tell(
            WorkersStepped(
                node=self.config.node,
                incarnation=self._incarnation,
                round=self._round,
                step=first,
                absolute=all(page.absolute for page in told),
            ),
            max(page.mono for page in told),
        )
        return True

    def _last_step(self) -> int | None:
        steps = [page.step for page in self._supervisor.progress() if page is not None and page.steps > 0]
        return min(steps) if steps else None


def _now() -> float:
    return asyncio.get_running_loop().time()

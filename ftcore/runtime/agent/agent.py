"""The agent: one per node. Obeys orders, reports facts, and never decides.

What it makes of an order, of a worker's end or of the loss of its master is said by ``engine/agent.py``; here is what
waits and works: the event loop's tasks, the supervisor, the outbox and the link. Each action of the core has one method
here, and what comes of it is told to the core.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import structlog

from ftcore import __version__
from ftcore.engine import agent as core
from ftcore.engine.orders import Slice
from ftcore.errors import Refused, StoreError, UsageError
from ftcore.events.node import NodeJoined
from ftcore.events.worker import EVIDENCE_BYTES_MAX, LogMatched
from ftcore.faults.scan import Hit
from ftcore.ids import Round
from ftcore.ports import EventLog, Launch, Leader, Supervisor
from ftcore.runtime import tasks
from ftcore.runtime.agent.environment import worker_env
from ftcore.runtime.agent.errorfile import read_error_file
from ftcore.runtime.agent.link import Link, make_hello
from ftcore.runtime.agent.outbox import Outbox
from ftcore.runtime.agent.watch_notes import LOOK_S as NOTES_LOOK_S
from ftcore.runtime.agent.watch_notes import NotesWatch
from ftcore.runtime.agent.watch_progress import ProgressWatch, stacks
from ftcore.runtime.clock import at
from ftcore.runtime.wire import frames
from ftcore.states.agent import AgentPhase

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
        self._log = log
        self._supervisor = supervisor
        self._put_up_candidate = put_up_candidate
        self._timing = config.submission.spec.timing
        leads = put_up_candidate is not None
        self._core = core.AgentCore(
            config.node, config.slots, self._timing, lead_delay_s=config.lead_delay_s if leads else None
        )
        self._progress = ProgressWatch(self._timing, config.slots)
        self._notes = NotesWatch(config.node)
        self._rejoin = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._farewell_grace_s = self._timing.stop_grace_s
        self._ended: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._outbox: Outbox
        self._link: Link
        self._begin_life()

    # -- life

    def _begin_life(self) -> None:
        """A new incarnation: new identity, nothing obeyed, first fact ``node.joined``."""
        config = self.config
        incarnation = f"{os.getpid():x}-{os.urandom(4).hex()}"
        path = config.state_dir / f"{config.node}.outbox"
        self._outbox = Outbox(path, config.node, incarnation, lambda: self._link.wake())
        self._link = Link(
            log=self._log,
            hello=make_hello(
                job=config.job,
                token=config.token,
                node=config.node,
                incarnation=incarnation,
                submission=config.submission,
                again=bool(self._core.incarnation),  # who joins anew was fenced, so its last life is in the log
            ),
            outbox=self._outbox,
            beat=self._beat,
            timing=self._timing,
            on_welcome=lambda frame: self._do(self._core.welcomed(frame.term)),
            on_broken=lambda: self._do(self._core.stream_broken(_now())),
            on_refused=lambda frame: self._do(self._core.refused(frame.reason, frame.rejoin, frame.release)),
            on_orders=self._obey_all,
            on_standby=self._standby_wanted,
            on_leaderless=self._leaderless,
        )
        joined = NodeJoined(
            node=config.node,
            incarnation=incarnation,
            slots=config.slots,
            host=socket.gethostname(),
            pid=os.getpid(),
            address=config.address,
            version=__version__,
            ordinal=config.ordinal,
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
            await self._halt(self._timing.stop_grace_s)
            if self._ended.done():
                return
            self._outbox.close()
            self._begin_life()
            await asyncio.sleep(self._timing.reconnect_s)

    async def _say_farewell(self, outcome: Outcome) -> None:
        await self._halt(self._farewell_grace_s)
        self._do(self._core.farewell(outcome.outcome))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self._outbox.emptied()

    async def _halt(self, grace_s: float) -> None:
        """Stop the workers because this life ends."""
        self._core.halt()
        self._give_up_start()
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

    def leave(self, reason: str, exit_code: int = 5, grace_s: float | None = None) -> None:
        """Stop the workers, say goodbye and end; the job may go on without this node.

        Args:
            reason: why, for people.
            exit_code: what ``ftrun`` should exit with.
            grace_s: seconds between TERM and KILL of the workers; a second call may shorten it. None: the job's own.
        """
        if not self._ended.done():
            self._do(self._core.told_to_leave(reason, exit_code))
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
        self._do(self._core.told_to_stop(who, exit_code))

    def store_lost(self, round_: Round) -> None:
        """The supervisor lost the store of a round."""
        self._do(self._core.store_lost(round_))

    def matched(self, round_: Round, rank: int, hit: Hit) -> None:
        """A rule knows lines that a worker printed."""
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
            self._outbox.add(fact, at(None))

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

    def _leaderless(self, silent: Leader | None) -> None:
        here = silent is not None and silent.candidate.host == socket.gethostname()
        self._do(self._core.leaderless(_now(), silent.candidate.pid if silent is not None and here else 0))

    def _standby_wanted(self) -> None:
        self._do(self._core.standby_wanted())

    def _beat(self) -> frames.Beat:
        pulse = self._core.pulse(self._supervisor.progress() if self._core.running else ())
        return frames.Beat(round=pulse.round, step=pulse.step, absolute=pulse.absolute, loss=pulse.loss)

    async def _watch_grace(self) -> None:
        while True:
            await asyncio.sleep(min(self._timing.orphan_grace_s / 10, 1.0))
            if self._core.running:
                self._do(self._core.waited(_now(), self._supervisor.progress()))

    def _obey_all(self, frame: frames.Orders) -> None:
        for order in frame.orders:
            self._do(self._core.obey(order))

    # -- actions

    def _do(self, actions: core.Actions) -> None:
        for action in actions:
            self._doers[type(action)](self, action)

    def _tell(self, action: core.Tell) -> None:
        self._outbox.add(action.data, at(action.mono))

    def _tell_failure(self, action: core.TellFailure) -> None:
        self._tell_notes()
        data = action.data
        evidence = attrs.evolve(
            data,
            error=read_error_file(self._supervisor.error_file(data.local_rank)),
            tail=self._supervisor.tail(data.local_rank, EVIDENCE_BYTES_MAX // 2),
            log_dir=str(self._log_dir(data.round, data.rank)),
        )
        self._outbox.add(evidence, at(action.mono))

    def _log_dir(self, round_: int, rank: int) -> Path:
        return self.config.log_dir / f"round_{round_}" / f"rank_{rank}"

    def _begin_start(self, action: core.Start) -> None:
        self._starting = self._spawn(self._start(action))

    async def _start(self, action: core.Start) -> None:
        try:
            pids, how = await self._supervisor.start(self._launch(action.round, action.part))
        except UsageError as error:
            self._do(self._core.unstartable(action, str(error)))
            return
        self._progress.begin(pids, action.part.base_rank, action.part.size)
        self._notes.begin(action.round, action.part.base_rank)
        self._do(self._core.started(action, pids, how))
        if self._core.awaits_steps:
            self._watching = self._spawn(self._watch_first_steps())

    def _launch(self, round_: Round, part: Slice) -> Launch:
        config, spec = self.config, self.config.submission.spec
        dirs = tuple(str(self._log_dir(round_, part.base_rank + i)) for i in range(part.slots))
        envs = tuple(
            worker_env(
                config.env,
                part,
                i,
                job=config.job,
                role=spec.role,
                error_file=str(Path(dirs[i]) / "error.json"),
            )
            for i in range(part.slots)
        )
        return Launch(
            round=round_,
            argv=spec.argv,
            module=spec.module,
            no_python=spec.no_python,
            cwd=spec.cwd or str(Path.cwd()),
            envs=envs,
            log_dirs=dirs,
        )

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
            stall = self._progress.look(self._supervisor.progress(), _now()) if self._core.running else None
            if stall is None:
                continue
            round_, told = self._core.round, await stacks(stall, self._supervisor.tail)
            if self._core.running and self._core.round == round_:
                self._outbox.add(stall.fact(self.config.node, self._core.incarnation, round_, told), at(None))

    async def _watch_notes(self) -> None:
        while True:
            await asyncio.sleep(NOTES_LOOK_S)
            if self._core.running:
                self._tell_notes()

    def _tell_notes(self) -> None:
        """Tell what the workers left on their pages since they were read last."""
        for told in self._notes.look(self._supervisor.progress(), _now(), self._core.incarnation):
            self._outbox.add(told.fact, at(told.mono))

    def _begin_stop(self, action: core.Stop) -> None:
        self._give_up_start()
        self._spawn(self._stop(action))

    def _give_up_start(self) -> None:
        for task in (self._starting, self._watching):
            if task is not None and not task.done():
                task.cancel()

    async def _stop(self, action: core.Stop) -> None:
        codes = await self._supervisor.stop(action.grace_s)
        self._tell_notes()
        self._do(self._core.stopped(action, codes))

    def _begin_open(self, action: core.Open) -> None:
        self._spawn(self._open(action))

    async def _open(self, action: core.Open) -> None:
        try:
            host, port = await self._supervisor.open_store(action.round, self.config.address)
        except UsageError as error:
            self._do(self._core.store_failed(action, str(error)))
        else:
            self._do(self._core.store_opened(action, host, port))

    def _leave(self, action: core.Leave) -> None:
        if not self._ended.done():
            self._ended.set_result(Outcome(exit_code=action.exit_code, outcome=action.outcome, reason=action.reason))

    def _join_anew(self, action: core.Rejoin) -> None:
        if not self._ended.done():
            logger.warning("fenced; stopping the workers and joining anew", reason=action.reason)
            self._rejoin.set()

    def _give_up(self, action: core.GiveUp) -> None:
        if not self._ended.done():
            self._ended.set_exception(Refused(action.reason))

    def _lead(self, action: core.Lead) -> None:
        if self._put_up_candidate is not None:
            self._put_up_candidate(action.silent)

    _doers: ClassVar[dict[type[Any], Callable[["Agent", Any], None]]] = {
        core.Tell: _tell,
        core.TellFailure: _tell_failure,
        core.Start: _begin_start,
        core.Stop: _begin_stop,
        core.Open: _begin_open,
        core.Leave: _leave,
        core.Rejoin: _join_anew,
        core.GiveUp: _give_up,
        core.Lead: _lead,
    }


def _now() -> float:
    return asyncio.get_running_loop().time()

"""The agent's decisions: what an order, a worker's end or the loss of the master means on one node. Pure.

``AgentCore`` is told what happened and answers with actions; its owner carries them out and tells it what came of them.
The owner is ``runtime/agent`` in production and ``sim`` in a simulation, so both obey, refuse and report alike.

House rules:
- an order of an older term, or of an older round, than one obeyed before is not obeyed; an order seen twice is carried
  out once (its answer lies in the outbox, which repeats it as long as need be);
- what a worker of another round, or of one that is being stopped, does is nobody's news;
- losing the master stops nothing by itself, nor does a store that does not answer, however long;
- an order that is carried out while processes stay in place is refused if the supervisor cannot do it;
- one order at a time is carried out in place: a pause that was taken back must not come true after the order to go on;
- parked workers take part in no round, so beats do not tell of them; their ends are told.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias, cast

import attrs

from ftcore.commands import (
    CheckHealth,
    Command,
    OpenStore,
    ParkWorkers,
    ReleaseNode,
    ReplaceNodes,
    SaveCheckpoint,
    StartWorkers,
    StopWorkers,
)
from ftcore.engine.actions import (
    Action,
    Actions,
    Findings,
    GiveUp,
    Lead,
    Leave,
    Open,
    Perform,
    Rejoin,
    Start,
    Stop,
    Tell,
    TellFailure,
    is_check,
    is_in_place,
    is_of_workers,
    round_of,
)
from ftcore.engine.orders import Order, Slice
from ftcore.engine.stragglers import Pace, PagePace
from ftcore.events.node import (
    HealthChecked,
    NodeGaveUp,
    NodeJoined,
    NodeLeft,
    NodeWarmed,
    OrderObeyed,
    OrderRefused,
)
from ftcore.events.operator import OperatorCommanded
from ftcore.events.worker import (
    WorkerFailed,
    WorkersFinished,
    WorkersStarted,
    WorkersStepped,
    WorkersStopped,
    WorkersUnstartable,
)
from ftcore.events.world import StoreFailed, StoreOpened
from ftcore.ids import Round, Term
from ftcore.ports import Progress, WorkerExit
from ftcore.states.agent import AGENT, WORK, AgentPhase, WorkPhase
from ftcore.timing import Timing
from ftcore.wording import order_text

Pages: TypeAlias = Sequence[Progress | None]

FINISHED_S = 600.0
"""So long a node whose workers have finished waits for a master to end the job; others may need its store meanwhile."""


_DOING = dict.fromkeys((WorkPhase.IDLE, WorkPhase.FINISHED), "standby")
_DOING |= dict.fromkeys((WorkPhase.STARTED, WorkPhase.STEPPING), "running")
_DOING |= {WorkPhase.STARTING: "starting", WorkPhase.PARKED: "parked"}
"""What people are told that a node does, by what its workers do."""


@attrs.frozen
class Pulse:
    """What a heartbeat tells.

    Args:
        round: the round whose workers run, 0 if none do.
        step: the newest step that every reporting worker has completed; None if none reports.
        absolute: that step counts from the start of the training.
        loss: the loss last reported by the lowest rank that reports one.
        pace: how the slowest rank worked since the heartbeat before; None if that is not known.
    """

    round: int
    step: int | None = None
    absolute: bool = False
    loss: float | None = None
    pace: Pace | None = None


class AgentCore:
    """One agent's decisions; every method but the properties returns what is to be done now.

    Times are monotonic: seconds as ``now``, nanoseconds in pages and exits, of one clock.

    Args:
        node: the node's name.
        slots: workers that it runs.
        timing: the job's time constants.
        able: commands that leave the processes in place and that the supervisor can carry out.
        lead_delay_s: how long nobody must lead before this agent puts up a candidate; None: it never does.

    Attributes:
        phase: of its bond with the master.
        work: what its workers do.
        unheard: no master takes its word any more, not even that it leaves.
    """

    def __init__(
        self,
        node: str,
        slots: int,
        timing: Timing,
        *,
        able: Collection[type[Any]] = (),
        lead_delay_s: float | None = None,
    ) -> None:
        self.node = node
        self.slots = slots
        self.timing = timing
        self.able = frozenset(able)
        self.phase: AgentPhase = AgentPhase.CONNECTING
        self.incarnation = ""
        self.term = Term(0)
        self.round = Round(0)
        self.part: Slice | None = None
        self.work: WorkPhase = WorkPhase.IDLE
        self.unheard = False
        self._lead_delay_s = lead_delay_s
        self._effects: set[str] = set()
        self._under_way: list[Action] = []
        self._starting: Start | None = None
        self._next: Start | None = None
        self._queue: list[Perform] = []
        self._exited: dict[int, int] = {}
        self._early: list[tuple[WorkerExit, Pages]] = []
        self._led_since: float | None = None
        self._unended_since: float | None = None
        self._leaderless_since: float | None = None
        self._candidate_at = 0.0
        self._pace = PagePace()

    # -- life

    def begin(self, joined: NodeJoined) -> Actions:
        """A new life begins: nothing was obeyed yet, no worker runs."""
        if self.incarnation:
            self._step("rejoin")
        self.incarnation = joined.incarnation
        self.term, self.round, self.part = Term(0), Round(0), None
        self._effects.clear()
        self._under_way.clear()
        self._queue.clear()
        return [Tell(joined)]

    def warmed(self) -> Actions:
        """Report that workers can be started at once; only a node on standby reports it."""
        if self.left or self.work is not WorkPhase.IDLE:
            return []
        return [Tell(NodeWarmed(node=self.node, incarnation=self.incarnation))]

    def halt(self) -> None:
        """The workers are about to be stopped because this life ends: nothing of them is told any more."""
        self._turn("halt")
        self._starting, self._next, self._early = None, None, []
        self._queue.clear()
        self._under_way = [a for a in self._under_way if not isinstance(a, Start) and not is_of_workers(a)]

    def farewell(self, reason: str, *, lost: bool = False) -> Actions:
        """The workers are gone and this agent goes too.

        Args:
            reason: why.
            lost: the launcher of the workers died.
        """
        return [Tell(NodeLeft(node=self.node, incarnation=self.incarnation, reason=reason, lost=lost))]

    def told_to_leave(self, reason: str, exit_code: int, *, lost: bool = False) -> Actions:
        """This node has to leave; the job may go on without it.

        Args:
            reason: why.
            exit_code: what ``ftrun`` should exit with.
            lost: the launcher of the workers died; else somebody on this node wants it.
        """
        if self.left:
            return []
        self._step("told.to.leave")
        return [Leave(exit_code=exit_code, outcome="lost" if lost else "left", reason=reason)]

    def told_to_stop(self, who: str, exit_code: int) -> Actions:
        """Somebody on this node wants the job to end."""
        return [Tell(OperatorCommanded(command="stop", who=who, exit_code=exit_code))]

    def gave_up(self, reason: str, exit_code: int) -> Actions:
        """The launcher of the workers starts no more of them, and wants the run to end."""
        node, life = self.node, self.incarnation
        return [Tell(NodeGaveUp(node=node, incarnation=life, exit_code=exit_code, reason=reason))]

    def _step(self, trigger: str) -> None:
        following = AGENT.step(self.phase, trigger)
        assert following is not None, f"agent in {self.phase}: {trigger}"
        self.phase = cast(AgentPhase, following)

    def _turn(self, trigger: str) -> None:
        following = WORK.step(self.work, trigger)
        assert following is not None, f"workers {self.work}: {trigger}"
        self.work = cast(WorkPhase, following)

    @property
    def left(self) -> bool:
        """It leaves, or has left."""
        return self.phase is AgentPhase.LEAVING

    @property
    def running(self) -> bool:
        """Workers run, and take part in a round."""
        return self.work in (WorkPhase.STARTED, WorkPhase.STEPPING)

    @property
    def parked(self) -> bool:
        """Workers wait with their state for the next round."""
        return self.work is WorkPhase.PARKED

    # -- the bond

    def welcomed(self, term: Term) -> Actions:
        """A master took the agent on."""
        self._step("welcomed")
        self.term = max(self.term, term)
        self._leaderless_since = self._led_since = self._unended_since = None
        return []

    def stream_broken(self) -> Actions:
        """The stream of a master that had welcomed the agent is gone."""
        self._step("stream.broken")
        self._led_since = None
        return []

    def looked_up(self, now: float, led: bool) -> None:
        """The log's store was asked who leads.

        Args:
            now: the time.
            led: it names a leader that lives; not so if it names none, or does not answer.
        """
        if not led:
            self._led_since = None
        elif self._led_since is None:
            self._led_since = now

    def refused(self, reason: str, rejoin: bool, release: ReleaseNode | None = None) -> Actions:
        """A master does not want this life of the agent.

        Args:
            reason: why.
            rejoin: it may begin a new life.
            release: the run has ended without it, or it is kept out: it leaves with this.
        """
        if self.left or self.phase is AgentPhase.FENCED:
            return []
        if release is not None:
            self._step("told.to.leave")
            self.unheard = True
            return [Leave(exit_code=release.exit_code, outcome=release.outcome, reason=release.reason)]
        self._step("refused")
        return [Rejoin(reason)] if rejoin else [GiveUp(reason)]

    def leaderless(self, now: float, silent: int) -> Actions:
        """Nobody leads.

        Args:
            now: the time.
            silent: process id of a leader of this host that fell silent, or 0.
        """
        if self._lead_delay_s is None:
            return []
        if self._leaderless_since is None:
            self._leaderless_since = now
        if now - self._leaderless_since < self._lead_delay_s or now < self._candidate_at:
            return []
        self._candidate_at = now + self.timing.master_lease_s
        return [Lead(silent)]

    def standby_wanted(self) -> Actions:
        """The master wants a standby here."""
        return [Lead(None)]

    @property
    def doing(self) -> str:
        """What the node does, for people: the workers' part of its state."""
        if self.left:
            return "leaving"
        return _DOING[self.work]

    def pulse(self, pages: Pages) -> Pulse:
        """What the next heartbeat tells."""
        told = [page for page in pages if page is not None] if self.running else []
        if not told:
            return Pulse(round=self.round if self.running else 0)
        return Pulse(
            round=self.round,
            step=min(page.step for page in told),
            absolute=all(page.absolute for page in told),
            loss=next((page.loss for page in told if page.loss is not None), None),
            pace=self._pace.since_last(pages),
        )

    def waited(self, now: float, pages: Pages) -> Actions:
        """Time passed: workers that stand still while somebody leads who cannot be reached are stopped; and who has
        finished does not wait for ever for a master to end the job.

        Whoever leads has declared this node lost, and may have replaced it. While the store names no leader, or does
        not answer, nobody can be known to have done that, and that no step is told of may be an evaluation, a long
        save, or a script that tells of none.
        """
        if self.phase is AgentPhase.ORPHANED and self.work is WorkPhase.FINISHED:
            return self._waited_finished(now)
        if self.phase is not AgentPhase.ORPHANED or not self.running or self._led_since is None:
            return []
        grace_s = self.timing.orphan_grace_s
        stepped = max((page.mono / 1e9 for page in pages if page is not None), default=0.0)
        if now - max(stepped, self._led_since) <= grace_s:
            return []
        reason = f"a master leads that cannot be reached, and no step was completed, for {grace_s:g} s"
        return self._stop(Stop("", self.round, self.timing.stop_grace_s, reason))

    def _waited_finished(self, now: float) -> Actions:
        if self._unended_since is None:
            self._unended_since = now
        if now - self._unended_since <= FINISHED_S:
            return []
        self._step("told.to.leave")
        reason = f"its workers have finished with code 0, and no master has ended the job for {FINISHED_S:g} s"
        return [Leave(exit_code=0, outcome="left", reason=reason)]

    # -- orders

    def obey(self, order: Order) -> Actions:
        """An order came."""
        if order.term < self.term or order.effect in self._effects:
            return []
        self.term = order.term
        self._effects.add(order.effect)
        command = order.command
        if isinstance(command, StartWorkers):
            return self._obey_start(order, command)
        if isinstance(command, StopWorkers):
            if command.round < self.round:
                return []
            self.round = max(self.round, command.round)
            return self._stop(Stop(order.effect, command.round, command.grace_s))
        if isinstance(command, OpenStore):
            return self._ask(Open(order.effect, command.round))
        if isinstance(command, ReleaseNode):
            return self._obey_release(command)
        return self._obey_in_place(order, command)

    def _obey_start(self, order: Order, command: StartWorkers) -> Actions:
        if command.round <= self.round or self.left:
            return []
        assert order.slice is not None
        self.round, self.part = command.round, order.slice
        start = Start(order.effect, command.round, order.slice)
        if self._stops_under_way():
            self._next = start
            return []
        return self._start(start)

    def _start(self, start: Start) -> Actions:
        self.halt()
        self._turn("start")
        self._starting, self._exited = start, {}
        return self._ask(start)

    def _stop(self, stop: Stop) -> Actions:
        self.halt()
        return self._ask(stop)

    def _ask(self, action: Action) -> Actions:
        self._under_way.append(action)
        return [action]

    def _answered(self, action: Action) -> bool:
        """Whether this life asked for it and was not answered yet."""
        if action not in self._under_way:
            return False
        self._under_way.remove(action)
        return True

    def _stops_under_way(self) -> bool:
        return any(isinstance(action, Stop) for action in self._under_way)

    def _obey_release(self, command: ReleaseNode) -> Actions:
        if self.left:
            return []
        self._step("released")
        return [Leave(exit_code=command.exit_code, outcome=command.outcome, reason=command.reason)]

    def _obey_in_place(self, order: Order, command: Command) -> Actions:
        if type(command) not in self.able or isinstance(command, ReplaceNodes):
            return self._refuse(order.effect, f"this agent and its workers cannot {order_text(command)}")
        holds = self.running or (self.parked and isinstance(command, SaveCheckpoint))
        if not isinstance(command, CheckHealth) and not (holds and round_of(command) == self.round):
            return self._refuse(order.effect, f"no workers of round {round_of(command)} run here")
        perform = Perform(order.effect, command)
        if isinstance(command, CheckHealth):
            self._under_way = [each for each in self._under_way if not is_check(each)]  # the newest alone is answered
        if is_in_place(perform) and self._performs_in_place():
            self._queue.append(perform)
            return []
        return self._ask(perform)

    def _performs_in_place(self) -> bool:
        return any(map(is_in_place, self._under_way))

    def _go_on(self) -> Actions:
        """Carry out the next order in place, if one waits for the one that was just answered."""
        return self._ask(self._queue.pop(0)) if self._queue and not self._performs_in_place() else []

    def _refuse(self, effect: str, reason: str) -> Actions:
        node, life = self.node, self.incarnation
        return [Tell(OrderRefused(node=node, incarnation=life, round=self.round, effect=effect, reason=reason))]

    # -- what came of actions

    def started(self, start: Start, pids: Sequence[int], how: str) -> Actions:
        """A ``Start`` was carried out; workers that have ended since are told of now."""
        if not self._answered(start) or start != self._starting:
            return []
        self._turn("started")
        self._starting = None
        told: Actions = [
            Tell(
                WorkersStarted(
                    node=self.node, incarnation=self.incarnation, round=self.round, pids=tuple(pids), how=how
                )
            )
        ]
        early, self._early = self._early, []
        for ended, pages in early:
            told += self.exited(ended, pages)
        return told

    def unstartable(self, start: Start, error: str) -> Actions:
        """A ``Start`` failed; none of its workers runs."""
        if not self._answered(start) or start != self._starting:
            return []
        self._turn("unstartable")
        self._starting, self._early = None, []
        failed = WorkersUnstartable(
            node=self.node, incarnation=self.incarnation, round=start.round, effect=start.effect, error=error
        )
        return [Tell(failed)]

    def stopped(self, stop: Stop, codes: Sequence[int | None]) -> Actions:
        """A ``Stop`` was carried out; a start that waited for it follows."""
        if not self._answered(stop):
            return []
        ended = WorkersStopped(
            node=self.node,
            incarnation=self.incarnation,
            round=self.round if self._next is None else stop.round,
            exitcodes=tuple(codes) if stop.effect else (),
            effect=stop.effect,
            reason=stop.reason,
        )
        follows = self._start(self._next) if self._next is not None and not self._stops_under_way() else []
        return [Tell(ended), *follows]

    def store_opened(self, opened: Open, host: str, port: int) -> Actions:
        """An ``Open`` was carried out."""
        if not self._answered(opened):
            return []
        node, life, effect = self.node, self.incarnation, opened.effect
        return [Tell(StoreOpened(node=node, incarnation=life, round=opened.round, host=host, port=port, effect=effect))]

    def store_failed(self, opened: Open, error: str) -> Actions:
        """An ``Open`` failed."""
        if not self._answered(opened):
            return []
        node, life, effect = self.node, self.incarnation, opened.effect
        return [Tell(StoreFailed(node=node, incarnation=life, round=opened.round, effect=effect, error=error))]

    def store_lost(self, round_: Round) -> Actions:
        """The store of a round is gone."""
        lost = StoreFailed(
            node=self.node, incarnation=self.incarnation, round=round_, effect="", error="the store host died"
        )
        return [Tell(lost)]

    def performed(self, done: Perform, step: int | None) -> Actions:
        """A ``Perform`` was carried out.

        Args:
            done: the action.
            step: the last step that the workers had completed then, if known.
        """
        if not self._answered(done):
            return []
        if isinstance(done.command, ParkWorkers):
            self._turn("parked")
        node, life, effect = self.node, self.incarnation, done.effect
        obeyed = OrderObeyed(node=node, incarnation=life, round=self.round, effect=effect, step=step)
        return [Tell(obeyed), *self._go_on()]

    def failed_to(self, asked: Perform, reason: str) -> Actions:
        """A ``Perform`` failed; the workers are as they were, or their ends are told of as usual."""
        return [*self._refuse(asked.effect, reason), *self._go_on()] if self._answered(asked) else []

    def checked(self, done: Perform, found: Findings) -> Actions:
        """A health check was carried out."""
        if not self._answered(done):
            return []
        found_as = attrs.asdict(found, recurse=False)
        told = HealthChecked(node=self.node, incarnation=self.incarnation, effect=done.effect, **found_as)
        return [Tell(told)]

    # -- what workers do

    def exited(self, ended: WorkerExit, pages: Pages) -> Actions:
        """A worker ended that nobody stopped.

        Args:
            ended: how.
            pages: what the workers' pages say now, the ended one's included.
        """
        if ended.round != self.round:
            return []
        if not (self.running or self.parked):
            if self._starting is not None:
                self._early.append((ended, pages))
            return []
        self._exited[ended.local_rank] = ended.exitcode
        if ended.exitcode != 0:
            return [self._failure(ended, pages)]
        if self.parked or len(self._exited) < self.slots or any(self._exited.values()):
            return []
        stepped = self._first_steps(pages)
        self._turn("finished")
        steps = [page.step for page in pages if page is not None and page.steps > 0]
        finished = WorkersFinished(
            node=self.node, incarnation=self.incarnation, round=self.round, step=min(steps) if steps else None
        )
        return [*stepped, Tell(finished, ended.mono)]

    def _failure(self, ended: WorkerExit, pages: Pages) -> TellFailure:
        assert self.part is not None
        page = pages[ended.local_rank]
        stepped = page is not None and page.steps > 0
        return TellFailure(
            WorkerFailed(
                node=self.node,
                incarnation=self.incarnation,
                round=ended.round,
                rank=self.part.base_rank + ended.local_rank,
                local_rank=ended.local_rank,
                pid=ended.pid,
                exitcode=ended.exitcode,
                step=page.step if page is not None and stepped else None,
                absolute=page.absolute if page is not None and stepped else False,
            ),
            ended.mono,
        )

    @property
    def awaits_steps(self) -> bool:
        """The round's first completed steps are still to be told: look at the pages often and tell ``looked``."""
        return self.work is WorkPhase.STARTED

    def looked(self, pages: Pages) -> Actions:
        """The pages were looked at: the round's first steps are told once every worker has made one."""
        return self._first_steps(pages)

    def _first_steps(self, pages: Pages) -> Actions:
        told = [page for page in pages if page is not None and page.steps > 0]
        if not self.awaits_steps or len(told) < self.slots:
            return []
        self._turn("stepped")
        stepped = WorkersStepped(
            node=self.node,
            incarnation=self.incarnation,
            round=self.round,
            step=min(page.step - page.steps + 1 for page in told),
            absolute=all(page.absolute for page in told),
        )
        return [Tell(stepped, max(page.mono for page in told))]

    # -- for explorers

    def snapshot(self) -> Mapping[str, Any]:
        """All that its further behaviour depends on, the timing aside: plain values, equal for equal cores."""
        return {
            "phase": str(self.phase),
            "incarnation": self.incarnation,
            "term": self.term,
            "round": self.round,
            "work": str(self.work),
            "unheard": self.unheard,
            "effects": sorted(self._effects),
            "under_way": [repr(action) for action in self._under_way],
            "starting": self._starting.effect if self._starting is not None else "",
            "queue": [perform.effect for perform in self._queue],
            "next": self._next.effect if self._next is not None else "",
            "led": self._led_since is not None,
            "exited": sorted(self._exited.items()),
            "early": [ended.local_rank for ended, _ in self._early],
        }

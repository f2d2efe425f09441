"""The agent's decisions about the workers of its node: start, stop, orders carried out in place, exits. Pure.

House rules:
- exits of workers of another round, or of workers that are being stopped, are not reported;
- an order to be carried out in place is refused if the supervisor does not support it;
- orders in place are carried out one at a time, in their order: a revoked pause must not take effect after the order to
  resume;
- an order to resume does not wait: it drops queued orders and ends the one in progress, which may never end by itself;
- parked workers belong to no round: heartbeats do not report them, but their exits are reported.
"""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import Any, Final, TypeAlias, cast

import attrs

from ftcore.commands import (
    OF_KEEPER,
    CheckHealth,
    Command,
    ParkWorkers,
    ReplaceNodes,
    ResumeWorkers,
    SaveCheckpoint,
    StartWorkers,
)
from ftcore.engine.actions import (
    Action,
    Actions,
    Findings,
    Open,
    Perform,
    StartRound,
    StopRound,
    Tell,
    TellFailure,
    is_check,
    is_in_place,
    is_of_workers,
    round_of,
)
from ftcore.engine.orders import Order, Slice
from ftcore.events.node import HealthChecked, OrderObeyed, OrderRefused
from ftcore.events.worker import (
    WorkerFailed,
    WorkersFinished,
    WorkersStarted,
    WorkersStepped,
    WorkersStopped,
    WorkersUnstartable,
)
from ftcore.events.world import StoreFailed, StoreOpened
from ftcore.ids import SECOND, Round
from ftcore.ports import Performed, Progress, WorkerExit
from ftcore.states.agent import WORK, WorkPhase
from ftcore.wording import order_text

Pages: TypeAlias = Sequence[Progress | None]


REPORT_S: Final = 2.0
"""Seconds after its first step within which a script is expected to report the training's step, if it does."""


def _may_be_reported(page: Progress, now: float) -> bool:
    """Whether the only step on a page is one of the optimizer, and the script may still report which one it was."""
    return page.steps == 1 and not page.absolute and now - page.mono / SECOND < REPORT_S


class WorkerControl:
    """The workers' half of ``AgentCore``.

    Args:
        node: the node's name.
        slots: number of workers of the node.
        able: commands that the supervisor can carry out while the processes stay in place.

    Attributes:
        incarnation: the agent's current incarnation; empty before the first.
        round: the newest round of an obeyed order.
        part: the node's part of that round's world.
        work: the phase of the workers.
    """

    def __init__(self, node: str, slots: int, able: Collection[type[Any]]) -> None:
        self.node = node
        self.slots = slots
        self.able = frozenset(able)
        self.incarnation = ""
        self.round = Round(0)
        self.part: Slice | None = None
        self.work: WorkPhase = WorkPhase.IDLE
        self._under_way: list[Action] = []
        self._starting: StartRound | None = None
        self._next: StartRound | None = None
        self._queue: list[Perform] = []
        self._exited: dict[int, int] = {}
        self._early: list[tuple[WorkerExit, Pages]] = []

    @property
    def running(self) -> bool:
        """Whether workers run and take part in a round."""
        return self.work in (WorkPhase.STARTED, WorkPhase.STEPPING)

    @property
    def parked(self) -> bool:
        """Whether workers wait with their state for the next round."""
        return self.work is WorkPhase.PARKED

    def halt(self) -> None:
        """Stop reporting about the workers, because they are about to be stopped."""
        self._turn("halt")
        self._starting, self._next, self._early = None, None, []
        self._queue.clear()
        self._under_way = [a for a in self._under_way if not isinstance(a, StartRound) and not is_of_workers(a)]

    def _turn(self, trigger: str) -> None:
        following = WORK.step(self.work, trigger)
        assert following is not None, f"workers {self.work}: {trigger}"
        self.work = cast(WorkPhase, following)

    # -- orders

    def _obey_start(self, order: Order, command: StartWorkers) -> Actions:
        if command.round <= self.round:
            return []
        assert order.slice is not None
        self.round, self.part = command.round, order.slice
        start = StartRound(order.effect, command.round, order.slice)
        if self._stops_under_way():
            self._next = start
            return []
        return self._start(start)

    def _start(self, start: StartRound) -> Actions:
        self.halt()
        self._turn("start")
        self._starting, self._exited = start, {}
        return self._ask(start)

    def _stop(self, stop: StopRound) -> Actions:
        self.halt()
        return self._ask(stop)

    def _ask(self, action: Action) -> Actions:
        self._under_way.append(action)
        return [action]

    def _take_answer(self, action: Action) -> bool:
        """Remove an action that waits for its answer; false if this incarnation did not ask for it."""
        if action not in self._under_way:
            return False
        self._under_way.remove(action)
        return True

    def _stops_under_way(self) -> bool:
        return any(isinstance(action, StopRound) for action in self._under_way)

    def _obey_in_place(self, order: Order, command: Command) -> Actions:
        if type(command) not in self.able or isinstance(command, ReplaceNodes):
            return self._refuse(order.effect, f"this agent and its workers cannot {order_text(command)}")
        holds = self.running or (self.parked and isinstance(command, SaveCheckpoint))
        if not isinstance(command, (CheckHealth, *OF_KEEPER)) and not (holds and round_of(command) == self.round):
            return self._refuse(order.effect, f"no workers of round {round_of(command)} run here")
        perform = Perform(order.effect, command)
        if isinstance(command, CheckHealth):
            self._under_way = [each for each in self._under_way if not is_check(each)]  # only the newest is answered
        if isinstance(command, ResumeWorkers):
            queued, self._queue = self._queue, []
            revoked = [self._refuse(each.effect, "a later order to resume revoked it") for each in queued]
            return [*chain.from_iterable(revoked), *self._ask(perform)]
        if is_in_place(perform) and self._performs_in_place():
            self._queue.append(perform)
            return []
        return self._ask(perform)

    def _performs_in_place(self) -> bool:
        return any(map(is_in_place, self._under_way))

    def _go_on(self) -> Actions:
        """Carry out the next queued order in place, if no other one is in progress."""
        return self._ask(self._queue.pop(0)) if self._queue and not self._performs_in_place() else []

    def _refuse(self, effect: str, reason: str) -> Actions:
        node, life = self.node, self.incarnation
        return [Tell(OrderRefused(node=node, incarnation=life, round=self.round, effect=effect, reason=reason))]

    # -- results of actions

    def started(self, start: StartRound, pids: Sequence[int], how: str, log_dir: str = "") -> Actions:
        """A ``StartRound`` was carried out; workers that have ended since are reported now.

        Args:
            start: the action.
            pids: process IDs, by local rank.
            how: start method.
            log_dir: directory of the round's output; empty: another launcher writes it.
        """
        if not self._take_answer(start) or start != self._starting:
            return []
        self._turn("started")
        self._starting = None
        facts: Actions = [
            Tell(
                WorkersStarted(
                    node=self.node,
                    incarnation=self.incarnation,
                    round=self.round,
                    pids=tuple(pids),
                    how=how,
                    log_dir=log_dir,
                )
            )
        ]
        early, self._early = self._early, []
        for ended, pages in early:
            facts += self.exited(ended, pages)
        return facts

    def unstartable(self, start: StartRound, error: str) -> Actions:
        """A ``StartRound`` failed; none of its workers runs."""
        if not self._take_answer(start) or start != self._starting:
            return []
        self._turn("unstartable")
        self._starting, self._early = None, []
        failed = WorkersUnstartable(
            node=self.node, incarnation=self.incarnation, round=start.round, effect=start.effect, error=error
        )
        return [Tell(failed)]

    def stopped(self, stop: StopRound, codes: Sequence[int | None]) -> Actions:
        """A ``StopRound`` was carried out; a start that waited for it follows."""
        if not self._take_answer(stop):
            return []
        ended = WorkersStopped(
            node=self.node,
            incarnation=self.incarnation,
            round=self.round if self._next is None else stop.round,
            exitcodes=tuple(codes) if stop.effect else (),
            effect=stop.effect,
            reason=stop.reason,
            finished=tuple(sorted(rank for rank, code in self._exited.items() if code == 0)),
        )
        follows = self._start(self._next) if self._next is not None and not self._stops_under_way() else []
        return [Tell(ended), *follows]

    def store_opened(self, opened: Open, host: str, port: int) -> Actions:
        """An ``Open`` was carried out."""
        if not self._take_answer(opened):
            return []
        node, life, effect = self.node, self.incarnation, opened.effect
        return [Tell(StoreOpened(node=node, incarnation=life, round=opened.round, host=host, port=port, effect=effect))]

    def store_failed(self, opened: Open, error: str) -> Actions:
        """An ``Open`` failed."""
        if not self._take_answer(opened):
            return []
        node, life, effect = self.node, self.incarnation, opened.effect
        return [Tell(StoreFailed(node=node, incarnation=life, round=opened.round, effect=effect, error=error))]

    def store_lost(self, round_: Round) -> Actions:
        """The store of a round was lost."""
        lost = StoreFailed(
            node=self.node, incarnation=self.incarnation, round=round_, effect="", error="the store host died"
        )
        return [Tell(lost)]

    def performed(self, done: Perform, result: Performed) -> Actions:
        """A ``Perform`` was carried out."""
        if not self._take_answer(done):
            return []
        if isinstance(done.command, ParkWorkers):
            self._turn("parked")
        node, life, effect = self.node, self.incarnation, done.effect
        obeyed = OrderObeyed(
            node=node,
            incarnation=life,
            round=self.round,
            effect=effect,
            step=result.step,
            boundary=result.boundary,
        )
        return [Tell(obeyed), *self._go_on()]

    def failed_to(self, asked: Perform, reason: str) -> Actions:
        """A ``Perform`` failed; the workers are unchanged, or their ends are reported as usual."""
        return [*self._refuse(asked.effect, reason), *self._go_on()] if self._take_answer(asked) else []

    def checked(self, done: Perform, found: Findings) -> Actions:
        """A health check was carried out."""
        if not self._take_answer(done):
            return []
        found_as = attrs.asdict(found, recurse=False)
        checked = HealthChecked(node=self.node, incarnation=self.incarnation, effect=done.effect, **found_as)
        return [Tell(checked)]

    # -- events of workers

    def exited(self, ended: WorkerExit, pages: Pages) -> Actions:
        """A worker ended without being stopped.

        Args:
            ended: the exit.
            pages: the workers' pages, including the one of the ended worker.
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
        """Whether the first completed steps of the round are not reported yet; then call ``looked`` often."""
        return self.work is WorkPhase.STARTED

    def looked(self, pages: Pages, now: float) -> Actions:
        """Report the round's first steps once all workers have completed one.

        A step of the optimizer may be followed by the script's own report of the training's step, for which it waits.

        Args:
            pages: the workers' pages.
            now: the current time.
        """
        if any(page is not None and _may_be_reported(page, now) for page in pages):
            return []
        return self._first_steps(pages)

    def _first_steps(self, pages: Pages) -> Actions:
        known = [page for page in pages if page is not None and page.steps > 0]
        if not self.awaits_steps or len(known) < self.slots:
            return []
        self._turn("stepped")
        stepped = WorkersStepped(
            node=self.node,
            incarnation=self.incarnation,
            round=self.round,
            step=min(page.step - page.steps + 1 for page in known),
            absolute=all(page.absolute for page in known),
            abilities=tuple(name for name in known[0].abilities if all(name in page.abilities for page in known)),
        )
        return [Tell(stepped, max(page.mono for page in known))]

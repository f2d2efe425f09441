"""The agent's decisions about orders, ends of workers and loss of the master, on one node. Pure.

``AgentCore`` receives what happened and returns actions; its owner carries them out and reports the results. The owner
is ``runtime/agent``, in production and in a simulation. This module has the connection to
the master; ``agent_workers.py`` has the workers.

- An order of an older term or round than an obeyed one is ignored. A duplicate order is carried out once; the outbox
  repeats its answer until it is acknowledged.
- Neither the loss of the master nor an unresponsive store stops workers by itself.
"""

from collections.abc import Collection, Mapping
from typing import Any, cast

import attrs

from ftcore.commands import OpenStore, ReleaseNode, StartWorkers, StopWorkers
from ftcore.engine.actions import Actions, GiveUp, Lead, Leave, Open, Rejoin, StopRound, Tell
from ftcore.engine.agent_workers import Pages, WorkerControl
from ftcore.engine.orders import Order
from ftcore.engine.stragglers import Pace, PagePace, RankBlocks
from ftcore.events.node import NodeGaveUp, NodeJoined, NodeLeft, NodeWarmed
from ftcore.events.operator import OperatorCommanded
from ftcore.events.worker import FaultObserved
from ftcore.ids import Round, Term
from ftcore.states.agent import AGENT, AgentPhase, WorkPhase
from ftcore.states.spikes import ranks_reporting
from ftcore.timing import Timing

FINISHED_S = 600.0
"""Seconds that a node with finished workers waits for a master to end the job; others may need its store meanwhile."""


_DOING = dict.fromkeys((WorkPhase.IDLE, WorkPhase.FINISHED), "standby")
_DOING |= dict.fromkeys((WorkPhase.STARTED, WorkPhase.STEPPING), "running")
_DOING |= {WorkPhase.STARTING: "starting", WorkPhase.PARKED: "parked"}
"""The node's activity as shown to users, by the phase of its workers."""


@attrs.frozen
class Pulse:
    """The content of a heartbeat.

    Args:
        round: the round of the running workers; 0 if none run.
        step: the newest step that all reporting workers have completed; None if no worker reports steps.
        absolute: the step counts from the start of the training.
        loss: last loss of the lowest rank that reports one.
        pace: pace of the slowest rank since the previous heartbeat; None if it is not known.
        ranks: new blocks of steps with the times of their phases, by rank.
        reporting: number of ranks that report a loss.
    """

    round: int
    step: int | None = None
    absolute: bool = False
    loss: float | None = None
    pace: Pace | None = None
    ranks: tuple[RankBlocks, ...] = ()
    reporting: int = 0


class AgentCore(WorkerControl):
    """The decisions of one agent. Its methods return the actions to carry out.

    All times are of one monotonic clock: ``now`` in seconds, pages and exits in nanoseconds.

    Args:
        node: name of the node.
        slots: number of workers of the node.
        timing: the job's time constants.
        able: commands that the supervisor can carry out while the processes keep running.
        lead_delay_s: seconds without a leader after which this agent starts a candidate; None: never.

    Attributes:
        phase: phase of the connection to the master.
        unheard: no master accepts facts of this agent any more, not even that it leaves.
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
        super().__init__(node, slots, able)
        self.timing = timing
        self.phase: AgentPhase = AgentPhase.CONNECTING
        self.term = Term(0)
        self.unheard = False
        self._lead_delay_s = lead_delay_s
        self._effects: set[str] = set()
        self._led_since: float | None = None
        self._unended_since: float | None = None
        self._leaderless_since: float | None = None
        self._candidate_at = 0.0
        self._pace = PagePace()

    # -- life

    def begin(self, joined: NodeJoined) -> Actions:
        """Begin a new incarnation, without obeyed orders and without workers."""
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

    def farewell(self, reason: str, *, lost: bool = False) -> Actions:
        """Report that the workers are stopped and that this agent exits.

        Args:
            reason: why.
            lost: the launcher of the workers died.
        """
        return [Tell(NodeLeft(node=self.node, incarnation=self.incarnation, reason=reason, lost=lost))]

    def leave_ordered(self, reason: str, exit_code: int, *, lost: bool = False) -> Actions:
        """Leave the job, which may continue without this node.

        Args:
            reason: why.
            exit_code: exit code of ``ftrun``.
            lost: the launcher of the workers died; if false, a user of this node asked for it.
        """
        if self.left:
            return []
        self._step("leave.ordered")
        return [Leave(exit_code=exit_code, outcome="lost" if lost else "left", reason=reason)]

    def warned(self, reason: str, within_s: float) -> Actions:
        """Report that this node leaves soon, so that the job can save before.

        Args:
            reason: why.
            within_s: seconds until its workers are stopped.
        """
        if self.left or not self.running:
            return []
        notice = FaultObserved(
            node=self.node,
            incarnation=self.incarnation,
            round=self.round,
            source="agent",
            kind="preemption-notice",
            message=reason,
            values={"within_s": within_s},
        )
        return [Tell(notice)]

    def told_to_stop(self, who: str, exit_code: int) -> Actions:
        """Report that a user of this node asks to stop the job."""
        return [Tell(OperatorCommanded(command="stop", who=who, exit_code=exit_code))]

    def gave_up(self, reason: str, exit_code: int) -> Actions:
        """Report that the launcher of the workers gave up, which ends the run."""
        node, life = self.node, self.incarnation
        return [Tell(NodeGaveUp(node=node, incarnation=life, exit_code=exit_code, reason=reason))]

    def _step(self, trigger: str) -> None:
        following = AGENT.step(self.phase, trigger)
        assert following is not None, f"agent in {self.phase}: {trigger}"
        self.phase = cast(AgentPhase, following)

    @property
    def left(self) -> bool:
        """Whether the agent is leaving or has left."""
        return self.phase is AgentPhase.LEAVING

    @property
    def orphaned(self) -> bool:
        """Whether the connection to the master is lost."""
        return self.phase is AgentPhase.ORPHANED

    @property
    def doing(self) -> str:
        """The node's activity, as shown to users."""
        if self.left:
            return "leaving"
        return _DOING[self.work]

    # -- the connection to the master

    def welcomed(self, term: Term) -> Actions:
        """A master accepted the agent."""
        self._step("welcomed")
        self.term = max(self.term, term)
        self._leaderless_since = self._led_since = self._unended_since = None
        return []

    def stream_broken(self) -> Actions:
        """The connection to the master that accepted the agent is lost."""
        self._step("stream.broken")
        self._led_since = None
        return []

    def looked_up(self, now: float, led: bool) -> None:
        """The log's store was asked for the leader.

        Args:
            now: the current time.
            led: the store names a live leader; false if it names none or does not answer.
        """
        if not led:
            self._led_since = None
        elif self._led_since is None:
            self._led_since = now

    def refused(self, reason: str, rejoin: bool, release: ReleaseNode | None = None) -> Actions:
        """A master refused this incarnation of the agent.

        Args:
            reason: why.
            rejoin: the agent may begin a new incarnation.
            release: the agent must leave with this, because its run has ended or its node is quarantined.
        """
        if self.left or self.phase is AgentPhase.FENCED:
            return []
        if release is not None:
            self._step("leave.ordered")
            self.unheard = True
            return [Leave(exit_code=release.exit_code, outcome=release.outcome, reason=release.reason)]
        self._step("refused")
        return [Rejoin(reason)] if rejoin else [GiveUp(reason)]

    def leaderless(self, now: float, silent: int) -> Actions:
        """There is no leader.

        Args:
            now: the current time.
            silent: process ID of a leader on this host that stopped responding, or 0.
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
        """The master asked this node for a standby."""
        return [Lead(None)]

    def pulse(self, pages: Pages) -> Pulse:
        """The content of the next heartbeat."""
        known = [page for page in pages if page is not None] if self.running else []
        if not known:
            return Pulse(round=self.round if self.running else 0)
        return Pulse(
            round=self.round,
            step=min(page.step for page in known),
            absolute=all(page.absolute for page in known),
            loss=next((page.loss for page in known if page.loss is not None), None),
            pace=self._pace.since_last(pages),
            ranks=self._pace.new_blocks(pages),
            reporting=ranks_reporting(known),
        )

    def waited(self, now: float, pages: Pages) -> Actions:
        """Check the time limits of an agent without a master.

        If there is a leader that the agent cannot reach, the leader has declared this node lost and may have replaced
        it. Then the workers are stopped once they complete no step for the grace period. If the store names no leader
        or does not answer, they keep running: a missing step may be an evaluation or a long save.

        A node whose workers have finished leaves after ``FINISHED_S``.
        """
        if self.orphaned and self.work is WorkPhase.FINISHED:
            return self._waited_finished(now)
        if not self.orphaned or not self.running or self._led_since is None:
            return []
        grace_s = self.timing.orphan_grace_s
        stepped = max((page.mono / 1e9 for page in pages if page is not None), default=0.0)
        if now - max(stepped, self._led_since) <= grace_s:
            return []
        reason = f"the leader is unreachable from this node, and no step was completed, for {grace_s:g} s"
        return self._stop(StopRound("", self.round, self.timing.stop_grace_s, reason))

    def _waited_finished(self, now: float) -> Actions:
        if self._unended_since is None:
            self._unended_since = now
        if now - self._unended_since <= FINISHED_S:
            return []
        self._step("leave.ordered")
        reason = f"its workers have finished with code 0, and no master has ended the job within {FINISHED_S:g} s"
        return [Leave(exit_code=0, outcome="left", reason=reason)]

    # -- orders

    def obey(self, order: Order) -> Actions:
        """Obey an order of the master."""
        if order.term < self.term or order.effect in self._effects:
            return []
        self.term = order.term
        self._effects.add(order.effect)
        command = order.command
        if isinstance(command, StartWorkers):
            return [] if self.left else self._obey_start(order, command)
        if isinstance(command, StopWorkers):
            if command.round < self.round:
                return []
            self.round = max(self.round, command.round)
            return self._stop(StopRound(order.effect, command.round, command.grace_s))
        if isinstance(command, OpenStore):
            return self._ask(Open(order.effect, command.round))
        if isinstance(command, ReleaseNode):
            return self._obey_release(command)
        return self._obey_in_place(order, command)

    def _obey_release(self, command: ReleaseNode) -> Actions:
        if self.left:
            return []
        self._step("released")
        return [Leave(exit_code=command.exit_code, outcome=command.outcome, reason=command.reason)]

    # -- for exhaustive tests

    def snapshot(self) -> Mapping[str, Any]:
        """The state that determines further behaviour, without timing, as plain values that can be compared."""
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

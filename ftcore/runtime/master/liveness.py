"""Watches the leases of nodes and the training progress in their heartbeats.

A finding becomes a fact, which may have to wait for the log. So each finding is checked again when its fact is
sequenced: a node that was heard again meanwhile is not lost, and workers that continued are not stalled.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from ftcore.engine.master import Leases, takes_part
from ftcore.engine.standstill import StandstillWatch
from ftcore.engine.stragglers import StragglerWatch
from ftcore.events.job import JobProgressed
from ftcore.events.node import NodeLost
from ftcore.events.worker import WorkersStood, WorkersWentOn
from ftcore.ids import Seq, seconds
from ftcore.ports import Clock
from ftcore.runtime.master.agents import Agents
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.wire import frames
from ftcore.states.model import JobState
from ftcore.timing import Timing

CHECK_S = 0.1
"""Interval of the checks of leases and progress, in seconds."""

Record: TypeAlias = Callable[[Any, Callable[[], bool]], "asyncio.Future[Seq]"]
"""Submits a fact, with a check that is called when the fact is sequenced: whether it still holds."""

_Life: TypeAlias = tuple[str, str]


class Liveness:
    """Watches the agents of one master.

    Args:
        agents: the agents' sessions.
        state: returns the folded state.
        clock: the master's clock.
        record: submits facts.
        timing: time constants, until ``adopt``.

    Attributes:
        timing: the time constants in force.
        leases: the leases of the nodes.
    """

    def __init__(
        self, agents: Agents, state: Callable[[], JobState], clock: Clock, record: Record, timing: Timing
    ) -> None:
        self._agents, self._state, self._clock, self._record = agents, state, clock, record
        self._expected: frozenset[_Life] | None = None
        self._losing: set[_Life] = set()
        self._sampled: tuple[int, int] = (clock.mono(), -1)
        self.adopt(timing)

    def adopt(self, timing: Timing) -> None:
        """Use other time constants from now on."""
        self.timing = timing
        self.leases = Leases(seconds(timing.node_lease_s), seconds(CHECK_S))
        self._stragglers = StragglerWatch(timing.pace_window_s)
        self._standstill = StandstillWatch(timing)

    def changed(self) -> None:
        """Note a change of the state."""
        self._expected = None

    def heard(self, session: Session) -> None:
        """Renew the lease of a session's node: a frame arrived."""
        self.leases.heard(session.node, session.incarnation, self._clock.mono())

    def heard_s(self, session: Session) -> float:
        """Seconds since a session's last frame."""
        return (self._clock.mono() - self.leases.last_heard(session.node, session.incarnation)) / 1e9

    def excuse_disconnected(self) -> None:
        """Extend the leases of nodes without a stream: until now, no node could connect to this master."""
        self.leases.excuse(self._clock.mono(), list(self._disconnected()))

    @property
    def awaits_streams(self) -> bool:
        """Whether a node has no stream: it never connected to this master, or its stream has ended."""
        return self.leases.awaited or next(self._disconnected(), None) is not None

    def _disconnected(self) -> Iterator[_Life]:
        alive = ((node.node, node.incarnation) for node in self._state().membership.alive())
        return (life for life in alive if self._agents.of(*life) is None)

    def beat(self, session: Session, beat: frames.Beat) -> None:
        """Process a heartbeat."""
        session.take(beat)
        self._standstill.heard(session.node, beat.round, beat.stands, self._clock.mono() / 1e9, beat.net)
        if beat.ranks:
            self._stragglers.heard(session.node, beat.round, beat.ranks, beat.step, beat.absolute)

    def slow(self, node: str) -> str:
        """The slow ranks of a node, as text; empty: it has none."""
        return self._stragglers.slow(node)

    def check(self, now: int, *, samples: bool) -> None:
        """Check leases, progress, stragglers and stalls.

        Args:
            now: monotonic nanoseconds.
            samples: whether progress may be recorded; it is dispensable if the log is short of space.
        """
        state = self._state()
        if self._expected is None:
            self._expected = frozenset((node.node, node.incarnation) for node in state.membership.alive())
        for life in self.leases.silent(self._expected, now):
            self.lose(*life, f"no frame for {self.timing.node_lease_s:g} s")
        if samples:
            self._sample_progress(state, now)
        for slow in self._stragglers.look(state, now / 1e9):
            self._record(slow, lambda: True)
        stood = self._standstill.look(state, now / 1e9)
        if stood is not None:
            self._record_stall(stood)

    def lose(self, node: str, incarnation: str, reason: str) -> None:
        """Declare an incarnation of a node lost."""
        life = (node, incarnation)
        if life in self._losing:
            return
        session = self._agents.of(*life)
        beat = session.beat if session is not None else None
        lost = NodeLost(
            node=node,
            incarnation=incarnation,
            reason=reason,
            step=beat.step if beat is not None else None,
            absolute=beat.absolute if beat is not None else False,
        )
        self._losing.add(life)
        heard = self.leases.last_heard(*life)
        sent = self._record(lost, lambda: self.leases.last_heard(*life) == heard and takes_part(self._state(), *life))
        sent.add_done_callback(lambda _: self._lost(life))

    def _lost(self, life: _Life) -> None:
        self._losing.discard(life)
        self.leases.heard(*life, self._clock.mono())  # if the fact parked the job, report it again a lease later

    def _record_stall(self, stood: WorkersStood | WorkersWentOn) -> None:
        holds = self._standstill.holds
        self._record(stood, lambda: holds(self._state(), stood, self._clock.mono() / 1e9))

    def _sample_progress(self, state: JobState, now: int) -> None:
        world, (sampled_at, sampled_step) = state.rounds.world, self._sampled
        if world is None or not world.started or now - sampled_at < seconds(self.timing.progress_sample_s):
            return
        beats = self._agents.beats(world.round)
        stepped = [beat for beat in beats if beat.step is not None]
        step = min((beat.step for beat in stepped if beat.step is not None), default=-1)
        if step >= 0 and step != sampled_step:
            loss = next((beat.loss for beat in beats if beat.loss is not None), None)
            absolute = all(beat.absolute for beat in stepped)
            known = len(stepped) == len(world.members)
            reporting = sum(beat.reporting for beat in stepped) if known else 0
            sample = JobProgressed(round=world.round, step=step, loss=loss, absolute=absolute, reporting=reporting)
            self._record(sample, lambda: True)
        self._sampled = (now, step)

"""Who is heard, and who trains: the leases of nodes, and the samples of what their workers do.

What is found out here is a fact that may have to wait for the log. So each is looked at once more when its turn comes:
a node that was heard again meanwhile is not lost, and workers that went on do not stand still.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from ftcore.engine.master import Leases, takes_part
from ftcore.engine.standstill import StandstillWatch
from ftcore.engine.stragglers import NodePaces, Pace
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

LOOK_S = 0.1
"""How often leases and idleness are looked at."""

Tell: TypeAlias = Callable[[Any, Callable[[], bool]], "asyncio.Future[Seq]"]
"""Records a fact, and is told what is asked when its turn comes: whether it is still so."""

_Life: TypeAlias = tuple[str, str]


class Liveness:
    """Watches the agents of one master.

    Args:
        agents: their sessions.
        state: the folded state.
        clock: the master's.
        tell: records what is found out.
        timing: time constants, until ``adopt``.

    Attributes:
        timing: the time constants in force.
        leases: of the nodes.
    """

    def __init__(self, agents: Agents, state: Callable[[], JobState], clock: Clock, tell: Tell, timing: Timing) -> None:
        self._agents, self._state, self._clock, self._tell = agents, state, clock, tell
        self._expected: frozenset[_Life] | None = None
        self._losing: set[_Life] = set()
        self._sampled: tuple[int, int] = (clock.mono(), -1)
        self.adopt(timing)

    def adopt(self, timing: Timing) -> None:
        """Go by these time constants from now on."""
        self.timing = timing
        self.leases = Leases(seconds(timing.node_lease_s), seconds(LOOK_S))
        self._paces = NodePaces(timing.pace_window_s)
        self._standstill = StandstillWatch(timing)

    def changed(self) -> None:
        """The state has changed."""
        self._expected = None

    def heard(self, session: Session) -> None:
        """A frame came."""
        self.leases.heard(session.node, session.incarnation, self._clock.mono())

    def heard_s(self, session: Session) -> float:
        """Seconds since a session was heard."""
        return (self._clock.mono() - self.leases.last_heard(session.node, session.incarnation)) / 1e9

    def beat(self, session: Session, beat: frames.Beat) -> None:
        """A heartbeat came."""
        session.take(beat)
        self._standstill.heard(session.node, beat.round, beat.stands, self._clock.mono() / 1e9, beat.net)
        if beat.own_s is not None and beat.whole_s is not None:
            self._paces.heard(session.node, beat.round, Pace(beat.own_s, beat.whole_s))

    def look(self, now: int, *, samples: bool) -> None:
        """Look at all of it.

        Args:
            now: monotonic nanoseconds.
            samples: progress may be recorded; it is what can be done without.
        """
        state = self._state()
        if self._expected is None:
            self._expected = frozenset((node.node, node.incarnation) for node in state.alive())
        for life in self.leases.silent(self._expected, now):
            self.lose(*life, f"no frame for {self.timing.node_lease_s:g} s")
        if samples:
            self._sample_progress(state, now)
        for slow in self._paces.look(state, now / 1e9):
            self._tell(slow, lambda: True)
        stood = self._standstill.look(state, now / 1e9)
        if stood is not None:
            self._tell_stood(stood)

    def lose(self, node: str, incarnation: str, reason: str) -> None:
        """A life of a node counts as lost."""
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
        told = self._tell(lost, lambda: self.leases.last_heard(*life) == heard and takes_part(self._state(), *life))
        told.add_done_callback(lambda _: self._lost(life))

    def _lost(self, life: _Life) -> None:
        self._losing.discard(life)
        self.leases.heard(*life, self._clock.mono())  # if the fact was set aside, it is said again, a lease later

    def _tell_stood(self, stood: WorkersStood | WorkersWentOn) -> None:
        holds = self._standstill.holds
        self._tell(stood, lambda: holds(self._state(), stood, self._clock.mono() / 1e9))

    def _sample_progress(self, state: JobState, now: int) -> None:
        world, (sampled_at, sampled_step) = state.world, self._sampled
        if world is None or not world.started or now - sampled_at < seconds(self.timing.progress_sample_s):
            return
        beats = self._agents.beats(world.round)
        step = min((beat.step for beat in beats if beat.step is not None), default=-1)
        if step >= 0 and step != sampled_step:
            loss = next((beat.loss for beat in beats if beat.loss is not None), None)
            self._tell(JobProgressed(round=world.round, step=step, loss=loss), lambda: True)
        self._sampled = (now, step)

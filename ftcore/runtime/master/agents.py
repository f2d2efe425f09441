"""The agents that a master is connected to: what they are sent, and what they are sent again.

An agent is told that a fact is durable, what it is ordered, and who else may lead one day. Orders go out behind the
commit of their decision; to an agent that calls again, those that it has not answered are repeated.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest

from ftcore.engine.master import Mark, acknowledged, answers_to, unanswered
from ftcore.events.envelope import Event
from ftcore.events.node import NodeLeft, NodeLost
from ftcore.ids import Term, seconds
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.master.standbys import Standbys
from ftcore.runtime.wire import frames
from ftcore.states.model import JobState

STANDBYS = 2
"""Standbys wanted beside the leader, on the lowest ordinals after the first."""


class Agents:
    """The agents' sessions at one master.

    Args:
        state: the folded state.

    Attributes:
        sessions: by node, the newest stream of each.
    """

    def __init__(self, state: Callable[[], JobState]) -> None:
        self.sessions: dict[str, Session] = {}
        self._state = state
        self._durable: dict[str, tuple[str, int]] = {}
        self._unserved: list[Session] = []
        self._hosting: set[str] = set()
        self._standbys = Standbys()

    def begin(self, state: JobState) -> None:
        """A term begins with this state, all of which is durable."""
        self._durable = dict(state.sources)

    def of(self, node: str, incarnation: str) -> Session | None:
        """The stream of a node's life, if it has one."""
        session = self.sessions.get(node)
        return session if session is not None and session.incarnation == incarnation else None

    def attach(self, session: Session, term: Term, mark: Callable[[], Mark], *, ahead: bool) -> None:
        """A stream begins: welcome the agent and repeat the orders that it has not answered.

        Args:
            session: its session.
            term: of this master.
            mark: gives the end of the log, durable.
            ahead: the state runs ahead of the log; then orders wait for ``committed``.
        """
        older = self.sessions.get(session.node)
        if older is not None:
            older.end()
        self.sessions[session.node] = session
        session.acked = acknowledged(self._durable, session.node, session.incarnation)
        session.mark = mark
        session.send(frames.Welcome(term, session.acked, mark()))
        if self._standbys.addresses:
            session.send(frames.Candidates(self._standbys.addresses))
        self._unserved.append(session)
        if not ahead:
            self._serve_newcomers()

    def detach(self, session: Session) -> None:
        """A stream is over; its agent's lease goes on."""
        if self.sessions.get(session.node) is session:
            del self.sessions[session.node]

    def committed(self, batch: Sequence[Event]) -> None:
        """A batch is durable, and the state is exactly the log's: acknowledge facts, send orders."""
        answers = answers_to(self._state(), batch)
        for (node, incarnation), n in answers.acks.items():
            self._durable[node] = (incarnation, n)
            session = self.of(node, incarnation)
            if session is not None:
                session.acked = n
        for (node, incarnation), orders in answers.orders.items():
            session = self.of(node, incarnation)
            if session is not None:
                session.order(orders)
        for event in batch:
            if isinstance(event.data, NodeLost):
                self._part_with(event.data.node, event.data.incarnation)
            elif isinstance(event.data, NodeLeft) and event.data.node in self.sessions:
                self.sessions[event.data.node].acknowledge()  # it waits for that
        self._serve_newcomers()

    def _part_with(self, node: str, incarnation: str) -> None:
        """A node was lost, and is told now by being refused when it calls again: it stops its workers for that."""
        session = self.of(node, incarnation)
        if session is not None:
            session.end()

    def _serve_newcomers(self) -> None:
        """Repeat to agents that connected the orders that they have not answered.

        Only where the state is that of the log: an order must never be seen before its decision is durable.
        """
        for session in self._unserved:
            orders = unanswered(self._state(), session.node, session.incarnation)
            if orders:
                session.order(orders)
        self._unserved.clear()

    def give_signs_of_life(self, now: int, every_s: float) -> None:
        """Tell every agent something to whom nothing was said lately: what it is owed, which it can wait for.

        Each in its own time, not thousands at once.

        Args:
            now: monotonic nanoseconds.
            every_s: seconds without a word after which one is due.
        """
        quiet = seconds(every_s)
        for session in self.sessions.values():
            if session.spoken_to:
                session.spoken_to, session.told = False, now
            elif now - session.told >= quiet:
                session.acknowledge()

    # -- standbys

    def look_at_standbys(self, now: int) -> None:
        """Have some agents put up a standby, and forget those that fell silent; ``now`` in monotonic nanoseconds."""
        state = self._state()
        for place in nsmallest(1 + STANDBYS, state.places)[1:]:
            node = state.nodes[state.places[place]]
            session = self.sessions.get(node.node)
            if session is not None and node.incarnation not in self._hosting:
                self._hosting.add(node.incarnation)
                session.send(frames.HostStandby())
        if self._standbys.forget(now):
            self._tell_candidates()

    def stands_by(self, address: str, now: int) -> None:
        """A standby tells where it serves; agents are told of one that is new."""
        if self._standbys.heard(address, now):
            self._tell_candidates()

    @property
    def candidates(self) -> frames.Candidates:
        """Where standbys serve."""
        return frames.Candidates(self._standbys.addresses)

    def _tell_candidates(self) -> None:
        self.tell(self.candidates)

    # -- all of them

    def tell(self, frame: frames.FromMaster) -> None:
        """Tell every agent something."""
        for session in self.sessions.values():
            session.send(frame)

    def end(self) -> None:
        """End all streams behind what is queued."""
        for session in self.sessions.values():
            session.end()

    def seen(self, after: str, heard_s: Callable[[Session], float]) -> frames.NodesSeen:
        """What the heartbeats tell, for an operator.

        Args:
            after: nodes behind this name are wanted.
            heard_s: says how many seconds ago a session was heard.
        """
        names = sorted(name for name in self.sessions if name > after)
        return frames.NodesSeen(
            tuple(_seen(self.sessions[name], heard_s) for name in names[: frames.NODES_MAX]),
            more=len(names) > frames.NODES_MAX,
        )

    def beats(self, round_: int) -> Iterable[frames.Beat]:
        """The last heartbeats of those that run workers of a round."""
        return [one.beat for one in self.sessions.values() if one.beat is not None and one.beat.round == round_]


def _seen(session: Session, heard_s: Callable[[Session], float]) -> frames.NodeSeen:
    return frames.NodeSeen(session.node, round(heard_s(session), 3), session.beat, session.about)

"""The agents connected to a master: sends acknowledgements, orders and the addresses of standbys.

Orders are sent after the commit of their decision. To an agent that reconnects, unanswered orders are sent again.
"""

from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest

from ftcore.engine.master import DurableMark, acknowledged, answers_to, unanswered
from ftcore.engine.queues import answers_of, leased_to
from ftcore.events.envelope import Event
from ftcore.events.node import NodeLeft, NodeLost
from ftcore.events.queue import QueueLeased, QueueRefused
from ftcore.ids import Term, seconds
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.master.standbys import Standbys
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.queue_news import QueueNews
from ftcore.states.model import JobState

STANDBYS = 2
"""Number of standbys, on the nodes with the lowest ordinals after the first."""


class Agents:
    """The agents' sessions at one master.

    Args:
        state: returns the folded state.

    Attributes:
        sessions: the newest stream of each node, by node.
    """

    def __init__(self, state: Callable[[], JobState]) -> None:
        self.sessions: dict[str, Session] = {}
        self._state = state
        self._durable: dict[str, tuple[str, int]] = {}
        self._new_sessions: dict[Session, None] = {}
        self._hosting: set[str] = set()
        self._standbys = Standbys()
        self._attached = 0
        self._looked_at: tuple[JobState | None, int, int] = (None, 0, 0)

    def begin(self, state: JobState) -> None:
        """Begin a term with a state that is durable."""
        self._durable = dict(state.log.sources)

    def of(self, node: str, incarnation: str) -> Session | None:
        """The stream of an incarnation of a node, if connected."""
        session = self.sessions.get(node)
        return session if session is not None and session.incarnation == incarnation else None

    def attach(self, session: Session, term: Term, mark: Callable[[], DurableMark], *, ahead: bool) -> None:
        """Add a new stream: welcome the agent and repeat its unanswered orders.

        Args:
            session: the agent's session.
            term: the master's term.
            mark: returns the end of the durable log.
            ahead: the state is ahead of the log; orders then wait for ``committed``.
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
        self._new_sessions[session] = None
        self._attached += 1
        if not ahead:
            self._send_unanswered()

    def detach(self, session: Session) -> None:
        """Remove a stream that has ended; the agent's lease keeps running."""
        if self.sessions.get(session.node) is session:
            del self.sessions[session.node]

    def committed(self, batch: Sequence[Event]) -> None:
        """Acknowledge the facts and send the orders of a durable batch; the state is exactly that of the log."""
        answers = answers_to(self._state(), batch)
        for (node, incarnation), n in answers.acks.items():
            self._durable[node] = (incarnation, n)
            session = self.of(node, incarnation)
            if session is not None:
                session.acked = n
        for (node, incarnation), orders in answers.orders.items():
            session = self.of(node, incarnation)
            # A new session gets them behind its older ones: agents carry out orders in the order in which they come.
            if session is not None and session not in self._new_sessions:
                session.order(orders)
        for node, told in answers_of(self._state(), batch).items():
            self._send_news(node, told)
        for event in batch:
            if isinstance(event.data, NodeLost):
                self._close_session(event.data.node, event.data.incarnation)
            elif isinstance(event.data, NodeLeft) and event.data.node in self.sessions:
                self.sessions[event.data.node].acknowledge()  # the agent waits for it before it ends
        self._send_unanswered()

    def _send_news(self, node: str, told: Iterable[QueueLeased | QueueRefused]) -> None:
        """Send what was decided about the data shards of a node; a new session gets all of it."""
        session = self.sessions.get(node)
        if session is None or session in self._new_sessions:
            return
        for each in told:
            if isinstance(each, QueueLeased):
                session.send(QueueNews(each.queue, each.round, each.leases, each.over))
            else:
                session.send(QueueNews(each.queue, each.round, refused=each.ranks, reason=each.reason))

    def _close_session(self, node: str, incarnation: str) -> None:
        """Close a lost node's stream: the agent reconnects, is refused, and stops its workers."""
        session = self.of(node, incarnation)
        if session is not None:
            session.end()

    def _send_unanswered(self) -> None:
        """Send newly connected agents their unanswered orders, and the data shards of their readers.

        Only while the state is that of the log: an order must not be sent before its decision is durable.
        """
        sessions, self._new_sessions = self._new_sessions, {}
        for session in sessions:
            orders = unanswered(self._state(), session.node, session.incarnation)
            if orders:
                session.order(orders)
            self._send_news(session.node, leased_to(self._state(), session.node))

    def send_keepalives(self, now: int, every_s: float) -> None:
        """Send an acknowledgement as keep-alive to every idle agent. Each has its own timer, to avoid bursts.

        Args:
            now: monotonic nanoseconds.
            every_s: seconds without a frame after which a keep-alive is due.
        """
        quiet = seconds(every_s)
        for session in self.sessions.values():
            if session.sent:
                session.sent, session.sent_at = False, now
            elif now - session.sent_at >= quiet:
                session.acknowledge()

    # -- standbys

    def check_standbys(self, now: int) -> None:
        """Start standbys on some nodes and drop silent ones.

        Args:
            now: monotonic nanoseconds.
        """
        state = self._state()
        known, seq, attached = self._looked_at
        if known is not state or seq != state.seq or attached != self._attached:  # else no other node can be due
            self._looked_at = (state, state.seq, self._attached)
            self._start_standbys(state)
        if self._standbys.forget(now):
            self._broadcast_candidates()

    def _start_standbys(self, state: JobState) -> None:
        for place in nsmallest(1 + STANDBYS, state.membership.places)[1:]:
            node = state.membership.nodes[state.membership.places[place]]
            session = self.sessions.get(node.node)
            if session is not None and node.incarnation not in self._hosting:
                self._hosting.add(node.incarnation)
                session.send(frames.HostStandby())

    def register_standby(self, address: str, now: int) -> None:
        """Register a standby's address; a new address is sent to all agents.

        Args:
            address: gRPC target.
            now: monotonic nanoseconds.
        """
        if self._standbys.heard(address, now):
            self._broadcast_candidates()

    @property
    def candidates(self) -> frames.Candidates:
        """The addresses of the standbys."""
        return frames.Candidates(self._standbys.addresses)

    def _broadcast_candidates(self) -> None:
        self.broadcast(self.candidates)

    # -- all agents

    def broadcast(self, frame: frames.FromMaster) -> None:
        """Send a frame to every agent."""
        for session in self.sessions.values():
            session.send(frame)

    def end(self) -> None:
        """End all streams after their queued frames."""
        for session in self.sessions.values():
            session.end()

    def list_nodes(
        self,
        after: str,
        heard_s: Callable[[Session], float],
        lag: tuple[int, float] = (0, 0.0),
        slow: Callable[[str], str] = lambda _: "",
    ) -> frames.NodesSeen:
        """A page of the connected nodes and their last heartbeats, by name.

        Args:
            after: the page begins after this name.
            heard_s: returns the seconds since a session's last frame.
            lag: facts that are not in the log yet, and the seconds for which the oldest has waited.
            slow: returns the slow ranks of a node as text.
        """
        names = sorted(name for name in self.sessions if name > after)
        return frames.NodesSeen(
            tuple(_seen(self.sessions[name], heard_s, slow(name)) for name in names[: frames.NODES_MAX]),
            more=len(names) > frames.NODES_MAX,
            waiting=lag[0],
            wait_s=round(lag[1], 3),
        )

    def beats(self, round_: int) -> Iterable[frames.Beat]:
        """The last heartbeats of the nodes that run workers of a round."""
        beats = (session.beat for session in self.sessions.values())
        return [beat for beat in beats if beat is not None and beat.round == round_]


def _seen(session: Session, heard_s: Callable[[Session], float], slow: str) -> frames.NodeSeen:
    _, step_s, own_s = session.pace
    return frames.NodeSeen(session.node, round(heard_s(session), 3), session.beat, session.about, step_s, own_s, slow)

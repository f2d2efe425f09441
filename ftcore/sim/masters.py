"""A process that wants the master role: the production engine, with sequencer, sessions and time that are simulated.

It mirrors ``runtime/master`` (``master.py``, ``sequencer.py``, ``service.py``): facts that queue up while one commit is
under way become the next one; acknowledgements and orders follow the append; a failed append ends the process, and the
next one folds the log again. What cannot be folded is an error of the simulation's subject, and is raised.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

from ftcore import __version__
from ftcore.engine.decide import turn
from ftcore.engine.master import (
    Leases,
    acknowledged,
    answers_to,
    due,
    is_known,
    listens_to,
    refusal,
    unanswered,
    wants_run,
    wrong_job,
)
from ftcore.engine.orders import Order
from ftcore.engine.standstill import StandstillWatch
from ftcore.engine.turn import own_fact, sequence
from ftcore.errors import Conflict, Fenced, LogUnavailable
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import Event, Fact
from ftcore.events.job import JobProgressed, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeLeft, NodeLost
from ftcore.ids import Nanoseconds, Term
from ftcore.ports import Candidate
from ftcore.sim import frames
from ftcore.sim.agents import facts_of
from ftcore.sim.clock import Timer, ns
from ftcore.sim.hosts import Host, Process
from ftcore.sim.net import End, Stream
from ftcore.sim.store import bodies_of
from ftcore.sim.watcher import Watcher
from ftcore.states.fold import fold, is_duplicate, next_deadline
from ftcore.states.job import ENDED
from ftcore.states.master import MASTER, MasterPhase
from ftcore.states.model import JobState
from ftcore.states.revisions import NEWEST

if TYPE_CHECKING:
    from ftcore.sim.protocol import Simulation

LOOK_NS = ns(0.1)
FOLLOW_S = 0.25
CAMPAIGN_S = 0.3
PREDECESSOR_S = 1.5
STANDBYS = 2
BATCH_EVENTS_MAX = 1024
RETRY_S = (0.05, 2.0)
SLOW_S = 2.0
FROZEN_S = 1.0
FOUND_S = 0.5


@attrs.define(eq=False)
class Session:
    """One agent's stream at a master: what is durable is told as by ``runtime/master/sessions.py``."""

    end: End
    stream: Stream
    node: str = ""
    incarnation: str = ""
    acked: int = 0
    told: int = 0
    spoken_to: bool = False
    beat: Any = None

    def send(self, frame: Any) -> None:
        """Send a frame."""
        self.spoken_to = True
        self.stream.send(self.end, frame)

    def order(self, orders: list[Order]) -> None:
        """Send orders, with the acknowledgement."""
        self.send(frames.Orders(tuple(orders), self.acked))

    def acknowledge(self) -> None:
        """Send the acknowledgement by itself."""
        self.send(frames.Ack(self.acked))


class SimMaster(Process):
    """A candidate, and what becomes of it.

    Args:
        sim: the simulation.
        host: where it runs.
        address: its name in the simulation.
        standby: it was started beside a master that leads.
    """

    def __init__(self, sim: "Simulation", host: Host, address: str, *, standby: bool) -> None:
        super().__init__(sim.clock, host, address)
        self.sim, self.address = sim, address
        self.phase: MasterPhase = MasterPhase.CANDIDATE
        self.state = JobState()
        self.term = Term(0)
        self.timing = sim.options.spec.timing
        self.candidate = Candidate(host=host.name, pid=sim.next_pid(), address=address)
        self.committing = False
        self._saw_run = standby
        self._begun = -1
        self._base = self._led_since = self._resumed = self._thawed = 0
        self._stalled = False
        self._losing: set[tuple[str, str]] = set()
        self._expiring: set[tuple[str, int]] = set()
        self._queue: deque[tuple[Fact, Callable[[], bool]]] = deque()
        self._sessions: dict[str, Session] = {}
        self._unserved: list[Session] = []
        self._held_back: list[tuple[Session, frames.Hello]] = []
        self._leases = Leases(ns(self.timing.node_lease_s), LOOK_NS)
        self._durable: dict[str, tuple[str, int]] = {}
        self._alarm: Timer | None = None
        self._called = self.clock.now
        self._sampled = (self.clock.now, -1)
        self._standbys: set[str] = set()
        self._submitting = ""
        self._lived = False
        self._watcher: Watcher | None = None
        self._standstill = StandstillWatch(self.timing)
        self._renewed = 0
        self._follow()
        self._campaign()

    @property
    def leading(self) -> bool:
        """Facts are taken and orders given."""
        return self.phase is MasterPhase.LEADING

    def _step(self, trigger: str) -> None:
        following = MASTER.step(self.phase, trigger)
        assert following is not None, f"master in {self.phase}: {trigger}"
        self.phase = MasterPhase(following)

    def _end(self, why: str) -> None:
        self.sim.trace(f"{self.address} ends: {why}")
        self._step("resigned")
        if self.term:
            self.sim.store.ask(self, lambda: self.sim.store.resign(self.address), lambda answer: None)
        self.kill()

    def died(self) -> None:
        """Its streams break."""
        self.sim.net.cut(self)

    # -- candidate

    def _follow(self) -> None:
        if self.phase is MasterPhase.CANDIDATE:
            after = self.state.seq
            self.sim.store.ask(self, lambda: self.sim.store.read(after), self._followed, reads=True)

    def _followed(self, answer: Any) -> None:
        if self.phase is not MasterPhase.CANDIDATE:
            return
        if not isinstance(answer, Exception):
            if self._begun < 0:
                self._begun = self.state.seq + len(answer)
            for event in answer:
                if event.seq != self.state.seq + 1:
                    continue  # read twice
                fold(self.state, event)
                over = self.state.phase in ENDED and not self.state.alive()
                if self._saw_run and over and event.seq >= self._begun:
                    self._end("the run is over")
                    return
                self._saw_run = self._saw_run or (not over and event.seq >= self._begun)
        self.after(ns(FOLLOW_S * self.sim.chance.uniform(0.2, 2.0)), self._follow)

    def _campaign(self) -> None:
        if self.phase is MasterPhase.CANDIDATE:
            asked = self.clock.now
            acquire = self.sim.store.acquire
            self.sim.store.ask(self, lambda: acquire(self.address, self.candidate), lambda a: self._won(a, asked))

    def _won(self, answer: Any, asked: int) -> None:
        if self.phase is not MasterPhase.CANDIDATE:
            return
        if isinstance(answer, Exception) or not answer:
            self.after(ns(CAMPAIGN_S), self._campaign)
            return
        self.term = Term(answer)
        self._renewed = asked
        self._step("lease.won")
        self._renew_later()
        self._step("log.ended.at")
        self._read_rest()

    def _renew_later(self) -> None:
        self.after(ns(self.timing.master_renew_s), self._renew)

    def _renew(self) -> None:
        if self.clock.now - self._renewed >= ns(self.timing.master_lease_s):
            self._end("the leadership cannot be shown to be held")
            return
        asked = self.clock.now

        def renewed(answer: Any) -> None:
            if answer is False:
                self._end("the leadership is lost")
            elif answer is True:
                self._renewed = max(self._renewed, asked)

        self.sim.store.ask(self, lambda: self.sim.store.renew(self.address), renewed)
        self._renew_later()

    # -- leading

    def _read_rest(self) -> None:
        after = self.state.seq
        self.sim.store.ask(self, lambda: self.sim.store.read(after), self._lead, reads=True)

    def _lead(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            self._end("the log cannot be read")
            return
        for event in answer:
            fold(self.state, event)
        self._base = max(self.sim.wall(self.host), self.state.time) - self.clock.now
        self._called = self.clock.now
        self._led_since = self._base + self.clock.now
        self._durable = dict(self.state.sources)
        self._step("folded")
        self.sim.trace(f"{self.address} leads term {self.term} from seq {self.state.seq}")
        if self._saw_run and self.state.phase in ENDED and not self.state.alive():
            self._end("the run ended meanwhile")
            return
        self._lived = self.state.run > 0 and self.state.phase not in ENDED
        log_id = "" if self.state.log_id else "simulated"
        elected = MasterElected(
            host=self.host.name, pid=1, address=self.address, version=__version__, decides=NEWEST, log_id=log_id
        )
        self.submit(own_fact(elected))
        self._watcher = Watcher(self.sim, self)
        self.after(LOOK_NS, self._look)
        self.after(ns(FOUND_S), self._see_whether_it_can_be_found)
        self._set_alarm()

    # -- the sequencer

    def submit(self, fact: Fact, holds: Callable[[], bool] = lambda: True) -> None:
        """Queue a fact; whether it is still so is asked when its turn comes."""
        self._queue.append((fact, holds))
        if not self.committing:
            self.committing = True
            self.after(0, self._commit_next)

    def _commit_next(self) -> None:
        batch: list[Event] = []
        expected = self.state.seq
        while self._queue and len(batch) < BATCH_EVENTS_MAX:
            fact, holds = self._queue.popleft()
            if not holds():
                self._withdrawn(fact)
                continue
            if is_duplicate(self.state, *fact.id):
                continue
            now = Nanoseconds(self._base + self.clock.now)
            made = turn(self.state, sequence(self.state, fact, now=now, term=self.term))
            self.sim.decided(made)
            batch += made
        if not batch:
            self.committing = False
            self._catch_up()
            self._set_alarm()
            return
        if self.sim.trouble.dies_at_write():
            self.sim.trace(f"{self.address} is killed before it writes {expected + 1}")
            self.kill()
            return
        self._append(batch, bodies_of(batch), expected, RETRY_S[0])

    def _withdrawn(self, fact: Fact) -> None:
        """What this master had found out is so no more."""
        if isinstance(fact.data, NodeLost):
            self._lost(fact.data.node, fact.data.incarnation)
        elif isinstance(fact.data, DeadlineExpired):
            self._expiring.discard((fact.data.key, fact.data.due))

    def _lost(self, node: str, incarnation: str) -> None:
        self._losing.discard((node, incarnation))
        self._leases.heard(node, incarnation, self.clock.now)  # if it was set aside, it is said again, a lease later

    def _append(self, batch: list[Event], bodies: list[bytes], expected: int, pause_s: float) -> None:
        asked = self.clock.now

        def answered(answer: Any) -> None:
            if isinstance(answer, LogUnavailable):
                self._stalled = True
                following = min(2 * pause_s, RETRY_S[1])
                self.after(ns(pause_s), lambda: self._append(batch, bodies, expected, following))
            elif isinstance(answer, Fenced | Conflict):
                self._end(f"{type(answer).__name__}: {answer}")
            else:
                if self._stalled or self.clock.now - asked > ns(SLOW_S):
                    self._stalled, self._resumed = False, self._base + self.clock.now
                self._committed(batch)

        self.sim.store.ask(self, lambda: self.sim.store.append(bodies, self.term, expected), answered)

    def _committed(self, batch: list[Event]) -> None:
        if self.sim.trouble.dies_at_write():
            self.sim.trace(f"{self.address} is killed behind its write of {batch[-1].seq}")
            self.kill()
            return
        self.sim.committed(self, batch)
        for event in batch:
            if isinstance(event.data, JobSubmitted):
                self._submitting, self._lived = "", True
            elif isinstance(event.data, NodeJoined):
                self._choose_standbys()
            elif isinstance(event.data, NodeLost):
                self._lost(event.data.node, event.data.incarnation)
                self._part_with(event.data.node, event.data.incarnation)
            elif isinstance(event.data, DeadlineExpired):
                self._expiring.discard((event.data.key, event.data.due))
        answers = answers_to(self.state, batch)
        for (node, incarnation), n in answers.acks.items():
            self._durable[node] = (incarnation, n)
            session = self._sessions.get(node)
            if session is not None and session.incarnation == incarnation:
                session.acked = n
        for (node, incarnation), orders in answers.orders.items():
            session = self._sessions.get(node)
            if session is not None and session.incarnation == incarnation:
                session.order(orders)
        for event in batch:
            if isinstance(event.data, NodeLeft) and event.data.node in self._sessions:
                self._sessions[event.data.node].acknowledge()  # it waits for that
        self._catch_up()
        if self._watcher is not None:
            self._watcher.attend()
        if self._lived and self.state.phase in ENDED and not self.state.alive():
            self._end("the job has ended")
            return
        self._set_alarm()
        self.committing = False
        if self._queue:
            self.committing = True
            self._commit_next()

    def _part_with(self, node: str, incarnation: str) -> None:
        session = self._sessions.get(node)
        if session is not None and session.incarnation == incarnation:
            session.stream.close()

    def _catch_up(self) -> None:
        """The state is that of the log: do what waited for that."""
        self._serve_newcomers()
        held, self._held_back = self._held_back, []
        for session, hello in held:
            answer = self._judge(hello)
            if answer is not None:
                session.send(answer)
            else:
                self._admit(session, hello)

    def _serve_newcomers(self) -> None:
        for session in self._unserved:
            orders = unanswered(self.state, session.node, session.incarnation)
            if orders:
                session.order(orders)
        self._unserved.clear()

    def _choose_standbys(self) -> None:
        for node in self.state.alive()[1 : 1 + STANDBYS]:
            session = self._sessions.get(node.node)
            if session is not None and node.incarnation not in self._standbys:
                self._standbys.add(node.incarnation)
                session.send(frames.HostStandby())

    # -- time

    def _set_alarm(self) -> None:
        """The deadline that comes first becomes a fact if it has passed; only where the state is that of the log."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        coming = next_deadline(self.state)
        if coming is None or coming in self._expiring:
            return
        left = self._left(coming[1])
        if left > 0:
            rings = self.clock.now + left
            self._alarm = self.after(left, lambda: self._ring(rings))
            return
        self._expiring.add(coming)
        expired = own_fact(DeadlineExpired(key=coming[0], due=coming[1]))
        self.submit(expired, lambda: self._left(coming[1]) <= 0)

    def _left(self, deadline: int) -> int:
        since = max(self._led_since, self._resumed, self._thawed)
        return due(deadline, since, self.timing.node_lease_s) - (self._base + self.clock.now)

    def _ring(self, due_at: int) -> None:
        if self.clock.now - due_at > ns(FROZEN_S):
            self._thawed = self._base + self.clock.now
        if not self.committing:  # else behind the commit
            self._set_alarm()

    def _look(self) -> None:
        now = self.clock.now
        expected = frozenset((node.node, node.incarnation) for node in self.state.alive())
        for node, incarnation in self._leases.silent(expected, now):
            self._lose(node, incarnation)
        self._sample(now)
        self._tell_stood(now)
        self._give_signs_of_life(now)
        if self._sessions:
            self._called = now
        elif now - self._called > ns(self.timing.master_idle_s):
            self._end("no agent calls")
            return
        self.after(LOOK_NS, self._look)

    def _see_whether_it_can_be_found(self) -> None:
        """While nodes are awaited, look for this master as they do; where that fails, they are not to blame."""
        self.after(ns(FOUND_S), self._see_whether_it_can_be_found)
        if self._leases.awaited:
            answers: list[Any] = []

            def look() -> None:
                if not answers:
                    self._leases.excuse(self.clock.now)

            self.sim.store.ask(self, self.sim.store.who_leads, answers.append, reads=True)
            self.after(ns(FOUND_S), look)

    def _give_signs_of_life(self, now: int) -> None:
        """Tell every agent something to whom nothing was said lately: what it is owed."""
        for session in self._sessions.values():
            if session.spoken_to:
                session.spoken_to, session.told = False, now
            elif now - session.told >= ns(self.timing.sign_s):
                session.acknowledge()

    def _lose(self, node: str, incarnation: str) -> None:
        if (node, incarnation) in self._losing:
            return
        self._losing.add((node, incarnation))
        session = self._sessions.get(node)
        mine = session is not None and session.incarnation == incarnation
        beat = session.beat if session is not None and mine else None
        heard = self._leases.last_heard(node, incarnation)
        lost = NodeLost(
            node=node,
            incarnation=incarnation,
            reason=f"no frame for {self.timing.node_lease_s:g} s",
            step=beat.step if beat is not None else None,
            absolute=beat.absolute if beat is not None else False,
        )
        self.submit(own_fact(lost), lambda: self._leases.last_heard(node, incarnation) == heard)

    def _tell_stood(self, now: int) -> None:
        stood = self._standstill.look(self.state, now / 1e9)
        if stood is not None:
            holds = self._standstill.holds
            self.submit(own_fact(stood), lambda: holds(self.state, stood, self.clock.now / 1e9))

    def _sample(self, now: int) -> None:
        world = self.state.world
        sampled_at, sampled_step = self._sampled
        if world is None or not world.started or now - sampled_at < ns(self.timing.progress_sample_s):
            return
        beats = [session.beat for session in self._sessions.values() if session.beat is not None]
        steps = [beat.step for beat in beats if beat.round == world.round and beat.step is not None]
        step = min(steps) if steps else -1
        if step >= 0 and step != sampled_step:
            self.submit(own_fact(JobProgressed(round=world.round, step=step)))
        self._sampled = (now, step)

    # -- the service

    def answer(self, client: End) -> Stream:
        """An agent calls: its stream."""
        session = Session(End(self, lambda f: self._take(session, f), lambda: self._detach(session)), None)  # type: ignore[arg-type]
        session.stream = self.sim.net.connect(client, session.end)
        return session.stream

    def _take(self, session: Session, frame: Any) -> None:
        if isinstance(frame, frames.Hello):
            session.node, session.incarnation = frame.node, frame.incarnation
            self._greet(session, frame, self.clock.now + (0 if frame.acked else ns(PREDECESSOR_S)))
            return
        self._heard_of(session)
        if isinstance(frame, frames.Facts):
            if self.leading:
                self._take_facts(session, frame.bodies)
                if self.sim.chance.random() < self.sim.options.twice:
                    self._take_facts(session, frame.bodies)
        elif isinstance(frame, frames.Beat):
            session.beat = frame.pulse
            now_s = self.clock.now / 1e9
            self._standstill.heard(session.node, frame.pulse.round, frame.stands, now_s, frame.net)

    def _take_facts(self, session: Session, bodies: tuple[bytes, ...]) -> None:
        if self._sessions.get(session.node) is not session:
            return
        for fact in facts_of(bodies):
            if listens_to(self.state, session.node, session.incarnation, fact.id.incarnation):
                self.submit(fact)

    def _heard_of(self, session: Session) -> None:
        self._called = self.clock.now
        self._leases.heard(session.node, session.incarnation, self.clock.now)

    def _occupied(self, hello: frames.Hello) -> bool:
        session = self._sessions.get(hello.node)
        if not self.leading or session is None or session.incarnation == hello.incarnation:
            return False
        node = self.state.nodes.get(hello.node)
        quiet = self.clock.now - self._leases.last_heard(session.node, session.incarnation)
        alive = node is not None and node.alive and node.incarnation == session.incarnation
        return alive and quiet < ns(2 * self.timing.heartbeat_s)

    def _greet(self, session: Session, hello: frames.Hello, patience: int) -> None:
        if self._occupied(hello) and self.clock.now < patience:
            self.after(ns(0.05), lambda: self._greet(session, hello, patience))
            return
        answer = self._judge(hello)
        if answer is not None and self.leading and self.committing:
            self._held_back.append((session, hello))  # what it is refused for has to be durable
        elif answer is not None:
            session.send(answer)
        else:
            self._admit(session, hello)

    def _admit(self, session: Session, hello: frames.Hello) -> None:
        older = self._sessions.get(hello.node)
        if older is not None:
            older.stream.close()
        self._sessions[hello.node] = session
        self._heard_of(session)
        session.acked = acknowledged(self._durable, hello.node, hello.incarnation)
        session.send(frames.Welcome(self.term, session.acked))
        self._unserved.append(session)
        if not self.committing:
            self._serve_newcomers()
        self._choose_standbys()

    def _judge(self, hello: frames.Hello) -> frames.NotMaster | frames.Refused | None:
        if not self.leading:
            known = self.state.master if self.phase is MasterPhase.CANDIDATE else None
            return frames.NotMaster(known.address if known is not None else "")
        found = refusal(self.state, hello.node, hello.incarnation, hello.acked, self._occupied(hello), hello.again)
        if found is None and not is_known(self.state, hello.node, hello.incarnation):
            if wants_run(self.state):
                if not self._submitting:
                    self._submit_run()
            elif hello.digest != self.state.digest:
                found = wrong_job(self.state.job)
        return None if found is None else frames.Refused(found.reason, found.rejoin, found.release)

    def _submit_run(self) -> None:
        options = self.sim.options
        self.submit(own_fact(options.policy))
        submitted = JobSubmitted(
            job="job",
            run=self.state.run + 1,
            spec=options.spec,
            digest=options.digest,
            command=("simulate",),
            versions={},
            user="sim@sim",
        )
        self.submit(own_fact(submitted))
        self._submitting = options.digest

    def _detach(self, session: Session) -> None:
        session.stream.close()
        self._held_back = [held for held in self._held_back if held[0] is not session]
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]

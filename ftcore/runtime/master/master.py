"""A process that wants the master role: it follows the log, campaigns, leads, and ends with the job.

Life: candidate (server up, folding along) -> elected -> folding the rest -> leading -> deposed. The server answers from
the start, so that agents who ask a standby are told who leads. See ``states/master.py`` for the machine.
"""

import asyncio
import contextlib
import resource
from collections.abc import Callable, Sequence
from heapq import nsmallest
from typing import Any, TypeVar

import attrs
import structlog

from ftcore.engine.master import (
    Leases,
    Refusal,
    acknowledged,
    answers_to,
    is_known,
    listens_to,
    refusal,
    takes_part,
    unanswered,
    wants_run,
    wrong_job,
)
from ftcore.engine.notice import job_rules
from ftcore.engine.pace import NodePaces, Pace
from ftcore.engine.standstill import StandstillWatch
from ftcore.engine.turn import MASTER as OWN
from ftcore.engine.turn import own_fact
from ftcore.errors import Conflict, Fenced, FtcoreError
from ftcore.events.envelope import Event, EventId, Fact
from ftcore.events.job import JobProgressed, JobSpec, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeLeft, NodeLost
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import AlertRaised
from ftcore.events.worker import WorkersStood, WorkersWentOn
from ftcore.faults.table import table
from ftcore.ids import Seq, seconds
from ftcore.platforms import open_platform
from ftcore.ports import Candidate, EventLog, Host, Leadership, Platform, Transport
from ftcore.runtime import tasks
from ftcore.runtime.clock import SystemClock, at
from ftcore.runtime.host import HERE
from ftcore.runtime.master.adviser import Adviser, Ask, ask
from ftcore.runtime.master.alerts import ALERTS_S, Alerts, Send, send
from ftcore.runtime.master.contradictions import Contradictions
from ftcore.runtime.master.deadlines import Deadlines
from ftcore.runtime.master.follower import Follower
from ftcore.runtime.master.keeper import Keeper, Upkeep
from ftcore.runtime.master.operators import Operators
from ftcore.runtime.master.refusals import Refusals
from ftcore.runtime.master.replacer import Replacer
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.runtime.master.service import Service
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.master.standbys import Standbys, announce
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.opening import Turned, other_version
from ftcore.runtime.wire.security import NONE, Security
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.states.job import ENDED, JobPhase
from ftcore.states.master import MASTER, MasterPhase
from ftcore.states.model import Contradicted, JobState
from ftcore.states.revisions import NEWEST
from ftcore.timing import DEFAULT, Timing
from ftcore.version import __version__

ADDRESS_S = 0.5
"""How often a master looks whether callers still find its address."""

LOOK_S = 0.1
"""How often leases and idleness are looked at."""

FOUND_S = 0.5
"""How often a master whom nodes have not found yet asks the store who leads, and how long that may take."""

SUCCESSOR_S = 0.3
"""How long a deposed master asks the store who leads; its agents wait for that."""

STANDBYS = 2
"""Standbys wanted beside the leader, on the lowest ordinals after the first."""

SPARE_DESCRIPTORS = 64
"""What a master needs beside one connection to each agent: the log store, operators, its own."""

T = TypeVar("T")

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class MasterParts:
    """What a master stands on beside its log and its transport; another world has others.

    Args:
        host: its machine.
        open_platform: opens the platform at a URL, for a job.
        send: sends an alert.
        ask: asks a policy that is not ftcore's own.
    """

    host: Host = HERE
    open_platform: Callable[[str, str], Platform] = open_platform
    send: Send = send
    ask: Ask = ask


class Master:
    """A candidate for the master role of one job.

    Args:
        log: the job's log; closed by the caller.
        listen: where to serve (``unix:/path``, or ``host:0`` for a free port).
        advertise: host name or address that others use, for TCP targets.
        security: what is shown to callers, and asked of them.
        transport: how it is reached; None: gRPC.
        platform: URL of what launches nodes; empty: nothing does.
        timing: time constants for the time before the job's own are known.
        standby: it was started beside a master that leads: it ends if the run has ended. Otherwise it may be there to
            begin a new run of a log that has ended.
        upkeep: how the log is kept small; None: with snapshots alone.
        parts: what else it stands on.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        listen: str,
        advertise: str = "",
        security: Security = NONE,
        transport: Transport | None = None,
        platform: str = "",
        timing: Timing = DEFAULT,
        standby: bool = False,
        upkeep: Upkeep | None = None,
        parts: MasterParts | None = None,
    ) -> None:
        parts = parts or MasterParts()
        self._host = parts.host
        self.log = log
        self.phase: MasterPhase = MasterPhase.CANDIDATE
        self._timing = timing
        self._follower = Follower(log, saw_run=standby, host=self._host)
        self._clock = SystemClock(host=self._host)
        self._transport = transport or GrpcTransport(security)
        service = Service(self, self._transport, listen=listen, advertise=advertise, token=security.token)
        self._listener = service.listener
        self._sessions: dict[str, Session] = {}
        self._sequencer: Sequencer | None = None
        self._alerts = Alerts(self._record, parts.send)
        self._leases = Leases(seconds(timing.node_lease_s), seconds(LOOK_S))
        self._expected: frozenset[tuple[str, str]] | None = None
        self._paces = NodePaces(timing.pace_window_s)
        self._standstill = StandstillWatch(timing)
        self._losing: set[tuple[str, str]] = set()
        self._last_called = self._clock.mono()
        self._sampled: tuple[int, int] = (self._clock.mono(), -1)
        self._durable: dict[str, tuple[str, int]] = {}
        self._deadlines: Deadlines | None = None
        self._hosting: set[str] = set()
        self._standbys = Standbys()
        self._security = security
        self._submitting: JobSpec | None = None
        self._unserved: list[Session] = []
        self._held: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self._lived = False
        self._prepared = False
        self._refusals = Refusals(self._tell_own)
        self._operators = Operators(
            log.job, lambda: self.state, lambda: self.leading, self._durable_answer, self._record
        )
        self._adviser = Adviser(self._tell_own, parts.ask)
        self._replacer = (
            Replacer(platform, log.job, self._tell_own, lambda: self.state, parts.open_platform) if platform else None
        )
        self._ended = asyncio.Event()
        self._identified = asyncio.Event()
        self._contradictions = Contradictions(log, lambda: self.state, self._record)
        self._upkeep = upkeep if upkeep is not None else Upkeep(log=log)
        self._keeper: Keeper | None = None

    @property
    def state(self) -> JobState:
        """The folded state; of a leader it may run ahead of the log while a commit is under way."""
        return self._sequencer.state if self._sequencer is not None else self._follower.state

    @property
    def leading(self) -> bool:
        """Facts are taken and orders given."""
        return self.phase is MasterPhase.LEADING

    async def run(self, ready: Callable[[str], None] = lambda address: None) -> None:
        """Campaign and lead until the job has ended, the term is lost, or nobody calls any more.

        Args:
            ready: called with the address once the server answers.
        """
        address = await self._listener.start()
        ready(address)
        leadership: Leadership | None = None
        keeping = asyncio.create_task(self._keep_address())
        try:
            leadership = await self._win(address)
            if leadership is not None:
                await self._lead(leadership, address)
        finally:
            keeping.cancel()
            self._step("resigned")
            self._answer_held()
            for session in self._sessions.values():
                session.end()
            if leadership is not None:
                with contextlib.suppress(Exception):
                    await leadership.resign()
            await self._listener.stop()

    async def _keep_address(self) -> None:
        """A standby's address, too, must be one that agents find at the moment in which it leads."""
        while True:
            await asyncio.sleep(ADDRESS_S)
            await self._listener.restore()

    def _step(self, trigger: str) -> None:
        following = MASTER.step(self.phase, trigger)
        assert following is not None, f"master in {self.phase}: {trigger}"
        self.phase = MasterPhase(following)

    # -- candidate

    async def _win(self, address: str) -> Leadership | None:
        """Follow and fold until the role is won; None if the job ended under another master.

        Who has not yet folded what was there when it came does not campaign: the role goes to who can lead at once.
        """
        candidate = Candidate(host=self._host.name, pid=self._host.pid, address=address)
        announcing = asyncio.create_task(
            announce(self._transport, self.log.job, address, self._security, lambda: self.state.master)
        )
        following = asyncio.create_task(self._follower.follow())
        campaign = asyncio.create_task(self._campaign(candidate))
        try:
            await asyncio.wait({following, campaign}, return_when=asyncio.FIRST_COMPLETED)
            if not campaign.done():
                following.result()
                return None
        finally:
            await tasks.end([announcing, following] if campaign.done() else [announcing, following, campaign])
        self._step("lease.won")
        return campaign.result()

    async def _campaign(self, candidate: Candidate) -> Leadership:
        await self._follower.caught_up.wait()
        return await self.log.campaign(candidate)

    # -- leading

    async def _lead(self, leadership: Leadership, address: str) -> None:
        self._step("log.ended.at")
        await self._follower.finish()
        await self._contradictions.begin()
        self._clock = SystemClock(self.state.time, self._follower.ahead, self._host)
        self._last_called = self._clock.mono()
        self._durable = dict(self.state.sources)
        self._sequencer = Sequencer(self.log, self.state, leadership.term, self._clock, self._committed)
        self._deadlines = Deadlines(self._sequencer, self._clock, lambda: self._timing.node_lease_s)
        self._keeper = Keeper(self._upkeep, leadership.term, self._tell_own)
        self._step("folded")
        self._adopt_timing()
        if self._follower.run_has_ended():
            return  # the run ended while the last master handed over
        self._lived = self.state.run > 0 and self.state.phase not in ENDED
        elected = MasterElected(
            host=self._host.name,
            pid=self._host.pid,
            address=address,
            version=__version__,
            decides=NEWEST,
            log_id="" if self.state.log_id else self._host.unique(),
        )
        durable = self._sequencer.submit(Fact(id=EventId(OWN, "", 0), data=elected, at=at(host=self._host)))
        if elected.log_id:
            durable.add_done_callback(lambda _: self._identified.set())
        else:
            self._identified.set()
        for event in self._follower.unsent.news(self._clock.now()):
            self._alerts.take(event, self.state.chain)
        logger.info("leading", job=self.log.job, term=leadership.term, seq=self.state.seq)
        duties = [
            asyncio.create_task(self._sequencer.run(), name="sequencer"),
            asyncio.create_task(self._deadlines.run(), name="deadlines"),
            asyncio.create_task(self._look_after(), name="leases"),
            asyncio.create_task(self._see_whether_it_can_be_found(), name="store"),
            asyncio.create_task(leadership.lost(), name="leadership"),
            asyncio.create_task(self._alerts.run(), name="alerts"),
            asyncio.create_task(self._until_ended(), name="ended"),
            asyncio.create_task(self._keeper.run(), name="keeper"),
        ]
        if self._replacer is not None:
            duties.append(asyncio.create_task(self._replacer.run(), name="platform"))
        try:
            done, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            for duty in done:
                with contextlib.suppress(Fenced, Conflict):
                    outcome = duty.result()
                    if duty.get_name() == "leadership":
                        logger.warning("leadership lost", reason=outcome)
            if not self._ended.is_set():
                await self._say_who_leads(address)
        finally:
            await tasks.end(duties)
            await self._adviser.close()
            self._keeper.close()
            if self._replacer is not None:
                await self._replacer.close()

    async def _say_who_leads(self, address: str) -> None:
        """Deposed: send every agent to the successor, if the store tells who that is; else to look for it at once."""
        leader = None
        with contextlib.suppress(FtcoreError, TimeoutError):
            async with asyncio.timeout(SUCCESSOR_S):
                leader = await self.log.leader()
        known = leader is not None and leader.alive and leader.candidate.address != address
        hint = leader.candidate.address if leader is not None and known else ""
        for session in self._sessions.values():
            session.send(frames.NotMaster(hint))

    def _record(self, data: Any) -> asyncio.Future[Seq]:
        assert self._sequencer is not None
        return self._sequencer.submit(own_fact(data))

    async def _until_ended(self) -> None:
        """Wait for the end of the job, and until people are told, unless a new run begins meanwhile."""
        while True:
            await self._ended.wait()
            await self._alerts.flush(ALERTS_S)
            if self.state.phase in ENDED or not self._sessions:
                return
            self._ended.clear()

    def _committed(self, batch: Sequence[Event]) -> None:
        """A batch is durable: acknowledge its facts, send its orders. The state is exactly the log's now."""
        assert self._sequencer is not None
        leaving: list[str] = []
        self._expected = None
        self._contradictions.committed(batch)
        for event in batch:
            self._follower.unsent.feed(event)
            if isinstance(event.data, JobSubmitted):
                self._adopt_timing()
                self._submitting, self._lived = None, True
            elif isinstance(event.data, AlertRaised):
                self._alerts.take(event, self.state.chain, end=self.state.phase in ENDED)
            elif isinstance(event.data, NodeLost):
                self._part_with(event.data.node, event.data.incarnation)
            elif isinstance(event.data, NodeLeft):
                leaving.append(event.data.node)
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
        for node in leaving:
            if node in self._sessions:
                self._sessions[node].acknowledge()  # it waits for that
        self._serve_newcomers()
        self._operators.committed(batch)
        self._answer_held()
        self._adviser.attend(self.state, self._clock.now())
        if self._replacer is not None:
            self._replacer.attend(self.state, self._clock.now())
        self._check_ended()
        self._prepare()
        if self._deadlines is not None:
            self._deadlines.changed()
        if self._keeper is not None:
            self._keeper.committed(self.state, self._follower.unsent.waiting)

    def _prepare(self) -> None:
        """Once workers run: compile the rules in a thread. It takes 0.13 s, for which the first fault would wait."""
        if not self._prepared and self.state.phase is JobPhase.RUNNING:
            self._prepared = True
            asyncio.get_running_loop().run_in_executor(None, table, job_rules(self.state))

    def _part_with(self, node: str, incarnation: str) -> None:
        """A node was lost, and is told now by being refused when it calls again: it stops its workers for that."""
        session = self._sessions.get(node)
        if session is not None and session.incarnation == incarnation:
            session.end()

    def _tell_own(self, data: Any, holds: Callable[[], bool] = lambda: True) -> None:
        assert self._sequencer is not None
        self._sequencer.submit(own_fact(data), holds)

    def _serve_newcomers(self) -> None:
        """Repeat to agents that connected the orders that they have not answered.

        Only where the state is that of the log: an order must never be seen before its decision is durable.
        """
        for session in self._unserved:
            orders = unanswered(self.state, session.node, session.incarnation)
            if orders:
                session.order(orders)
        self._unserved.clear()

    def _check_ended(self) -> None:
        """End with the job, once that is durable: its last group is what the agents leave with."""
        if self._sequencer is not None and self._sequencer.ahead:
            return  # looked at again behind the commit
        if self._lived and self.state.phase in ENDED and not self.state.places:
            self._ended.set()

    def _adopt_timing(self) -> None:
        if self.state.spec is not None:
            self._timing = self.state.spec.timing
            self._check_descriptors(self.state.spec.nodes_max)
        self._leases = Leases(seconds(self._timing.node_lease_s), seconds(LOOK_S))
        self._paces = NodePaces(self._timing.pace_window_s)
        self._standstill = StandstillWatch(self._timing)

    def _check_descriptors(self, nodes: int) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if nodes + SPARE_DESCRIPTORS > limit:
            logger.warning(
                "too few file descriptors: not every node can connect; raise the limit (`ulimit -n`, LimitNOFILE)",
                job=self.log.job,
                nodes=nodes,
                limit=limit,
            )

    def _choose_standbys(self) -> None:
        for place in nsmallest(1 + STANDBYS, self.state.places)[1:]:
            node = self.state.nodes[self.state.places[place]]
            session = self._sessions.get(node.node)
            if session is not None and node.incarnation not in self._hosting:
                self._hosting.add(node.incarnation)
                session.send(frames.HostStandby())

    # -- time

    async def _look_after(self) -> None:
        """Look at the leases, the samples of progress, and whether anybody still calls."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._clock.mono()
            if self._expected is None:
                self._expected = frozenset((node.node, node.incarnation) for node in self.state.alive())
            for node, incarnation in self._leases.silent(self._expected, now):
                self._lose(node, incarnation, f"no frame for {self._timing.node_lease_s:g} s")
            self._sample_progress(now)
            self._refusals.look(now)
            for slow in self._paces.look(self.state, now / 1e9):
                self._tell_own(slow)
            stood = self._standstill.look(self.state, now / 1e9)
            if stood is not None:
                self._tell_stood(stood)
            self._give_signs_of_life(now)
            self._choose_standbys()
            if self._standbys.forget(now):
                self._tell_candidates()
            if self._sessions or self._held:
                self._last_called = now
            elif now - self._last_called <= seconds(self._idle_s):
                continue
            elif self.state.run and self.state.phase is JobPhase.ASSEMBLING and self.state.stop is None:
                why = f"no agent has called for {self._idle_s:g} s, and no round was formed"
                self._tell_own(OperatorCommanded(command="stop", who="ftcore", why=why))
                self._last_called = now  # the run's end is written and told before this master ends, too
            else:
                logger.info("no agent calls; resigning", job=self.log.job)
                self._ended.set()

    async def _see_whether_it_can_be_found(self) -> None:
        """While nodes are awaited, look for this master as they do; where that fails, they are not to blame."""
        while True:
            await asyncio.sleep(FOUND_S)
            if self._leases.awaited and not self._listener.reachable:
                self._leases.excuse(self._clock.mono())
            elif self._leases.awaited:
                try:
                    async with asyncio.timeout(FOUND_S):
                        await self.log.leader()
                except (FtcoreError, TimeoutError):
                    self._leases.excuse(self._clock.mono())

    @property
    def _idle_s(self) -> float:
        """How long nobody need call: over a run that has ended nobody is waited for who was only cut off."""
        timing, state = self._timing, self.state
        over = state.phase in ENDED and state.contradicted is not Contradicted.OPEN
        return timing.master_lease_s if over else timing.master_idle_s

    def _give_signs_of_life(self, now: int) -> None:
        """Tell every agent something to whom nothing was said lately: what it is owed, which it can wait for.

        Each in its own time, not thousands at once.
        """
        quiet = seconds(self._timing.sign_s)
        for session in self._sessions.values():
            if session.spoken_to:
                session.spoken_to, session.told = False, now
            elif now - session.told >= quiet:
                session.acknowledge()

    def _lose(self, node: str, incarnation: str, reason: str) -> None:
        assert self._sequencer is not None
        life = (node, incarnation)
        if life in self._losing:
            return
        session = self._sessions.get(node)
        beat = session.beat if session is not None and session.incarnation == incarnation else None
        lost = NodeLost(
            node=node,
            incarnation=incarnation,
            reason=reason,
            step=beat.step if beat is not None else None,
            absolute=beat.absolute if beat is not None else False,
        )
        self._losing.add(life)
        heard = self._leases.last_heard(*life)
        told = self._sequencer.submit(
            own_fact(lost), lambda: self._leases.last_heard(*life) == heard and takes_part(self.state, *life)
        )
        told.add_done_callback(lambda _: self._lost(life))

    def _lost(self, life: tuple[str, str]) -> None:
        self._losing.discard(life)
        self._leases.heard(*life, self._clock.mono())  # if the fact was set aside, it is said again, a lease later

    def _tell_stood(self, stood: WorkersStood | WorkersWentOn) -> None:
        assert self._sequencer is not None
        holds = self._standstill.holds
        self._sequencer.submit(own_fact(stood), lambda: holds(self.state, stood, self._clock.mono() / 1e9))

    def _sample_progress(self, now: int) -> None:
        assert self._sequencer is not None
        world = self.state.world
        sampled_at, sampled_step = self._sampled
        if world is None or not world.started or now - sampled_at < seconds(self._timing.progress_sample_s):
            return
        if self._sequencer.stalled or (self._keeper is not None and self._keeper.shedding):
            return  # what can be done without goes first
        beats = [session.beat for session in self._sessions.values() if session.beat is not None]
        steps = [beat.step for beat in beats if beat.round == world.round and beat.step is not None]
        step = min(steps) if steps else -1
        if step >= 0 and step != sampled_step:
            loss = next((beat.loss for beat in beats if beat.loss is not None), None)
            self._sequencer.submit(own_fact(JobProgressed(round=world.round, step=step, loss=loss)))
        self._sampled = (now, step)

    # -- what the service asks

    def turned_away(self, turned: Turned, peer: str) -> None:
        """A caller was not let in; it is recorded, bounded, by who leads."""
        logger.info("a caller was turned away", kind=turned.kind, peer=peer, name=turned.name)
        if self.leading:
            self._refusals.add(turned, peer, self._clock.mono())

    def _refuse(self, kind: str, reason: str, hello: frames.Hello, peer: str) -> frames.Refused:
        self.turned_away(Turned(kind=kind, reason=reason, name=hello.node, version=hello.version), peer)
        return frames.Refused(reason, rejoin=False)

    async def greet(
        self, hello: frames.Hello, peer: str = ""
    ) -> frames.NotMaster | frames.Refused | frames.Parked | None:
        """Judge an agent's first word; None: it may take part. Who is refused stops its workers."""
        if self.leading:
            await self._identified.wait()  # an identity that never becomes durable must not be told
        if self.leading:
            if hello.protocol != frames.PROTOCOL or not frames.same_release(hello.version, __version__):
                turned = other_version(hello.protocol, hello.version, hello.node)
                return self._refuse(turned.kind, turned.reason, hello, peer)
            if hello.job != self.log.job or hello.node == OWN:
                return self._refuse("job", f"this master leads {self.log.job}, not {hello.job}", hello, peer)
            parted = await self._contradictions.answer(hello.node, hello.mark)
            if parted is not None:
                self._last_called = self._clock.mono()  # who is parked calls again until an operator has decided
                self._told_of_end(parted)
                return parted
            found = await self._durable_answer(lambda: self._judge(hello))
            if found is not None:
                return self._refusal(found, hello, peer)
            if self.leading:
                return None
        # Who has won the role knows of nobody else: its predecessor may be frozen, and would be waited for in vain.
        known = self.state.master if self.phase is MasterPhase.CANDIDATE else None
        return frames.NotMaster(known.address if known is not None else "")

    def _judge(self, hello: frames.Hello) -> Refusal | None:
        occupied, launch = self.occupied(hello), hello.submission.launch
        found = refusal(self.state, hello.node, hello.incarnation, hello.acked, occupied, hello.again, launch)
        if found is not None or is_known(self.state, hello.node, hello.incarnation):
            return found
        if self._submit_or_join(hello.submission):
            return None
        return wrong_job(self.log.job, hello.submission.spec, self._submitting or self.state.spec)

    async def _durable_answer(self, look: Callable[[], T | None]) -> T | None:
        """Why somebody is refused; None: they are not, or this process does not lead any more.

        What anybody is refused for must be durable: while a commit is under way a refusal waits for the end of it, and
        is judged once more. While the log cannot be written nobody is refused.
        """
        while self.leading and self._sequencer is not None:
            found = look()
            if found is None or not self._sequencer.ahead:
                return found
            behind: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
            self._held[behind] = look
            try:
                found = await behind
            finally:
                self._held.pop(behind, None)
            if found is not None:
                return found
        return None

    def _answer_held(self) -> None:
        """Answer whose answer was held back; nobody is refused by who does not lead any more."""
        held, self._held = self._held, {}
        for answer, look in held.items():
            if not answer.done():
                answer.set_result(look() if self.leading else None)

    def _refusal(self, found: Refusal, hello: frames.Hello, peer: str) -> frames.Refused:
        if not found.rejoin and found.release is None:
            return self._refuse(found.kind, found.reason, hello, peer)
        refused = frames.Refused(found.reason, found.rejoin, found.release)
        self._told_of_end(refused)
        return refused

    def _told_of_end(self, answer: frames.Refused | frames.Parked) -> None:
        """An agent called and learned how the run ended: then nothing else is to be led."""
        if isinstance(answer, frames.Refused) and not answer.rejoin:
            self._lived |= self.state.phase in ENDED
            self._check_ended()

    def occupied(self, hello: frames.Hello) -> bool:
        """Whether another agent of that name was heard a moment ago."""
        session = self._sessions.get(hello.node)
        if not self.leading or session is None or session.incarnation == hello.incarnation:
            return False
        quiet = self._clock.mono() - self._leases.last_heard(session.node, session.incarnation)
        there = takes_part(self.state, session.node, session.incarnation)
        return there and quiet < seconds(2 * self._timing.heartbeat_s)

    def _submit_or_join(self, submission: frames.Submission) -> bool:
        """A newcomer: begin a run if none lives, else it must want the same job; whether it may take part."""
        if wants_run(self.state):
            if self._submitting is None:
                self._submit(submission)
            wanted = self._submitting
        else:
            wanted = self.state.spec
        return wanted is not None and wanted.admits(submission.spec)

    def _submit(self, submission: frames.Submission) -> None:
        assert self._sequencer is not None
        submitted = JobSubmitted(
            job=self.log.job,
            run=self.state.run + 1,
            spec=submission.spec,
            digest=submission.digest,
            command=submission.command,
            versions=submission.versions,
            user=submission.user,
            launch=submission.launch,
        )
        self._sequencer.submit(own_fact(submission.policy))  # in force before anything can be decided
        self._sequencer.submit(own_fact(submitted))
        self._submitting = submission.spec

    def attach(self, session: Session) -> None:
        """An agent's stream begins: welcome it and repeat the orders that it has not answered."""
        assert self._sequencer is not None
        older = self._sessions.get(session.node)
        if older is not None:
            older.end()
        self._sessions[session.node] = session
        self.heard(session)
        acked = session.acked = acknowledged(self._durable, session.node, session.incarnation)
        session.mark = lambda: self._contradictions.mark
        session.send(frames.Welcome(self._sequencer.term, acked, session.mark()))
        if self._standbys.addresses:
            session.send(frames.Candidates(self._standbys.addresses))
        self._unserved.append(session)
        if not self._sequencer.ahead:
            self._serve_newcomers()

    def detach(self, session: Session) -> None:
        """An agent's stream is over; its lease goes on."""
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]

    def heard(self, session: Session) -> None:
        """A frame came."""
        now = self._clock.mono()
        self._last_called = now
        self._leases.heard(session.node, session.incarnation, now)

    def beat(self, session: Session, beat: frames.Beat) -> None:
        """A heartbeat came."""
        session.take(beat)
        self._standstill.heard(session.node, beat.round, beat.stands, self._clock.mono() / 1e9, beat.net)
        if beat.own_s is not None and beat.whole_s is not None:
            self._paces.heard(session.node, beat.round, Pace(beat.own_s, beat.whole_s))

    def take_fact(self, session: Session, fact: Fact) -> None:
        """A fact came from an agent; it is acknowledged when it is durable.

        Only a node's newest stream is listened to: what is still under way on an older one comes again on this one, and
        a late fact of a life that is over would be taken for new. Whether its life is over is asked when its turn
        comes: while the log takes nothing, an agent that calls again hands on what its predecessor left once more.
        """
        assert self._sequencer is not None
        if self._sessions.get(session.node) is session:
            node, caller, life = session.node, session.incarnation, fact.id.incarnation
            self._sequencer.submit(fact, lambda: listens_to(self.state, node, caller, life))

    def stands_by(self, standby: frames.Standby) -> frames.Candidates:
        """A standby tells where it serves; agents are told of one that is new."""
        known = (standby.job, standby.protocol) == (self.log.job, frames.PROTOCOL)
        if self.leading and known and self._standbys.heard(standby.address, self._clock.mono()):
            self._tell_candidates()
        return frames.Candidates(self._standbys.addresses)

    def _tell_candidates(self) -> None:
        for session in self._sessions.values():
            session.send(frames.Candidates(self._standbys.addresses))

    def seen(self, inquiry: frames.Inquiry) -> frames.NodesSeen:
        """What the heartbeats tell, for an operator."""
        if not self.leading or (inquiry.job, inquiry.protocol) != (self.log.job, frames.PROTOCOL):
            return frames.NodesSeen((), more=False, leading=False)
        names = sorted(name for name in self._sessions if name > inquiry.after)
        now = self._clock.mono()
        found = [self._sessions[name] for name in names[: frames.NODES_MAX]]
        heard = [(now - self._leases.last_heard(one.node, one.incarnation)) / 1e9 for one in found]
        nodes = [
            frames.NodeSeen(one.node, round(s, 3), one.beat, one.about) for one, s in zip(found, heard, strict=True)
        ]
        return frames.NodesSeen(tuple(nodes), more=len(names) > len(found))

    async def command(self, request: frames.Command) -> frames.CommandReply:
        """An operator's command."""
        return await self._operators.command(request)

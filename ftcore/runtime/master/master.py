"""A process that wants the master role: it follows the log, campaigns, leads, and ends with the job.

Life: candidate (server up, folding along) -> elected -> folding the rest -> leading -> deposed. The server answers from
the start, so that agents who ask a standby are told who leads. See ``states/master.py`` for the machine.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from ftcore import __version__
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
from ftcore.engine.turn import MASTER as OWN
from ftcore.engine.turn import own_fact
from ftcore.engine.wishes import came_of, judge
from ftcore.errors import Conflict, Fenced
from ftcore.events.deadline import DeadlineExpired
from ftcore.events.envelope import Event, EventId, Fact
from ftcore.events.job import JobProgressed, JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeLost
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import AlertRaised
from ftcore.ids import Nanoseconds, Seq, seconds
from ftcore.ports import Candidate, EventLog, Leadership
from ftcore.runtime import tasks
from ftcore.runtime.clock import SystemClock, at
from ftcore.runtime.master.adviser import Adviser
from ftcore.runtime.master.alerts import ALERTS_S, Alerts, Unsent
from ftcore.runtime.master.sequencer import Sequencer, take_in
from ftcore.runtime.master.service import Service
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.wire import frames
from ftcore.states.fold import next_deadline
from ftcore.states.job import ENDED
from ftcore.states.master import MASTER, MasterPhase
from ftcore.states.model import JobState
from ftcore.timing import DEFAULT, Timing

LOOK_S = 0.1
"""How often leases and idleness are looked at."""

STANDBYS = 2
"""Standbys wanted beside the leader, on the lowest ordinals after the first."""

logger = structlog.get_logger()


class Master:
    """A candidate for the master role of one job.

    Args:
        log: the job's log; closed by the caller.
        listen: gRPC target to serve on (``unix:/path``, or ``host:0`` for a free port).
        advertise: host name or address that others use, for TCP targets.
        token: the job's token; empty: none is asked for.
        timing: time constants for the time before the job's own are known.
        standby: it was started beside a master that leads: it ends if the run has ended. Otherwise it may be there to
            begin a new run of a log that has ended.
    """

    def __init__(
        self,
        log: EventLog,
        *,
        listen: str,
        advertise: str = "",
        token: str = "",
        timing: Timing = DEFAULT,
        standby: bool = False,
    ) -> None:
        self.log = log
        self.phase: MasterPhase = MasterPhase.CANDIDATE
        self.state = JobState()
        self._timing = timing
        self._saw_run = standby
        self._clock = SystemClock()
        self._service = Service(self, listen=listen, advertise=advertise, token=token)
        self._sessions: dict[str, Session] = {}
        self._sequencer: Sequencer | None = None
        self._unsent = Unsent()
        self._alerts = Alerts(self._record)
        self._leases = Leases(seconds(timing.node_lease_s), seconds(LOOK_S))
        self._expiring: set[tuple[str, int]] = set()
        self._last_called = self._clock.mono()
        self._signed = int(self._last_called)
        self._sampled: tuple[int, int] = (self._clock.mono(), -1)
        self._durable: dict[str, tuple[str, int]] = {}
        self._led_since = Nanoseconds(0)
        self._standbys: set[str] = set()
        self._submitting = ""
        self._unserved: list[Session] = []
        self._lived = False
        self._adviser = Adviser(self._tell_own)
        self._deadline_changed = asyncio.Event()
        self._ended = asyncio.Event()

    @property
    def leading(self) -> bool:
        """Facts are taken and orders given."""
        return self.phase is MasterPhase.LEADING

    async def run(self, ready: Callable[[str], None] = lambda address: None) -> None:
        """Campaign and lead until the job has ended, the term is lost, or nobody calls any more.

        Args:
            ready: called with the address once the server answers.
        """
        address = await self._service.start()
        ready(address)
        leadership: Leadership | None = None
        try:
            leadership = await self._win(address)
            if leadership is not None:
                await self._lead(leadership, address)
        finally:
            self._step("resigned")
            for session in self._sessions.values():
                session.end()
            if leadership is not None:
                with contextlib.suppress(Exception):
                    await leadership.resign()
            await self._service.stop()

    def _step(self, trigger: str) -> None:
        following = MASTER.step(self.phase, trigger)
        assert following is not None, f"master in {self.phase}: {trigger}"
        self.phase = MasterPhase(following)

    # -- candidate

    async def _win(self, address: str) -> Leadership | None:
        """Follow and fold until the role is won; None if the job ended under another master."""
        candidate = Candidate(host=socket.gethostname(), pid=os.getpid(), address=address)
        following = asyncio.create_task(self._follow())
        campaign = asyncio.create_task(self.log.campaign(candidate))
        try:
            await asyncio.wait({following, campaign}, return_when=asyncio.FIRST_COMPLETED)
            if not campaign.done():
                following.result()
                return None
        finally:
            await tasks.end([following] if campaign.done() else [following, campaign])
        self._step("lease.won")
        return campaign.result()

    async def _follow(self) -> None:
        """Fold along; returns when the job has ended and its nodes have left, so nothing is left to lead.

        A log that had ended before this process came is no reason to go, but for a standby: a new run may be about to
        begin.
        """
        begun = await self.log.last_seq()
        async for event in self.log.follow(Seq(self.state.seq)):
            take_in(self.state, event)
            self._unsent.feed(event)
            over = self.state.phase in ENDED and not self.state.alive()
            if self._saw_run and over and event.seq >= begun:
                return
            self._saw_run = self._saw_run or (not over and event.seq >= begun)

    # -- leading

    async def _lead(self, leadership: Leadership, address: str) -> None:
        self._step("log.ended.at")
        async for event in self.log.read(after=Seq(self.state.seq)):
            take_in(self.state, event)
            self._unsent.feed(event)
        self._clock = SystemClock(not_before=self.state.time)
        self._last_called, self._led_since = self._clock.mono(), self._clock.now()
        self._durable = dict(self.state.sources)
        self._sequencer = Sequencer(self.log, self.state, leadership.term, self._clock, self._committed)
        self._step("folded")
        self._adopt_timing()
        if self._saw_run and self.state.phase in ENDED and not self.state.alive():
            return  # the run ended while the last master handed over
        self._lived = self.state.run > 0 and self.state.phase not in ENDED
        elected = MasterElected(host=socket.gethostname(), pid=os.getpid(), address=address, version=__version__)
        self._sequencer.submit(Fact(id=EventId(OWN, "", 0), data=elected, at=at()))
        for event in self._unsent.news(self._clock.now()):
            self._alerts.take(event, self.state.chain)
        logger.info("leading", job=self.log.job, term=leadership.term, seq=self.state.seq)
        duties = [
            asyncio.create_task(self._sequencer.run(), name="sequencer"),
            asyncio.create_task(self._keep_deadlines(), name="deadlines"),
            asyncio.create_task(self._look_after(), name="leases"),
            asyncio.create_task(leadership.lost(), name="leadership"),
            asyncio.create_task(self._alerts.run(), name="alerts"),
            asyncio.create_task(self._until_ended(), name="ended"),
        ]
        try:
            done, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            for duty in done:
                with contextlib.suppress(Fenced, Conflict):
                    outcome = duty.result()
                    if duty.get_name() == "leadership":
                        logger.warning("leadership lost", reason=outcome)
        finally:
            await tasks.end(duties)
            await self._adviser.close()

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
        self.state = self._sequencer.state
        for event in batch:
            if isinstance(event.data, JobSubmitted):
                self._adopt_timing()
                self._submitting, self._lived = "", True
            elif isinstance(event.data, NodeJoined):
                self._choose_standbys()
            elif isinstance(event.data, AlertRaised):
                self._alerts.take(event, self.state.chain, end=self.state.phase in ENDED)
            elif isinstance(event.data, NodeLost):
                self._part_with(event.data.node, event.data.incarnation)
        answers = answers_to(self.state, batch)
        for (node, incarnation), n in answers.acks.items():
            self._durable[node] = (incarnation, n)
            session = self._sessions.get(node)
            if session is not None and session.incarnation == incarnation:
                session.acked = n
                session.send(frames.Ack(n))
        for (node, incarnation), orders in answers.orders.items():
            session = self._sessions.get(node)
            if session is not None and session.incarnation == incarnation:
                session.send(frames.Orders(tuple(orders)))
        self._serve_newcomers()
        self._adviser.attend(self.state, self._clock.now())
        self._check_ended()
        self._deadline_changed.set()

    def _part_with(self, node: str, incarnation: str) -> None:
        """A node was lost; it may have called again while that was being written, and is told now by being refused."""
        session = self._sessions.get(node)
        if session is not None and session.incarnation == incarnation:
            session.end()

    def _tell_own(self, data: Any) -> None:
        assert self._sequencer is not None
        self._sequencer.submit(own_fact(data))

    def _serve_newcomers(self) -> None:
        """Repeat to agents that connected the orders that they have not answered.

        Only where the state is that of the log: an order must never be seen before its decision is durable.
        """
        for session in self._unserved:
            orders = unanswered(self.state, session.node, session.incarnation)
            if orders:
                session.send(frames.Orders(tuple(orders)))
        self._unserved.clear()

    def _check_ended(self) -> None:
        if self._lived and self.state.phase in ENDED and not self.state.alive():
            self._ended.set()

    def _adopt_timing(self) -> None:
        if self.state.spec is not None:
            self._timing = self.state.spec.timing
        self._leases = Leases(seconds(self._timing.node_lease_s), seconds(LOOK_S))

    def _choose_standbys(self) -> None:
        for node in self.state.alive()[1 : 1 + STANDBYS]:
            session = self._sessions.get(node.node)
            if session is not None and node.incarnation not in self._standbys:
                self._standbys.add(node.incarnation)
                session.send(frames.HostStandby())

    # -- time

    async def _keep_deadlines(self) -> None:
        """Turn each deadline of the folded state into a fact when it has passed."""
        assert self._sequencer is not None
        while True:
            self._deadline_changed.clear()
            coming = next_deadline(self.state)
            timeout_s: float | None = None
            if coming is not None:
                left = due(coming[1], self._led_since, self._timing.node_lease_s) - self._clock.now()
                if left <= 0 and coming not in self._expiring:
                    self._expiring.add(coming)
                    await self._sequencer.submit(own_fact(DeadlineExpired(key=coming[0])))
                    self._expiring.discard(coming)
                    continue
                timeout_s = max(left, 0) / 1e9 + 0.001
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._deadline_changed.wait()

    async def _look_after(self) -> None:
        """Look at the leases, the samples of progress, and whether anybody still calls."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self._clock.mono()
            expected = [(node.node, node.incarnation) for node in self.state.alive()]
            for node, incarnation in self._leases.silent(expected, now):
                self._lose(node, incarnation, f"no frame for {self._timing.node_lease_s:g} s")
            self._sample_progress(now)
            self._give_signs_of_life(now)
            if self._sessions:
                self._last_called = now
            elif now - self._last_called > seconds(self._timing.master_idle_s):
                logger.info("no agent calls; resigning", job=self.log.job)
                self._ended.set()

    def _give_signs_of_life(self, now: int) -> None:
        if now - self._signed >= seconds(self._timing.master_renew_s):
            self._signed = now
            for session in self._sessions.values():
                session.send(frames.Ack(session.acked))

    def _lose(self, node: str, incarnation: str, reason: str) -> None:
        assert self._sequencer is not None
        session = self._sessions.get(node)
        beat = session.beat if session is not None and session.incarnation == incarnation else None
        self._leases.heard(node, incarnation, self._clock.mono())  # said once; the fold takes it out
        lost = NodeLost(
            node=node,
            incarnation=incarnation,
            reason=reason,
            step=beat.step if beat is not None else None,
            absolute=beat.absolute if beat is not None else False,
        )
        self._sequencer.submit(own_fact(lost))
        if session is not None and session.incarnation == incarnation:
            session.end()

    def _sample_progress(self, now: int) -> None:
        assert self._sequencer is not None
        world = self.state.world
        sampled_at, sampled_step = self._sampled
        if world is None or not world.started or now - sampled_at < seconds(self._timing.progress_sample_s):
            return
        beats = [session.beat for session in self._sessions.values() if session.beat is not None]
        steps = [beat.step for beat in beats if beat.round == world.round and beat.step is not None]
        step = min(steps) if steps else -1
        if step >= 0 and step != sampled_step:
            loss = next((beat.loss for beat in beats if beat.loss is not None), None)
            self._sequencer.submit(own_fact(JobProgressed(round=world.round, step=step, loss=loss)))
        self._sampled = (now, step)

    # -- what the service asks

    def greet(self, hello: frames.Hello) -> frames.NotMaster | frames.Refused | None:
        """Judge an agent's first frame; None: it may take part."""
        if not self.leading:
            known = self.state.master
            return frames.NotMaster(known.address if known is not None else "")
        if hello.protocol != frames.PROTOCOL:
            return frames.Refused(
                f"this agent speaks protocol {hello.protocol} (ftcore {hello.version}), the master {frames.PROTOCOL} "
                f"(ftcore {__version__}): install the same version on every node",
                rejoin=False,
            )
        if hello.job != self.log.job or hello.node == OWN:
            return frames.Refused(f"this master leads {self.log.job}, not {hello.job}", rejoin=False)
        occupied = self.occupied(hello)
        found = refusal(self.state, hello.node, hello.incarnation, hello.acked, occupied, hello.again)
        if found is not None:
            return frames.Refused(found.reason, found.rejoin, found.release)
        if not is_known(self.state, hello.node, hello.incarnation):
            return self._submit_or_join(hello.submission)
        return None

    def occupied(self, hello: frames.Hello) -> bool:
        """Whether another agent of that name was heard a moment ago."""
        session = self._sessions.get(hello.node)
        if not self.leading or session is None or session.incarnation == hello.incarnation:
            return False
        node = self.state.nodes.get(hello.node)
        quiet = self._clock.mono() - self._leases.last_heard(session.node, session.incarnation)
        alive = node is not None and node.alive and node.incarnation == session.incarnation
        return alive and quiet < seconds(2 * self._timing.heartbeat_s)

    def _submit_or_join(self, submission: frames.Submission) -> frames.Refused | None:
        """A newcomer: begin a run if none lives, else it must want the same job."""
        if wants_run(self.state):
            if not self._submitting:
                self._submit(submission)
            wanted = self._submitting
        else:
            wanted = self.state.digest
        if submission.digest != wanted:
            found = wrong_job(self.log.job)
            return frames.Refused(found.reason, found.rejoin)
        return None

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
        )
        self._sequencer.submit(own_fact(submission.policy))  # in force before anything can be decided
        self._sequencer.submit(own_fact(submitted))
        self._submitting = submission.digest

    def attach(self, session: Session) -> None:
        """An agent's stream begins: welcome it and repeat the orders that it has not answered."""
        assert self._sequencer is not None
        older = self._sessions.get(session.node)
        if older is not None:
            older.end()
        self._sessions[session.node] = session
        self.heard(session)
        acked = session.acked = acknowledged(self._durable, session.node, session.incarnation)
        session.send(frames.Welcome(self._sequencer.term, acked))
        self._unserved.append(session)
        if not self._sequencer.busy:
            self._serve_newcomers()
        self._choose_standbys()

    def detach(self, session: Session) -> None:
        """An agent's stream is over; its lease goes on."""
        if self._sessions.get(session.node) is session:
            del self._sessions[session.node]

    def heard(self, session: Session) -> None:
        """A frame came."""
        now = self._clock.mono()
        self._last_called = now
        self._leases.heard(session.node, session.incarnation, now)

    def take_fact(self, session: Session, fact: Fact) -> None:
        """A fact came from an agent; it is acknowledged when it is durable.

        Only a node's newest stream is listened to: what is still under way on an older one comes again on this one, and
        a late fact of a life that is over would be taken for new.
        """
        assert self._sequencer is not None
        newest = self._sessions.get(session.node) is session
        if newest and listens_to(self.state, session.node, session.incarnation, fact.id.incarnation):
            self._sequencer.submit(fact)

    async def command(self, request: frames.Command) -> frames.CommandReply:
        """An operator's command."""
        if not self.leading or self._sequencer is None:
            return frames.CommandReply(False, "this process does not lead the job; try again in a moment")
        if request.job != self.log.job:
            return frames.CommandReply(False, f"this master leads {self.log.job}, not {request.job}")
        answer = judge(self.state, request.command, request.node)
        if answer is not None:
            return frames.CommandReply(answer.fulfilled, answer.reason, unknown=answer.unknown)
        before = (self.state.held, self.state.request.command if self.state.request is not None else "")
        data = OperatorCommanded(
            command=request.command,
            who=request.who,
            why=request.why,
            exit_code=request.exit_code,
            node=request.node,
        )
        seq = await self._sequencer.submit(own_fact(data))
        outcome = came_of(request.command, before, self.state)
        return frames.CommandReply(True, f"{request.command} is recorded", seq, outcome)

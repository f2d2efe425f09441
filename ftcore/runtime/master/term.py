"""One term of a master: from the moment in which it has folded the log to the end of the job, or of its leadership.

Every part of its work is a task of its own; the first that ends, ends the term.
"""

import asyncio
import contextlib
import resource
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import structlog

from ftcore.engine.master import listens_to
from ftcore.engine.notice import job_rules
from ftcore.engine.turn import MASTER as OWN
from ftcore.engine.turn import own_fact
from ftcore.errors import Conflict, Fenced, FtcoreError
from ftcore.events.envelope import Event, EventId, Fact
from ftcore.events.job import JobSubmitted
from ftcore.events.master import MasterElected
from ftcore.events.operator import OperatorCommanded
from ftcore.events.policy import AlertRaised
from ftcore.faults.table import table
from ftcore.ids import Nanoseconds, Seq, seconds
from ftcore.platforms import open_platform
from ftcore.ports import EventLog, Host, Leadership, Platform
from ftcore.runtime import tasks
from ftcore.runtime.clock import SystemClock, at
from ftcore.runtime.host import HERE
from ftcore.runtime.master.admission import Admission
from ftcore.runtime.master.adviser import Adviser, Ask, ask
from ftcore.runtime.master.agents import Agents
from ftcore.runtime.master.alerts import ALERTS_S, Alerts, Send, send
from ftcore.runtime.master.contradictions import Contradictions
from ftcore.runtime.master.deadlines import Deadlines
from ftcore.runtime.master.follower import Follower
from ftcore.runtime.master.liveness import LOOK_S, Liveness
from ftcore.runtime.master.operators import Operators
from ftcore.runtime.master.replacer import Replacer
from ftcore.runtime.master.retention import LogRetention, RetentionConfig
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.wire import frames
from ftcore.states.model import Contradicted, JobState
from ftcore.states.phases import has_ended, has_left, has_run, is_assembling, is_running
from ftcore.states.revisions import NEWEST
from ftcore.timing import Timing
from ftcore.version import __version__

FOUND_S = 0.5
"""How often a master whom nodes have not found yet asks the store who leads, and how long that may take."""

SUCCESSOR_S = 0.3
"""How long a deposed master asks the store who leads; its agents wait for that."""

SPARE_DESCRIPTORS = 64
"""What a master needs beside one connection to each agent: the log store, operators, its own."""

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


class Term:
    """The work of a master that leads.

    Args:
        log: the job's log.
        follower: has folded it to its end.
        leadership: what was won.
        address: where the master serves.
        reachable: whether callers find that address.
        leading: whether this master leads.
        platform: URL of what launches nodes; empty: nothing does.
        timing: time constants for the time before the job's own are known.
        retention: how the log is kept small.
        parts: what else it stands on.

    Attributes:
        agents: their sessions.
        liveness: who is heard, and who trains.
        admission: who may take part.
        operators: answers operators.
    """

    def __init__(
        self,
        log: EventLog,
        follower: Follower,
        leadership: Leadership,
        address: str,
        *,
        reachable: Callable[[], bool],
        leading: Callable[[], bool],
        platform: str,
        timing: Timing,
        retention: RetentionConfig,
        parts: MasterParts,
    ) -> None:
        self._log, self._follower, self._leadership, self._address = log, follower, leadership, address
        self._reachable, self._host = reachable, parts.host
        self.clock = SystemClock(follower.state.time, follower.ahead, parts.host)
        self.sequencer = Sequencer(log, follower.state, leadership.term, self.clock, self._committed)
        self.agents = Agents(lambda: self.state)
        self.liveness = Liveness(self.agents, lambda: self.state, self.clock, self.record, timing)
        self.contradictions = Contradictions(log, lambda: self.state, self.record)
        self.admission = Admission(
            log.job,
            self.sequencer,
            self.clock,
            self.agents,
            self.liveness,
            self.contradictions,
            leading=leading,
            parked=self._called,
            learned_end=self._learned_end,
        )
        self.operators = Operators(log.job, lambda: self.state, leading, self.admission.durable, self.record)
        self.deadlines = Deadlines(self.sequencer, self.clock, lambda: self.liveness.timing.node_lease_s)
        self._alerts = Alerts(self.record, parts.send)
        self._adviser = Adviser(self.record, parts.ask)
        self._replacer = (
            Replacer(platform, log.job, self.record, lambda: self.state, parts.open_platform) if platform else None
        )
        self._retention = LogRetention(retention, leadership.term, self.record)
        self._last_called = self.clock.mono()
        self._lived = False
        self._prepared = False
        self.ended = asyncio.Event()

    @property
    def state(self) -> JobState:
        """The folded state; it may run ahead of the log while a commit is under way."""
        return self.sequencer.state

    def record(self, data: Any, holds: Callable[[], bool] = lambda: True) -> asyncio.Future[Seq]:
        """Record a fact of the master's own; see ``Sequencer.submit``."""
        return self.sequencer.submit(own_fact(data), holds)

    # -- life

    async def begin(self) -> None:
        """Find the end of the log; raises ``StoreError`` if it has lost what was read from it."""
        await self.contradictions.begin()
        self.agents.begin(self.state)
        self._adopt_timing()

    async def run(self) -> None:
        """Lead until the job has ended, the leadership is lost, or nobody calls any more."""
        self._lived = has_run(self.state)
        self._tell_elected()
        for event in self._follower.unsent.news(self.clock.now()):
            self._alerts.take(event, self.state.chain)
        logger.info("leading", job=self._log.job, term=self.sequencer.term, seq=self.state.seq)
        work = [
            self.sequencer.run(),
            self.deadlines.run(),
            self._look_after(),
            self._check_discoverable(),
            self._until_lost(),
            self._alerts.run(),
            self._until_ended(),
            self._retention.run(),
        ]
        if self._replacer is not None:
            work.append(self._replacer.run())
        duties = [asyncio.create_task(duty) for duty in work]
        try:
            done, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            for duty in duties:
                if duty in done:
                    with contextlib.suppress(Fenced, Conflict):
                        duty.result()
            if not self.ended.is_set():
                await self._say_who_leads()
        finally:
            await tasks.end(duties)
            await self._adviser.close()
            self._retention.close()
            if self._replacer is not None:
                await self._replacer.close()

    def _tell_elected(self) -> None:
        elected = MasterElected(
            host=self._host.name,
            pid=self._host.pid,
            address=self._address,
            version=__version__,
            decides=NEWEST,
            log_id="" if self.state.log_id else self._host.unique(),
        )
        durable = self.sequencer.submit(Fact(id=EventId(OWN, "", 0), data=elected, at=at(host=self._host)))
        if elected.log_id:
            durable.add_done_callback(lambda _: self.admission.identified.set())
        else:
            self.admission.identified.set()

    async def _until_lost(self) -> None:
        logger.warning("leadership lost", reason=await self._leadership.lost())

    async def _until_ended(self) -> None:
        """Wait for the end of the job, and until people are told, unless a new run begins meanwhile."""
        while True:
            await self.ended.wait()
            await self._alerts.flush(ALERTS_S)
            if has_ended(self.state) or not self.agents.sessions:
                return
            self.ended.clear()

    async def _say_who_leads(self) -> None:
        """Deposed: send every agent to the successor, if the store tells who that is; else to look for it at once."""
        leader = None
        with contextlib.suppress(FtcoreError, TimeoutError):
            async with asyncio.timeout(SUCCESSOR_S):
                leader = await self._log.leader()
        known = leader is not None and leader.alive and leader.candidate.address != self._address
        self.agents.tell(frames.NotMaster(leader.candidate.address if leader is not None and known else ""))

    def resigned(self) -> None:
        """This master does not lead any more: answer who waits, and end all streams."""
        self.admission.committed()
        self.agents.end()

    # -- what is durable

    def _committed(self, batch: Sequence[Event]) -> None:
        """A batch is durable: acknowledge its facts, send its orders. The state is exactly the log's now."""
        self.liveness.changed()
        self.contradictions.committed(batch)
        for event in batch:
            self._follower.unsent.feed(event)
            if isinstance(event.data, JobSubmitted):
                self._adopt_timing()
                self.admission.submitted()
                self._lived = True
            elif isinstance(event.data, AlertRaised):
                self._alerts.take(event, self.state.chain, end=has_ended(self.state))
        self.agents.committed(batch)
        self.operators.committed(batch)
        self.admission.committed()
        self._adviser.attend(self.state, self.clock.now())
        if self._replacer is not None:
            self._replacer.attend(self.state, self.clock.now())
        self._check_ended()
        self._prepare()
        self.deadlines.changed()
        self._retention.committed(self.state, self._follower.unsent.waiting)

    def _prepare(self) -> None:
        """Once workers run: compile the rules in a thread. It takes 0.13 s, for which the first fault would wait."""
        if not self._prepared and is_running(self.state):
            self._prepared = True
            asyncio.get_running_loop().run_in_executor(None, table, job_rules(self.state))

    def _check_ended(self) -> None:
        """End with the job, once that is durable: its last group is what the agents leave with."""
        if not self.sequencer.ahead and self._lived and has_left(self.state):
            self.ended.set()

    def _learned_end(self) -> None:
        """An agent called and learned how the run ended: then nothing else is to be led."""
        self._lived |= has_ended(self.state)
        self._check_ended()

    def _adopt_timing(self) -> None:
        spec = self.state.spec
        if spec is not None:
            self._check_descriptors(spec.nodes_max)
        self.liveness.adopt(spec.timing if spec is not None else self.liveness.timing)

    def _check_descriptors(self, nodes: int) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if nodes + SPARE_DESCRIPTORS > limit:
            logger.warning(
                "too few file descriptors: not every node can connect; raise the limit (`ulimit -n`, LimitNOFILE)",
                job=self._log.job,
                nodes=nodes,
                limit=limit,
            )

    # -- time

    async def _look_after(self) -> None:
        """Look at who is heard, who trains, and whether anybody still calls."""
        while True:
            await asyncio.sleep(LOOK_S)
            now = self.clock.mono()
            self.liveness.look(now, samples=not (self.sequencer.stalled or self._retention.shedding))
            self.admission.look(now)
            self.agents.give_signs_of_life(now, self.liveness.timing.sign_s)
            self.agents.look_at_standbys(now)
            if self.agents.sessions or self.admission.holds_back:
                self._last_called = now
            elif now - self._last_called > seconds(self._idle_s):
                self._end_unattended(now)

    def _end_unattended(self, now: Nanoseconds) -> None:
        """Nobody calls any more."""
        if self.state.run and is_assembling(self.state) and self.state.stop is None:
            why = f"no agent has called for {self._idle_s:g} s, and no round was formed"
            self.record(OperatorCommanded(command="stop", who="ftcore", why=why))
            self._last_called = now  # the run's end is written and told before this master ends, too
        else:
            logger.info("no agent calls; resigning", job=self._log.job)
            self.ended.set()

    @property
    def _idle_s(self) -> float:
        """How long nobody need call: over a run that has ended nobody is waited for who was only cut off."""
        timing, state = self.liveness.timing, self.state
        over = has_ended(state) and state.contradicted is not Contradicted.OPEN
        return timing.master_lease_s if over else timing.master_idle_s

    async def _check_discoverable(self) -> None:
        """While nodes are awaited, look for this master as they do; where that fails, they are not to blame."""
        while True:
            await asyncio.sleep(FOUND_S)
            if self.liveness.leases.awaited and not self._reachable():
                self.liveness.leases.excuse(self.clock.mono())
            elif self.liveness.leases.awaited:
                try:
                    async with asyncio.timeout(FOUND_S):
                        await self._log.leader()
                except (FtcoreError, TimeoutError):
                    self.liveness.leases.excuse(self.clock.mono())

    # -- what agents say

    def attach(self, session: Session) -> None:
        """An agent's stream begins."""
        self.heard(session)
        self.agents.attach(session, self.sequencer.term, lambda: self.contradictions.mark, ahead=self.sequencer.ahead)

    def heard(self, session: Session) -> None:
        """A frame came."""
        self._called()
        self.liveness.heard(session)

    def _called(self) -> None:
        self._last_called = self.clock.mono()

    def take_fact(self, session: Session, fact: Fact) -> None:
        """A fact came from an agent; it is acknowledged when it is durable.

        Only a node's newest stream is listened to: what is still under way on an older one comes again on this one, and
        a late fact of a life that is over would be taken for new. Whether its life is over is asked when its turn
        comes: while the log takes nothing, an agent that calls again hands on what its predecessor left once more.
        """
        if self.agents.sessions.get(session.node) is session:
            node, caller, life = session.node, session.incarnation, fact.id.incarnation
            self.sequencer.submit(fact, lambda: listens_to(self.state, node, caller, life))

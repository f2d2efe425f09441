"""One term of a master: from the folded log to the end of the job or of the leadership.

Each duty is a task; the first task that ends, ends the term.
"""

import asyncio
import contextlib
import resource
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import structlog

from ftcore.engine.master import accepts_facts_of
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
from ftcore.runtime.host import THIS_HOST
from ftcore.runtime.log_context import describe
from ftcore.runtime.master.admission import Admission
from ftcore.runtime.master.agents import Agents
from ftcore.runtime.master.alerts import ALERT_FLUSH_S, Alerts, Send, send
from ftcore.runtime.master.contradictions import Contradictions
from ftcore.runtime.master.deadlines import Deadlines
from ftcore.runtime.master.follower import Follower
from ftcore.runtime.master.liveness import CHECK_S, Liveness
from ftcore.runtime.master.norms_file import NormsFile
from ftcore.runtime.master.operator_commands import OperatorCommands
from ftcore.runtime.master.platform_client import PlatformClient
from ftcore.runtime.master.policy_runner import Ask, PolicyRunner, ask
from ftcore.runtime.master.retention import LogRetention, RetentionConfig
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.wire import frames
from ftcore.states.model import Contradicted, JobState
from ftcore.states.phases import has_ended, has_left, has_run, is_assembling, is_open, is_running
from ftcore.states.revisions import NEWEST
from ftcore.timing import Timing
from ftcore.version import __version__

DISCOVERY_S = 0.5
"""Interval and timeout of the check that nodes can discover this master, while nodes are awaited."""

SUCCESSOR_S = 0.3
"""How long a deposed master looks up its successor; its agents wait meanwhile."""

SPARE_DESCRIPTORS = 64
"""File descriptors that a master needs beside one per agent: log store, operators, its own files."""

logger = structlog.get_logger()


@attrs.frozen(kw_only=True)
class MasterParts:
    """Dependencies of a master beside its log and its transport; the simulator replaces them.

    Args:
        host: the master's machine.
        open_platform: opens the platform at a URL, for a job.
        send: sends an alert.
        ask: asks an external policy.
    """

    host: Host = THIS_HOST
    open_platform: Callable[[str, str], Platform] = open_platform
    send: Send = send
    ask: Ask = ask


class Term:
    """The work of a master that leads.

    Args:
        log: the job's log.
        follower: has folded the log to its end.
        leadership: the leadership won.
        address: the master's address.
        reachable: whether callers can find that address.
        leading: whether this master leads.
        platform: URL of the platform that launches nodes; empty: none.
        node_argv: command line of a node of the job, which the platform may start; empty: unknown.
        timing: time constants until those of the job are known.
        retention: configuration of the log's retention.
        parts: other dependencies.

    Attributes:
        agents: the agents' sessions.
        liveness: leases and training progress.
        admission: admits or refuses agents.
        operator_commands: answers operators' commands.
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
        node_argv: tuple[str, ...],
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
            on_parked=self._note_contact,
            on_release=self._agent_released,
        )
        self.operator_commands = OperatorCommands(
            log.job, lambda: self.state, leading, self.admission.durable, self.record
        )
        self.deadlines = Deadlines(
            self.sequencer, self.clock, lambda: self.liveness.timing.node_lease_s, trusted=follower.knows_clock
        )
        self._alerts = Alerts(self.record, parts.send)
        self._norms_file = NormsFile()
        self._policy_runner = PolicyRunner(self.record, parts.ask)
        self._platform_client = None
        if platform:
            self._platform_client = PlatformClient(
                platform, log.job, self.record, lambda: self.state, parts.open_platform, node_argv
            )
        self._retention = LogRetention(retention, leadership.term, self.record)
        self._last_contact = self.clock.mono()
        self._had_run = False
        self._rules_compiled = False
        self.ended = asyncio.Event()

    @property
    def state(self) -> JobState:
        """The folded state; it may be ahead of the log while a commit is in progress."""
        return self.sequencer.state

    def record(self, data: Any, holds: Callable[[], bool] = lambda: True) -> asyncio.Future[Seq]:
        """Submit a fact of the master itself; see ``Sequencer.submit``."""
        return self.sequencer.submit(own_fact(data), holds)

    # -- life

    async def begin(self) -> None:
        """Load the digest at the end of the log; raises ``StoreError`` as ``Contradictions.begin`` does."""
        await self.contradictions.begin()
        self.agents.begin(self.state)
        self._adopt_timing()

    async def run(self) -> None:
        """Lead until the job has ended, the leadership is lost, or no agent connects any more."""
        self._had_run = has_run(self.state)
        self._record_election()
        for event in self._follower.unsent.recent(self.clock.now()):
            self._alert(event)
        logger.info("leading", job=self._log.job, term=self.sequencer.term, seq=self.state.seq)
        work = [
            self.sequencer.run(),
            self.deadlines.run(),
            self._check_periodically(),
            self._check_discoverable(),
            self._watch_leadership(),
            self._alerts.run(),
            self._wait_for_end(),
            self._retention.run(),
        ]
        if self._platform_client is not None:
            work.append(self._platform_client.run())
        duties = [asyncio.create_task(duty) for duty in work]
        try:
            done, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            for duty in duties:
                if duty in done:
                    with contextlib.suppress(Fenced, Conflict):
                        duty.result()
            if not self.ended.is_set():
                await self._redirect_agents()
        finally:
            await tasks.end(duties)
            await self._policy_runner.close()
            await self._norms_file.close()
            self._retention.close()
            if self._platform_client is not None:
                await self._platform_client.close()

    def _record_election(self) -> None:
        elected = MasterElected(
            host=self._host.name,
            pid=self._host.pid,
            address=self._address,
            version=__version__,
            decides=NEWEST,
            log_id="" if self.state.log.identity else self._host.unique(),
        )
        durable = self.sequencer.submit(Fact(id=EventId(OWN, "", 0), data=elected, at=at(host=self._host)))
        if elected.log_id:
            durable.add_done_callback(lambda _: self.admission.identified.set())
        else:
            self.admission.identified.set()

    async def _watch_leadership(self) -> None:
        logger.warning("leadership lost", reason=await self._leadership.lost())

    async def _wait_for_end(self) -> None:
        """Wait for the end of the job and for unsent alerts, unless a new run begins meanwhile."""
        while True:
            await self.ended.wait()
            await self._alerts.flush(ALERT_FLUSH_S)
            if has_ended(self.state) or not self.agents.sessions:
                return
            self.ended.clear()

    async def _redirect_agents(self) -> None:
        """After losing the leadership: redirect every agent to the successor, or to look it up if it is unknown."""
        leader = None
        with contextlib.suppress(FtcoreError, TimeoutError):
            async with asyncio.timeout(SUCCESSOR_S):
                leader = await self._log.leader()
        known = leader is not None and leader.alive and leader.candidate.address != self._address
        self.agents.broadcast(frames.NotMaster(leader.candidate.address if leader is not None and known else ""))

    def resigned(self) -> None:
        """After the end of the leadership: answer waiting callers and end all streams."""
        self.admission.committed()
        self.agents.end()

    def _alert(self, event: Event, *, end: bool = False) -> None:
        """Queue an alert, with the first failure of its incident."""
        first = self._follower.first_failure(event.incident)
        self._alerts.enqueue(event, self.state.policy.chain, end=end, first=first)

    # -- durable batches

    def _committed(self, batch: Sequence[Event]) -> None:
        """Acknowledge the facts and send the orders of a durable batch; the state is exactly that of the log."""
        self.liveness.changed()
        self._describe()
        self.contradictions.committed(batch)
        self._follower.note_failures(batch, self.state)
        for event in batch:
            self._follower.unsent.feed(event)
            if isinstance(event.data, JobSubmitted):
                self._adopt_timing()
                self.admission.submitted()
                self._had_run = True
            elif isinstance(event.data, AlertRaised):
                self._alert(event, end=has_ended(self.state))
        self._norms_file.committed(batch, self.state)
        self.agents.committed(batch)
        self.operator_commands.committed(batch)
        self.admission.committed()
        self._policy_runner.reconcile(self.state, self.clock.now())
        if self._platform_client is not None:
            self._platform_client.reconcile(self.state, self.clock.now())
        self._check_ended()
        self._compile_rules()
        self.deadlines.changed()
        self._retention.committed(self.state, self._follower.unsent.waiting)

    def _describe(self) -> None:
        """Have log lines carry the newest round and the open incident."""
        world, incident = self.state.rounds.world, self.state.incident
        describe(
            round=world.round if world is not None else None,
            incident=incident.id if incident is not None and is_open(incident) else None,
        )

    def _compile_rules(self) -> None:
        """Compile the fault rules in a thread once workers run; the first fault would wait 0.13 s for it."""
        if not self._rules_compiled and is_running(self.state):
            self._rules_compiled = True
            asyncio.get_running_loop().run_in_executor(None, table, job_rules(self.state))

    def _check_ended(self) -> None:
        """End the term once the end of the job is durable: agents leave by an order of its last group."""
        if not self.sequencer.ahead and self._had_run and has_left(self.state):
            self.ended.set()

    def _agent_released(self) -> None:
        """End the term if the run has ended: an agent connected only to learn the result."""
        self._had_run |= has_ended(self.state)
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

    async def _check_periodically(self) -> None:
        """Run the periodic checks: leases, progress, refusals, keep-alives, standbys, idle time."""
        while True:
            await asyncio.sleep(CHECK_S)
            now = self.clock.mono()
            self.liveness.check(now, samples=not (self.sequencer.stalled or self._retention.shedding))
            self.admission.flush_refusals(now)
            self.agents.send_keepalives(now, self.liveness.timing.sign_s)
            self.agents.check_standbys(now)
            if self.agents.sessions or self.admission.has_waiting:
                self._last_contact = now
            elif now - self._last_contact > seconds(self._idle_s):
                self._end_unattended(now)

    def _end_unattended(self, now: Nanoseconds) -> None:
        """Stop a run that never formed a round, or resign: no agent connects any more."""
        if self.state.run and is_assembling(self.state) and self.state.requests.stop is None:
            why = f"no agent has connected for {self._idle_s:g} s, and no round was formed"
            self.record(OperatorCommanded(command="stop", who="ftcore", why=why))
            self._last_contact = now  # leaves time to record the end and to send its alert
        else:
            logger.info("no agent connects; resigning", job=self._log.job)
            self.ended.set()

    @property
    def _idle_s(self) -> float:
        """How long this master leads without any agent; shorter after the end of the run."""
        timing, state = self.liveness.timing, self.state
        over = has_ended(state) and state.log.contradicted is not Contradicted.OPEN
        return timing.master_lease_s if over else timing.master_idle_s

    async def _check_discoverable(self) -> None:
        """While nodes have no stream, look this master up as they do; extend their leases while the lookup fails."""
        while True:
            await asyncio.sleep(DISCOVERY_S)
            if not self._reachable():
                self.excuse_silence()
            elif self.liveness.awaits_streams:
                try:
                    async with asyncio.timeout(DISCOVERY_S):
                        await self._log.leader()
                except (FtcoreError, TimeoutError):
                    self.excuse_silence()

    def excuse_silence(self) -> None:
        """Extend the leases of all nodes that are not connected: they could not reach this master."""
        self.liveness.excuse_disconnected()

    # -- frames of agents

    def attach(self, session: Session) -> None:
        """Add a new stream of an agent."""
        self.heard(session)
        self.agents.attach(session, self.sequencer.term, lambda: self.contradictions.mark, ahead=self.sequencer.ahead)

    def heard(self, session: Session) -> None:
        """Renew the lease of a session's node: a frame arrived."""
        self._note_contact()
        self.liveness.heard(session)

    def _note_contact(self) -> None:
        self._last_contact = self.clock.mono()

    def take_fact(self, session: Session, fact: Fact) -> None:
        """Submit an agent's fact; it is acknowledged once durable.

        Facts from an older stream of the node are dropped: the agent repeats them on the newest one, and a late fact of
        an ended incarnation would look new. Whether the incarnation has ended is checked when the fact is sequenced:
        during an outage of the log, a restarted agent may send its predecessor's facts a second time.
        """
        if self.agents.sessions.get(session.node) is session:
            node, caller, life = session.node, session.incarnation, fact.id.incarnation
            self.sequencer.submit(fact, lambda: accepts_facts_of(self.state, node, caller, life))

"""A candidate for the master role: follows the log, campaigns, leads, and ends with the job.

Life: candidate (server up, folding the log) -> elected -> folding the rest -> leading -> deposed. The server answers
from the start, so that a standby can redirect agents to the leader. ``states/master.py`` has the state machine,
``term.py`` the work of a leader.
"""

import asyncio
import contextlib
from collections.abc import Callable

from ftcore.ports import Candidate, EventLog, Leadership, Transport
from ftcore.runtime import tasks
from ftcore.runtime.master.follower import Follower
from ftcore.runtime.master.operator_commands import NOT_LEADING
from ftcore.runtime.master.retention import RetentionConfig
from ftcore.runtime.master.service import Service
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.master.standbys import announce
from ftcore.runtime.master.term import MasterParts, Term
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.handshake import Rejection
from ftcore.runtime.wire.security import NONE, Security
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.states.master import MASTER, MasterPhase
from ftcore.states.model import JobState
from ftcore.timing import DEFAULT, Timing

__all__ = ["Master", "MasterParts"]

ADDRESS_S = 1.0
"""Interval at which a master checks that its socket still exists."""


class Master:
    """A candidate for the master role of one job.

    Args:
        log: the job's log; closed by the caller.
        listen: where to serve (``unix:/path``, or ``host:0`` for a free port).
        advertise: host name or address that others use, for TCP targets.
        security: credentials shown to callers and required from them.
        transport: serves and calls; None: gRPC.
        platform: URL of the platform that launches nodes; empty: none.
        node_argv: command line of a node of the job, which the platform may start; empty: unknown.
        timing: time constants until those of the job are known.
        standby: started beside a leader: ends when the run has ended. Otherwise the process may begin a new run of a
            log whose last run has ended.
        retention: limits the size of the log; None: snapshots only.
        parts: other dependencies.
        on_leading: called when this master begins to lead.

    Attributes:
        term: the work as leader; None: this process has never led.
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
        node_argv: tuple[str, ...] = (),
        timing: Timing = DEFAULT,
        standby: bool = False,
        retention: RetentionConfig | None = None,
        parts: MasterParts | None = None,
        on_leading: Callable[[], None] = lambda: None,
    ) -> None:
        self.log = log
        self._on_leading = on_leading
        self.phase: MasterPhase = MasterPhase.CANDIDATE
        self.term: Term | None = None
        self._parts = parts or MasterParts()
        self._platform, self._node_argv = platform, node_argv
        self._timing = timing
        self._security = security
        self._retention = retention if retention is not None else RetentionConfig(log=log)
        self._follower = Follower(log, saw_run=standby, host=self._parts.host)
        self._transport = transport or GrpcTransport(security)
        service = Service(self, self._transport, listen=listen, advertise=advertise, token=security.token)
        self._listener = service.listener

    @property
    def state(self) -> JobState:
        """The folded state; a leader's may be ahead of the log while a commit is in progress."""
        return self.term.state if self.term is not None else self._follower.state

    @property
    def leading(self) -> bool:
        """Whether this master accepts facts and sends orders."""
        return self.phase is MasterPhase.LEADING

    async def run(self, ready: Callable[[str], None] = lambda address: None) -> None:
        """Campaign and lead until the job has ended, the term is lost, or no agent connects any more.

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
            if self.term is not None:
                self.term.resigned()
            if leadership is not None:
                with contextlib.suppress(Exception):
                    await leadership.resign()
            await self._listener.stop()

    async def _keep_address(self) -> None:
        """Restore a removed socket. A standby does so too, because agents connect as soon as it leads."""
        while True:
            await asyncio.sleep(ADDRESS_S)
            reachable = self._listener.reachable
            await self._listener.restore()
            if not reachable and self.term is not None:
                self.term.excuse_silence()  # agents could not connect, whoever looked at the socket meanwhile

    def _step(self, trigger: str) -> None:
        following = MASTER.step(self.phase, trigger)
        assert following is not None, f"master in {self.phase}: {trigger}"
        self.phase = MasterPhase(following)

    async def _win(self, address: str) -> Leadership | None:
        """Follow and fold until the role is won; None if the job ended under another master.

        A candidate campaigns only after it has replayed the log, so that the winner can lead at once.
        """
        host = self._parts.host
        candidate = Candidate(host=host.name, pid=host.pid, address=address)
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

    async def _lead(self, leadership: Leadership, address: str) -> None:
        self._step("log.ended.at")
        await self._follower.finish()
        term = Term(
            self.log,
            self._follower,
            leadership,
            address,
            reachable=lambda: self._listener.reachable,
            leading=lambda: self.leading,
            platform=self._platform,
            node_argv=self._node_argv,
            timing=self._timing,
            retention=self._retention,
            parts=self._parts,
        )
        await term.begin()
        self.term = term
        self._step("folded")
        self._on_leading()
        if not self._follower.run_has_ended():  # the run can end during the failover
            await term.run()

    # -- called by the service

    def record_refusal(self, rejection: Rejection, peer: str) -> None:
        """Record a refused caller; only a leader does."""
        if self.term is not None and self.leading:
            self.term.admission.record_refusal(rejection, peer)

    async def greet(
        self, hello: frames.Hello, peer: str = ""
    ) -> frames.NotMaster | frames.JoinRefused | frames.Parked | None:
        """Why an agent is refused; None: it is admitted. A refused agent stops its workers."""
        if self.term is not None and self.leading:
            refused = await self.term.admission.greet(hello, peer)
            if refused is not None or self.leading:
                return refused
        # After the election do not redirect to the previous master: it may be frozen, and agents would wait in vain.
        known = self.state.master if self.phase is MasterPhase.CANDIDATE else None
        return frames.NotMaster(known.address if known is not None else "")

    def name_in_use(self, hello: frames.Hello) -> bool:
        """Whether another agent of that node name sent a frame recently."""
        return self.term is not None and self.leading and self.term.admission.name_in_use(hello)

    def attach(self, session: Session) -> Term:
        """Add a new stream: welcome the agent and repeat its unanswered orders. Returns the term that handles it."""
        assert self.term is not None
        self.term.attach(session)
        return self.term

    def register_standby(self, standby: frames.Standby) -> frames.Candidates:
        """Register a standby's address."""
        if self.term is None:
            return frames.Candidates(())
        if self.leading and (standby.job, standby.protocol) == (self.log.job, frames.PROTOCOL):
            self.term.agents.register_standby(standby.address, self.term.clock.mono())
        return self.term.agents.candidates

    def list_nodes(self, inquiry: frames.Inquiry) -> frames.NodesSeen:
        """The connected nodes and their last heartbeats, for an operator."""
        known = (inquiry.job, inquiry.protocol) == (self.log.job, frames.PROTOCOL)
        if self.term is None or not self.leading or not known:
            return frames.NodesSeen((), more=False, leading=False)
        term = self.term
        live = term.liveness
        return term.agents.list_nodes(inquiry.after, live.heard_s, term.sequencer.lag(), live.slow)

    async def command(self, request: frames.Command) -> frames.CommandReply:
        """Answer an operator's command."""
        if self.term is None:
            return frames.CommandReply(False, NOT_LEADING)
        return await self.term.operator_commands.command(request)

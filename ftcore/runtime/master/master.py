"""A process that wants the master role: it follows the log, campaigns, leads, and ends with the job.

Life: candidate (server up, folding along) -> elected -> folding the rest -> leading -> deposed. The server answers from
the start, so that agents who ask a standby are told who leads. See ``states/master.py`` for the machine, ``term.py``
for what a leader does.
"""

import asyncio
import contextlib
from collections.abc import Callable

from ftcore.events.envelope import Fact
from ftcore.ports import Candidate, EventLog, Leadership, Transport
from ftcore.runtime import tasks
from ftcore.runtime.master.follower import Follower
from ftcore.runtime.master.operators import NOT_LEADING
from ftcore.runtime.master.retention import RetentionConfig
from ftcore.runtime.master.service import Service
from ftcore.runtime.master.sessions import Session
from ftcore.runtime.master.standbys import announce
from ftcore.runtime.master.term import MasterParts, Term
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.opening import Turned
from ftcore.runtime.wire.security import NONE, Security
from ftcore.runtime.wire.transport import GrpcTransport
from ftcore.states.master import MASTER, MasterPhase
from ftcore.states.model import JobState
from ftcore.timing import DEFAULT, Timing

__all__ = ["Master", "MasterParts"]

ADDRESS_S = 0.5
"""How often a master looks whether callers still find its address."""


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
        retention: how the log is kept small; None: with snapshots alone.
        parts: what else it stands on.

    Attributes:
        term: its work as the leader; None: it never led.
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
        retention: RetentionConfig | None = None,
        parts: MasterParts | None = None,
    ) -> None:
        self.log = log
        self.phase: MasterPhase = MasterPhase.CANDIDATE
        self.term: Term | None = None
        self._parts = parts or MasterParts()
        self._platform = platform
        self._timing = timing
        self._security = security
        self._retention = retention if retention is not None else RetentionConfig(log=log)
        self._follower = Follower(log, saw_run=standby, host=self._parts.host)
        self._transport = transport or GrpcTransport(security)
        service = Service(self, self._transport, listen=listen, advertise=advertise, token=security.token)
        self._listener = service.listener

    @property
    def state(self) -> JobState:
        """The folded state; of a leader it may run ahead of the log while a commit is under way."""
        return self.term.state if self.term is not None else self._follower.state

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
            if self.term is not None:
                self.term.resigned()
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

    async def _win(self, address: str) -> Leadership | None:
        """Follow and fold until the role is won; None if the job ended under another master.

        Who has not yet folded what was there when it came does not campaign: the role goes to who can lead at once.
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
            timing=self._timing,
            retention=self._retention,
            parts=self._parts,
        )
        await term.begin()
        self.term = term
        self._step("folded")
        if not self._follower.run_has_ended():  # else it ended while the last master handed over
            await term.run()

    # -- what the service asks

    def turned_away(self, turned: Turned, peer: str) -> None:
        """A caller was not let in; it is recorded by who leads."""
        if self.term is not None and self.leading:
            self.term.admission.turned_away(turned, peer)

    async def greet(
        self, hello: frames.Hello, peer: str = ""
    ) -> frames.NotMaster | frames.Refused | frames.Parked | None:
        """Judge an agent's first word; None: it may take part. Who is refused stops its workers."""
        if self.term is not None and self.leading:
            refused = await self.term.admission.greet(hello, peer)
            if refused is not None or self.leading:
                return refused
        # Who has won the role knows of nobody else: its predecessor may be frozen, and would be waited for in vain.
        known = self.state.master if self.phase is MasterPhase.CANDIDATE else None
        return frames.NotMaster(known.address if known is not None else "")

    def occupied(self, hello: frames.Hello) -> bool:
        """Whether another agent of that name was heard a moment ago."""
        return self.term is not None and self.leading and self.term.admission.occupied(hello)

    def attach(self, session: Session) -> None:
        """An agent's stream begins: welcome it and repeat the orders that it has not answered."""
        assert self.term is not None
        self.term.attach(session)

    def detach(self, session: Session) -> None:
        """An agent's stream is over; its lease goes on."""
        assert self.term is not None
        self.term.agents.detach(session)

    def heard(self, session: Session) -> None:
        """A frame came."""
        assert self.term is not None
        self.term.heard(session)

    def beat(self, session: Session, beat: frames.Beat) -> None:
        """A heartbeat came."""
        assert self.term is not None
        self.term.liveness.beat(session, beat)

    def take_fact(self, session: Session, fact: Fact) -> None:
        """A fact came from an agent."""
        assert self.term is not None
        self.term.take_fact(session, fact)

    def stands_by(self, standby: frames.Standby) -> frames.Candidates:
        """A standby tells where it serves."""
        if self.term is None:
            return frames.Candidates(())
        if self.leading and (standby.job, standby.protocol) == (self.log.job, frames.PROTOCOL):
            self.term.agents.stands_by(standby.address, self.term.clock.mono())
        return self.term.agents.candidates

    def seen(self, inquiry: frames.Inquiry) -> frames.NodesSeen:
        """What the heartbeats tell, for an operator."""
        known = (inquiry.job, inquiry.protocol) == (self.log.job, frames.PROTOCOL)
        if self.term is None or not self.leading or not known:
            return frames.NodesSeen((), more=False, leading=False)
        return self.term.agents.seen(inquiry.after, self.term.liveness.heard_s)

    async def command(self, request: frames.Command) -> frames.CommandReply:
        """An operator's command."""
        if self.term is None:
            return frames.CommandReply(False, NOT_LEADING)
        return await self.term.operators.command(request)

"""Admits or refuses agents that connect, by their ``Hello``.

House rules: the reason of a refusal must be durable, because a refused agent stops its workers. So a refusal waits for
the commit in progress and is then judged again; while the log cannot be written, no agent is refused. No agent is
admitted before the log's identity is durable.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import structlog

from ftcore.engine.master import Refusal, is_known, refusal, takes_part, wants_run, wrong_job
from ftcore.engine.turn import MASTER as OWN
from ftcore.engine.turn import own_fact
from ftcore.events.job import JobSpec, JobSubmitted
from ftcore.ports import Clock
from ftcore.runtime.master.agents import Agents
from ftcore.runtime.master.contradictions import Contradictions
from ftcore.runtime.master.liveness import Liveness
from ftcore.runtime.master.refusals import Refusals
from ftcore.runtime.master.sequencer import Sequencer
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.handshake import Rejection, version_mismatch
from ftcore.version import __version__

T = TypeVar("T")

logger = structlog.get_logger()


class Admission:
    """Admits or refuses agents, for one term.

    Args:
        job: the job.
        sequencer: accepts the facts to record.
        clock: the master's clock.
        agents: the current sessions.
        liveness: when each session was last heard.
        contradictions: compares marks with the log.
        leading: whether this master leads.
        on_parked: called when an agent is told that the job is stuck; the agent will connect again.
        on_release: called when an agent is told how its run ended.

    Attributes:
        identified: set once the log's identity is durable.
    """

    def __init__(
        self,
        job: str,
        sequencer: Sequencer,
        clock: Clock,
        agents: Agents,
        liveness: Liveness,
        contradictions: Contradictions,
        *,
        leading: Callable[[], bool],
        on_parked: Callable[[], None],
        on_release: Callable[[], None],
    ) -> None:
        self._job = job
        self._sequencer = sequencer
        self._clock = clock
        self._agents = agents
        self._liveness = liveness
        self._contradictions = contradictions
        self._leading = leading
        self._on_parked = on_parked
        self._on_release = on_release
        self._refusals = Refusals(lambda refused: sequencer.submit(own_fact(refused)))
        self._submitting: JobSpec | None = None
        self._held: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self.identified = asyncio.Event()

    async def greet(self, hello: frames.Hello, peer: str) -> frames.JoinRefused | frames.Parked | None:
        """Judge an agent's ``Hello``.

        Args:
            hello: the frame.
            peer: the address of the agent's host.

        Returns:
            Why the agent is refused; None: it is admitted, or this master no longer leads.
        """
        await self.identified.wait()
        if not self._leading():
            return None
        if hello.protocol != frames.PROTOCOL or not frames.same_release(hello.version, __version__):
            mismatch = version_mismatch(hello.protocol, hello.version, hello.node)
            return self._refuse(mismatch.kind, mismatch.reason, hello, peer)
        if hello.job != self._job or hello.node == OWN:
            return self._refuse("job", f"this master leads {self._job}, not {hello.job}", hello, peer)
        contradicted = await self._contradictions.check(hello.node, hello.mark)
        if contradicted is not None:
            self._on_parked()
            return self._note_end(contradicted) if isinstance(contradicted, frames.JoinRefused) else contradicted
        found = await self.durable(lambda: self._judge(hello))
        if found is None:
            return None
        if not found.rejoin and found.release is None:
            return self._refuse(found.kind, found.reason, hello, peer)
        return self._note_end(frames.JoinRefused(found.reason, found.rejoin, found.release))

    def _note_end(self, answer: frames.JoinRefused) -> frames.JoinRefused:
        if not answer.rejoin:
            self._on_release()
        return answer

    def record_refusal(self, rejection: Rejection, peer: str) -> None:
        """Record a refused caller; repeated refusals are aggregated."""
        logger.info("caller refused", kind=rejection.kind, peer=peer, name=rejection.name)
        self._refusals.add(rejection, peer, self._clock.mono())

    def flush_refusals(self, now: int) -> None:
        """Record the refusals that are due.

        Args:
            now: monotonic nanoseconds.
        """
        self._refusals.flush(now)

    def _refuse(self, kind: str, reason: str, hello: frames.Hello, peer: str) -> frames.JoinRefused:
        self.record_refusal(Rejection(kind=kind, reason=reason, name=hello.node, version=hello.version), peer)
        return frames.JoinRefused(reason, rejoin=False)

    def _judge(self, hello: frames.Hello) -> Refusal | None:
        in_use, launch = self.name_in_use(hello), hello.submission.launch
        state = self._sequencer.state
        found = refusal(state, hello.node, hello.incarnation, hello.acked, in_use, hello.again, launch)
        if found is not None or is_known(state, hello.node, hello.incarnation):
            return found
        if self._submit_or_join(hello.submission):
            return None
        return wrong_job(self._job, hello.submission.spec, self._submitting or state.spec)

    def name_in_use(self, hello: frames.Hello) -> bool:
        """Whether another agent of that node name sent a frame recently."""
        session = self._agents.sessions.get(hello.node)
        if session is None or session.incarnation == hello.incarnation:
            return False
        member = takes_part(self._sequencer.state, session.node, session.incarnation)
        return member and self._liveness.heard_s(session) < 2 * self._liveness.timing.heartbeat_s

    # -- answers that wait for the log

    async def durable(self, judge: Callable[[], T | None]) -> T | None:
        """The reason of a refusal once it is durable; None: not refused, or this process no longer leads."""
        while self._leading():
            found = judge()
            if found is None or not self._sequencer.ahead:
                return found
            answer: asyncio.Future[T | None] = asyncio.get_running_loop().create_future()
            self._held[answer] = judge
            try:
                found = await answer
            finally:
                self._held.pop(answer, None)
            if found is not None:
                return found
        return None

    @property
    def has_waiting(self) -> bool:
        """Whether a caller waits for an answer."""
        return bool(self._held)

    def committed(self) -> None:
        """Answer the waiting callers: the state is that of the log, or this master no longer leads."""
        held, self._held = self._held, {}
        for answer, judge in held.items():
            if not answer.done():
                answer.set_result(judge() if self._leading() else None)

    # -- the run

    def _submit_or_join(self, submission: frames.Submission) -> bool:
        """Whether a new agent may join: its submission begins a run, or matches the live one."""
        if wants_run(self._sequencer.state):
            if self._submitting is None:
                self._submit(submission)
            wanted = self._submitting
        else:
            wanted = self._sequencer.state.spec
        return wanted is not None and wanted.admits(submission.spec)

    def _submit(self, submission: frames.Submission) -> None:
        submitted = JobSubmitted(
            job=self._job,
            run=self._sequencer.state.run + 1,
            spec=submission.spec,
            digest=submission.digest,
            command=submission.command,
            versions=submission.versions,
            user=submission.user,
            launch=submission.launch,
        )
        self._sequencer.submit(own_fact(submission.policy))  # the chain must be in force before the first decision
        self._sequencer.submit(own_fact(submitted))
        self._submitting = submission.spec

    def submitted(self) -> None:
        """Note that a run has begun."""
        self._submitting = None

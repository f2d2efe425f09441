"""Who may take part: judges the first word of an agent that calls.

House rules: what anybody is refused for must be durable, so while a commit is under way a refusal waits for the end of
it, and is judged once more; while the log cannot be written nobody is refused. An identity of the log that may never
become durable is not told. Who is refused stops its workers, so a doubt is no reason.
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
from ftcore.runtime.wire.opening import Turned, other_version
from ftcore.version import __version__

T = TypeVar("T")

logger = structlog.get_logger()


class Admission:
    """Judges callers, for one term.

    Args:
        job: the job.
        sequencer: takes what is to be recorded.
        clock: the master's.
        agents: the sessions that there are.
        liveness: who was heard lately.
        contradictions: compares marks with the log.
        leading: whether this master leads.
        parked: called when somebody is told that the job is stuck; it will call again.
        learned_end: called when an agent has learned how its run ended.

    Attributes:
        identified: the log's identity is durable.
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
        parked: Callable[[], None],
        learned_end: Callable[[], None],
    ) -> None:
        self._job = job
        self._sequencer = sequencer
        self._clock = clock
        self._agents = agents
        self._liveness = liveness
        self._contradictions = contradictions
        self._leading = leading
        self._parked = parked
        self._learned_end = learned_end
        self._refusals = Refusals(lambda refused: sequencer.submit(own_fact(refused)))
        self._submitting: JobSpec | None = None
        self._held: dict[asyncio.Future[Any], Callable[[], Any]] = {}
        self.identified = asyncio.Event()

    async def greet(self, hello: frames.Hello, peer: str) -> frames.Refused | frames.Parked | None:
        """Judge an agent's first word.

        Args:
            hello: the word.
            peer: who says it.

        Returns:
            Why it may not take part; None: it may, or this master does not lead any more.
        """
        await self.identified.wait()
        if not self._leading():
            return None
        if hello.protocol != frames.PROTOCOL or not frames.same_release(hello.version, __version__):
            turned = other_version(hello.protocol, hello.version, hello.node)
            return self._refuse(turned.kind, turned.reason, hello, peer)
        if hello.job != self._job or hello.node == OWN:
            return self._refuse("job", f"this master leads {self._job}, not {hello.job}", hello, peer)
        parted = await self._contradictions.answer(hello.node, hello.mark)
        if parted is not None:
            self._parked()
            return self._told_of_end(parted) if isinstance(parted, frames.Refused) else parted
        found = await self.durable(lambda: self._judge(hello))
        if found is None:
            return None
        if not found.rejoin and found.release is None:
            return self._refuse(found.kind, found.reason, hello, peer)
        return self._told_of_end(frames.Refused(found.reason, found.rejoin, found.release))

    def _told_of_end(self, answer: frames.Refused) -> frames.Refused:
        if not answer.rejoin:
            self._learned_end()
        return answer

    def turned_away(self, turned: Turned, peer: str) -> None:
        """A caller was not let in; it is recorded, bounded."""
        logger.info("a caller was turned away", kind=turned.kind, peer=peer, name=turned.name)
        self._refusals.add(turned, peer, self._clock.mono())

    def look(self, now: int) -> None:
        """Record what has waited long enough; ``now`` in monotonic nanoseconds."""
        self._refusals.look(now)

    def _refuse(self, kind: str, reason: str, hello: frames.Hello, peer: str) -> frames.Refused:
        self.turned_away(Turned(kind=kind, reason=reason, name=hello.node, version=hello.version), peer)
        return frames.Refused(reason, rejoin=False)

    def _judge(self, hello: frames.Hello) -> Refusal | None:
        occupied, launch = self.occupied(hello), hello.submission.launch
        state = self._sequencer.state
        found = refusal(state, hello.node, hello.incarnation, hello.acked, occupied, hello.again, launch)
        if found is not None or is_known(state, hello.node, hello.incarnation):
            return found
        if self._submit_or_join(hello.submission):
            return None
        return wrong_job(self._job, hello.submission.spec, self._submitting or state.spec)

    def occupied(self, hello: frames.Hello) -> bool:
        """Whether another agent of that name was heard a moment ago."""
        session = self._agents.sessions.get(hello.node)
        if session is None or session.incarnation == hello.incarnation:
            return False
        there = takes_part(self._sequencer.state, session.node, session.incarnation)
        return there and self._liveness.heard_s(session) < 2 * self._liveness.timing.heartbeat_s

    # -- what waits for the log

    async def durable(self, look: Callable[[], T | None]) -> T | None:
        """Why somebody is refused; None: they are not, or this process does not lead any more."""
        while self._leading():
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

    @property
    def holds_back(self) -> bool:
        """Somebody waits for an answer."""
        return bool(self._held)

    def committed(self) -> None:
        """The state is the log's, or this master does not lead any more: answer whose answer was held back."""
        held, self._held = self._held, {}
        for answer, look in held.items():
            if not answer.done():
                answer.set_result(look() if self._leading() else None)

    # -- the run

    def _submit_or_join(self, submission: frames.Submission) -> bool:
        """A newcomer: begin a run if none lives, else it must want the same job; whether it may take part."""
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
        self._sequencer.submit(own_fact(submission.policy))  # in force before anything can be decided
        self._sequencer.submit(own_fact(submitted))
        self._submitting = submission.spec

    def submitted(self) -> None:
        """A run has begun."""
        self._submitting = None

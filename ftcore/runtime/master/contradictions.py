"""Detects a log that was deleted or restored from an older copy: agents have seen events that it does not contain.

Every welcome, order and keep-alive carries the log's *mark*: its identity, its last durable event and the digest up to
there. An agent that connects to a master shows its newest mark. If the log contradicts it, workers of a world that this
log does not contain may run on that node. The job is then stuck: workers are left running, nothing is decided, and an
operator chooses how to continue.

House rule: a mark that cannot be checked (its event is archived, or the store does not answer) is accepted.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ftcore.commands import ReleaseNode
from ftcore.engine.master import DurableMark, contradiction
from ftcore.errors import StoreError, Unreachable
from ftcore.events.codec import chain, encode
from ftcore.events.envelope import Event
from ftcore.events.job import LogContradicted
from ftcore.ids import Seq
from ftcore.ports import AppendOnlyLog
from ftcore.runtime.wire import frames
from ftcore.states.model import Contradicted, JobState
from ftcore.states.phases import has_ended, has_run

STOPPED = 5
"""Exit code of a node whose job has ended in the log that the operator chose; the job can be started again."""

DIGESTS_MAX = 4096
"""Digests kept in memory: of the newest events, and of those in agents' marks."""


class Contradictions:
    """Compares agents' marks with one log.

    Args:
        log: the log.
        state: returns the folded state.
        record: submits a fact; the result can be awaited until the fact is durable.
    """

    def __init__(
        self, log: AppendOnlyLog, state: Callable[[], JobState], record: Callable[[Any], Awaitable[Any]]
    ) -> None:
        self._log = log
        self._state = state
        self._record = record
        self._last = Seq(0)
        self._digest = b""
        self._digests: OrderedDict[int, str] = OrderedDict()

    async def begin(self) -> None:
        """Load the digest at the end of the folded log.

        Raises:
            StoreError: the log no longer contains an event that was read from it.
        """
        self._last = Seq(self._state().seq)
        digest = await self._log.digest_at(self._last)
        if not digest:
            raise StoreError(
                f"job {self._log.job}: the log no longer contains event {self._last}, which this process has read: the "
                "log was restored from an older copy; this candidate ends, another one reads the log again"
            )
        self._digest = bytes.fromhex(digest)

    def committed(self, batch: Iterable[Event]) -> None:
        """Extend the digests by a durable batch."""
        for event in batch:
            self._last, self._digest = event.seq, chain(self._digest, encode(event))
            self._keep(event.seq, self._digest.hex())

    @property
    def mark(self) -> DurableMark:
        """The end of the durable log."""
        return DurableMark(self._state().log.identity, self._last, self._digest.hex())

    async def check(self, node: str, mark: DurableMark | None) -> frames.Parked | frames.JoinRefused | None:
        """The answer to an agent whose mark contradicts the log; None: no contradiction.

        Args:
            node: the agent's node.
            mark: the agent's newest mark; None: the agent has not joined a job yet.
        """
        state = self._state()
        if mark is None:
            # A new node can join a live run as a spare. Without one it would begin a run, which has to wait.
            if has_run(state) or state.log.contradicted is not Contradicted.OPEN:
                return None
            return frames.Parked(f"the log is contradicted. {ways_out(self._log.job, state)}")
        problem = contradiction(mark, self.mark, await self._digest_at(mark.seq))
        if not problem:
            return None
        state = self._state()
        if state.log.contradicted in (Contradicted.SETTLED, Contradicted.RESUMED):
            return _settled(state, problem)
        reason = f"{problem}. {ways_out(self._log.job, state)}"
        if state.log.contradicted is Contradicted.NEVER:
            await self._record(
                LogContradicted(node=node, log_id=mark.log_id, seq=mark.seq, digest=mark.digest, reason=reason)
            )
        return frames.Parked(reason)

    async def _digest_at(self, seq: int) -> str:
        found = self._digests.get(seq)
        if found is None and seq <= self._last:
            try:
                found = await self._log.digest_at(Seq(seq))
            except Unreachable:
                return ""
            self._keep(seq, found)
        return found or ""

    def _keep(self, seq: int, digest: str) -> None:
        self._digests[seq] = digest
        if len(self._digests) > DIGESTS_MAX:
            self._digests.popitem(last=False)


def _settled(state: JobState, problem: str) -> frames.JoinRefused:
    """The answer after an operator chose this log: the agent stops its workers and follows the log."""
    if not has_ended(state) or state.log.contradicted is Contradicted.RESUMED:
        return frames.JoinRefused(f"{problem}; the job goes on from this log", rejoin=True)
    reason = f"{problem}; in this log the job has {state.phase}: {state.reason()}"
    exit_code = state.ending.exit_code if state.ending is not None else 0
    release = ReleaseNode(outcome="stopped", exit_code=exit_code or STOPPED, reason=reason)
    return frames.JoinRefused(problem, rejoin=False, release=release)


def ways_out(job: str, state: JobState) -> str:
    """The operator's options for a job whose log is contradicted."""
    ended = has_ended(state)
    which = f", in which the job has {state.phase}" if ended else ""
    stop = "stop ftrun on each host" if ended else f"ftctl stop --job {job}"
    return (
        "Workers keep running and none are started. To keep the training since then, restore the newer log. To "
        f"continue from this log{which}: ftctl resume --job {job}; all workers are stopped and start from their last "
        f"checkpoint. To end the job: {stop}"
    )

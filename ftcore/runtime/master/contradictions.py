"""Agents that have seen events which the log does not hold: it was deleted, or restored from an older copy.

Every welcome, order and sign of life tells an agent the log's identity and how far it is durable, with the digest up to
there (its *mark*). An agent that calls a master shows its newest mark. Where the log contradicts it, workers of a world
that this log does not know may run on that node. So the job is stuck: workers are left as they are, nothing is decided,
and an operator says how to go on.

House rule: a mark that cannot be checked (its event was archived, the store does not answer) is believed.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from ftcore.commands import ReleaseNode
from ftcore.engine.master import Mark, contradiction
from ftcore.errors import StoreError, Unreachable
from ftcore.events.codec import chain, encode
from ftcore.events.envelope import Event
from ftcore.events.job import LogContradicted
from ftcore.ids import Seq
from ftcore.ports import EventLog
from ftcore.runtime.wire import frames
from ftcore.states.model import Contradicted, JobState
from ftcore.states.phases import has_ended, has_run

STOPPED = 5
"""Exit code of a node whose job ended in the log that was chosen: it can be started again."""

KNOWN_MAX = 4096
"""Digests that are kept: of the newest events, and of those that agents asked for."""


class Contradictions:
    """Compares agents' marks with one log.

    Args:
        log: the log.
        state: the folded state.
        record: submits a fact; what it returns is done once that is durable.
    """

    def __init__(self, log: EventLog, state: Callable[[], JobState], record: Callable[[Any], Awaitable[Any]]) -> None:
        self._log = log
        self._state = state
        self._record = record
        self._last = Seq(0)
        self._digest = b""
        self._known: OrderedDict[int, str] = OrderedDict()

    async def begin(self) -> None:
        """Find the end of the log, which must be where this process has folded it to.

        Raises:
            StoreError: the log has lost what was read from it.
        """
        self._last = Seq(self._state().seq)
        digest = await self._log.digest_at(self._last)
        if not digest:
            raise StoreError(
                f"job {self._log.job}: the log does not hold event {self._last} any more, which was read from it: it "
                "was restored from an older copy; another candidate reads it anew"
            )
        self._digest = bytes.fromhex(digest)

    def committed(self, batch: Iterable[Event]) -> None:
        """A batch is durable."""
        for event in batch:
            self._last, self._digest = event.seq, chain(self._digest, encode(event))
            self._keep(event.seq, self._digest.hex())

    @property
    def mark(self) -> Mark:
        """The end of the log, durable."""
        return Mark(self._state().log_id, self._last, self._digest.hex())

    async def answer(self, node: str, mark: Mark | None) -> frames.Parked | frames.Refused | None:
        """What an agent is told that cannot be let in; None: nothing contradicts the log.

        Args:
            node: its node.
            mark: its newest mark; None: it takes part in nothing yet.
        """
        state = self._state()
        if mark is None:
            # Without a run that lives there is nothing that a newcomer could stand by for, and none may begin.
            if has_run(state) or state.contradicted is not Contradicted.OPEN:
                return None
            return frames.Parked(f"the log is contradicted. {ways_out(self._log.job, state)}")
        what = contradiction(mark, self.mark, await self._digest_at(mark.seq))
        if not what:
            return None
        state = self._state()
        if state.contradicted in (Contradicted.SETTLED, Contradicted.RESUMED):
            return _settled(state, what)
        reason = f"{what}. {ways_out(self._log.job, state)}"
        if state.contradicted is Contradicted.NEVER:
            await self._record(
                LogContradicted(node=node, log_id=mark.log_id, seq=mark.seq, digest=mark.digest, reason=reason)
            )
        return frames.Parked(reason)

    async def _digest_at(self, seq: int) -> str:
        found = self._known.get(seq)
        if found is None and seq <= self._last:
            try:
                found = await self._log.digest_at(Seq(seq))
            except Unreachable:
                return ""
            self._keep(seq, found)
        return found or ""

    def _keep(self, seq: int, digest: str) -> None:
        self._known[seq] = digest
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)


def _settled(state: JobState, what: str) -> frames.Refused:
    """An operator chose this log: the agent stops its workers, and takes part in what the log says."""
    if not has_ended(state) or state.contradicted is Contradicted.RESUMED:
        return frames.Refused(f"{what}; the job goes on from this log", rejoin=True)
    reason = f"{what}; in this log the job has {state.phase}: {state.reason}"
    release = ReleaseNode(outcome="stopped", exit_code=state.exit_code or STOPPED, reason=reason)
    return frames.Refused(what, rejoin=False, release=release)


def ways_out(job: str, state: JobState) -> str:
    """What an operator can do with a job whose log is contradicted."""
    ended = has_ended(state)
    which = f", in which the job has {state.phase}" if ended else ""
    stop = "stop ftrun on each host" if ended else f"ftctl stop --job {job}"
    return (
        "Workers are left running and none are started. To keep what was trained since, restore the newer log. To go "
        f"on from this log{which}: ftctl resume --job {job}; all workers are stopped and start again from their last "
        f"checkpoint. To end the job: {stop}"
    )

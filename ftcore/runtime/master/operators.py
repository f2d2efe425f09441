"""What operators ask of a master that leads, and what they are told: nothing that is not durable.

``engine/operator_requests.py`` judges whether a request makes sense; the chain decides in the log what comes of it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import attrs

from ftcore.engine.operator_requests import RECORDED, Answer, came_of, judge
from ftcore.events.envelope import Event
from ftcore.events.operator import OperatorCommanded
from ftcore.ids import Seq
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.opening import other_version
from ftcore.states.model import JobState

NOT_LEADING = "this process does not lead the job; try again in a moment"


@attrs.define(eq=False)
class _Wish:
    """A command that is not answered yet.

    Args:
        data: what is to be recorded.
        held: whether the job was held before it.
        waiting: the wish that waited before it.
        outcome: what came of it, once it is durable.
    """

    data: OperatorCommanded
    held: bool
    waiting: str
    outcome: str = RECORDED


class Operators:
    """Answers operators.

    Args:
        job: the job's name.
        state: the folded state.
        leading: whether this master leads.
        durable: asks why somebody is refused until that is durable, or there is no reason any more.
        record: submits what is to be recorded.
    """

    def __init__(
        self,
        job: str,
        state: Callable[[], JobState],
        leading: Callable[[], bool],
        durable: Callable[[Callable[[], Answer | None]], Awaitable[Answer | None]],
        record: Callable[[Any], asyncio.Future[Seq]],
    ) -> None:
        self._job = job
        self._state = state
        self._leading = leading
        self._durable = durable
        self._record = record
        self._wishes: list[_Wish] = []

    async def command(self, request: frames.Command) -> frames.CommandReply:
        """Answer a command; one that is accepted is in the log then, behind all that it was judged by."""
        if not self._leading():
            return frames.CommandReply(False, NOT_LEADING)
        if request.protocol != frames.PROTOCOL:
            return frames.CommandReply(False, other_version(request.protocol, "", request.who).reason)
        if request.job != self._job:
            return frames.CommandReply(False, f"this master leads {self._job}, not {request.job}")
        answer = await self._durable(lambda: judge(self._state(), request.command, request.node))
        if answer is not None:
            return frames.CommandReply(answer.fulfilled, answer.reason, unknown=answer.unknown)
        if not self._leading():
            return frames.CommandReply(False, NOT_LEADING)
        data = OperatorCommanded(
            command=request.command,
            who=request.who,
            why=request.why,
            exit_code=request.exit_code,
            node=request.node,
        )
        state = self._state()
        wish = _Wish(data, state.held, state.request.command if state.request is not None else "")
        self._wishes.append(wish)
        try:
            seq = await self._record(data)
        finally:
            self._wishes.remove(wish)
        return frames.CommandReply(True, f"{request.command} is recorded", seq, wish.outcome)

    def committed(self, batch: Iterable[Event]) -> None:
        """A batch is durable, and the state is that of the log: what wishes in it did can be told."""
        landed = {id(event.data) for event in batch} if self._wishes else set()
        for wish in self._wishes:
            if id(wish.data) in landed:
                wish.outcome = came_of(wish.data.command, (wish.held, wish.waiting), self._state())

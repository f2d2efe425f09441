"""Answers operators' commands; an answer depends only on durable state.

``engine/operator_requests.py`` judges whether a command is applicable; the policy chain decides its effect.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import attrs

from ftcore.engine.operator_requests import NOTE, RECORDED, ImmediateAnswer, immediate_effect, judge, judge_note
from ftcore.events.envelope import Event
from ftcore.events.operator import OperatorCommanded, OperatorNoted
from ftcore.ids import Seq
from ftcore.runtime.wire import frames
from ftcore.runtime.wire.handshake import version_mismatch
from ftcore.states.model import JobState

NOT_LEADING = "this process does not lead the job; retry in a few seconds"


@attrs.define(eq=False)
class _Pending:
    """A command that is not durable yet.

    Args:
        data: the fact to record.
        held: whether the job was held before the command.
        waiting: the request that was pending before the command.
        outcome: the result of the command, once durable.
    """

    data: OperatorCommanded
    held: bool
    waiting: str
    outcome: str = RECORDED


class OperatorCommands:
    """Answers operators' commands.

    Args:
        job: the job's name.
        state: returns the folded state.
        leading: whether this master leads.
        durable: returns the reason of a refusal once it is durable; see ``Admission.durable``.
        record: submits a fact.
    """

    def __init__(
        self,
        job: str,
        state: Callable[[], JobState],
        leading: Callable[[], bool],
        durable: Callable[[Callable[[], ImmediateAnswer | None]], Awaitable[ImmediateAnswer | None]],
        record: Callable[[Any], asyncio.Future[Seq]],
    ) -> None:
        self._job = job
        self._state = state
        self._leading = leading
        self._durable = durable
        self._record = record
        self._pending: list[_Pending] = []

    async def command(self, request: frames.Command) -> frames.CommandReply:
        """Answer a command. An accepted command is in the log, after every event that it was judged by."""
        if not self._leading():
            return frames.CommandReply(False, NOT_LEADING)
        if request.protocol != frames.PROTOCOL:
            return frames.CommandReply(False, version_mismatch(request.protocol, "", request.who).reason)
        if request.job != self._job:
            return frames.CommandReply(False, f"this master leads {self._job}, not {request.job}")
        if request.command == NOTE:
            return await self._note(request.who, request.why)
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
        requests = self._state().requests
        pending = _Pending(data, requests.held, requests.pending.command if requests.pending is not None else "")
        self._pending.append(pending)
        try:
            seq = await self._record(data)
        finally:
            self._pending.remove(pending)
        return frames.CommandReply(True, f"{request.command} is recorded", seq, pending.outcome)

    async def _note(self, who: str, text: str) -> frames.CommandReply:
        """Record a note. It is not judged by the state, so nothing has to be durable before it."""
        if problem := judge_note(text):
            return frames.CommandReply(False, problem)
        seq = await self._record(OperatorNoted(who=who, text=text))
        return frames.CommandReply(True, "the note is recorded", seq)

    def committed(self, batch: Iterable[Event]) -> None:
        """Determine the outcome of the commands in a durable batch; the state is that of the log."""
        durable = {id(event.data) for event in batch} if self._pending else set()
        for pending in self._pending:
            if id(pending.data) in durable:
                pending.outcome = immediate_effect(pending.data.command, (pending.held, pending.waiting), self._state())

"""Runs external policies: carries out the orders that are addressed to ``@adviser``.

Every question gets its own process and process group, and a timeout slightly shorter than its order's. The result
becomes a fact: ``policy.answered``, or ``policy.faulted`` with a one-line error.

House rules: the master's event loop never waits for a policy. A new master asks each open question of its predecessor
again, once; no state is kept between questions. After the answer the whole process group is killed, so a policy leaves
no processes behind. A question about an outdated revision of an incident is cancelled at once: its answer would not
count, and the chain waits for it.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import structlog

from ftcore.commands import ADVISER, AskPolicy
from ftcore.events.policy import ChainEntry, PolicyAnswered, PolicyFaulted
from ftcore.policies.external import Question, Reply, invalid_answer, one_line
from ftcore.runtime import tasks
from ftcore.runtime.wire import without_secrets
from ftcore.states import timers
from ftcore.states.model import ActionState, JobState, to_json

MARGIN_S = 1.0
"""A policy times out this long before its order: its fact must be durable before the order's deadline is noticed."""

ANSWER_BYTES_MAX = 256 << 10
"""Limit of one answer; a plan that names every node of a large job fits."""

STDERR_BYTES_MAX = 2048
"""Tail of a policy's output that is kept for the error message."""

ARGV = (sys.executable, "-P", "-m", "ftcore.runtime.plugin_process", "ask")
"""The command that answers a question."""

Ask = Callable[[bytes], Coroutine[Any, Any, bytes]]

logger = structlog.get_logger()


async def ask(body: bytes, argv: tuple[str, ...] = ARGV) -> bytes:
    """Run a process with a question on stdin and return the line that it answers.

    Raises:
        OSError: the process cannot be started.
        ValueError: it gave no answer; the message says why.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=without_secrets(os.environ),
        start_new_session=True,
        limit=ANSWER_BYTES_MAX,
    )
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    stderr = bytearray()
    reading = asyncio.create_task(_read_stderr(process.stderr, stderr))
    try:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(body)
            await process.stdin.drain()
        try:
            line = await process.stdout.readline()
        except ValueError:
            raise ValueError(f"answered more than {ANSWER_BYTES_MAX} bytes") from None
        if not line.endswith(b"\n"):
            code = await process.wait()
            await asyncio.wait([reading], timeout=0.2)
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise ValueError(f"its process ended with {how} and no answer{_last_line(stderr)}")
        return line
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        await tasks.end([reading])
        await process.wait()


class PolicyRunner:
    """Runs external policies, for one term.

    Args:
        record: submits facts.
        ask: asks one question; see the function ``ask``.
    """

    def __init__(self, record: Callable[[Any], Any], ask: Ask = ask) -> None:
        self._record = record
        self._question = ask
        self._running: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[asyncio.Task[None], None] = {}

    def reconcile(self, state: JobState, now: int) -> None:
        """Ask pending questions, and cancel those that the state no longer has.

        Args:
            state: the folded state, exactly that of the log: an order must not be carried out before it is durable.
            now: nanoseconds of the event clock.
        """
        for effect in [effect for effect in self._running if effect not in state.orders.open]:
            self._drop(effect)
        for ordered in list(state.orders.open.values()):
            command = ordered.command
            if isinstance(command, AskPolicy) and ADVISER in ordered.waiting:
                self._ask_or_drop(command, ordered, state, now)

    def _ask_or_drop(self, command: AskPolicy, ordered: ActionState, state: JobState, now: int) -> None:
        effect, known = ordered.effect, state.incident
        if known is None or (known.id, known.revision) != (command.incident, command.revision):
            if self._drop(effect):
                self._record_fault(effect, command.policy, "the incident was revised; the question was cancelled")
        elif effect not in self._running:
            left_s = ((timers.due(state, timers.ActionTimer(effect)) or now) - now) / 1e9 - MARGIN_S
            entry = next((entry for entry in state.policy.chain if _is_asked(entry, command, known.fault.cls)), None)
            if entry is None:
                self._record_fault(effect, command.policy, "it is no longer in the chain")
                return
            question = Question(
                policy=command.policy,
                origin=entry.external,
                effect=effect,
                options=entry.options,
                job=msgspec.Raw(to_json(state)),
            )
            self._running[effect] = asyncio.create_task(self._answer(question, state, left_s))

    async def close(self) -> None:
        """Cancel all questions."""
        for effect in list(self._running):
            self._drop(effect)
        await tasks.end(self._ending)

    def _drop(self, effect: str) -> bool:
        """Cancel a question; returns whether it was still unanswered."""
        task = self._running.pop(effect, None)
        if task is None or task.done():
            return False
        self._ending[task] = None
        task.add_done_callback(lambda ended: self._ending.pop(ended, None))
        return task.cancel()

    def _record_fault(self, effect: str, policy: str, error: str) -> None:
        logger.warning("external policy failed", policy=policy, error=error)
        self._record(PolicyFaulted(effect=effect, policy=policy, error=error))

    async def _answer(self, question: Question, state: JobState, left_s: float) -> None:
        if left_s <= 0:
            return  # the order is about to time out
        try:
            async with asyncio.timeout(left_s):
                body = await self._question(msgspec.json.encode(question) + b"\n")
            answer = _read(body, question, state)
        except TimeoutError:
            self._record_fault(question.effect, question.policy, f"did not answer in {left_s:.1f} s")
        except (OSError, ValueError) as error:
            self._record_fault(question.effect, question.policy, one_line(str(error), 500))
        else:
            self._record(answer)


def _is_asked(entry: ChainEntry, command: AskPolicy, cls: str) -> bool:
    return entry.policy == command.policy and entry.external != "" and (not entry.faults or cls in entry.faults)


def _read(line: bytes, question: Question, state: JobState) -> PolicyAnswered:
    """Decode a policy's answer; raises ``ValueError`` if it is invalid or answers another question."""
    effect, policy = question.effect, question.policy
    try:
        reply = msgspec.json.decode(line, type=Reply)
    except msgspec.MsgspecError as error:
        raise ValueError(f"invalid answer: {error}") from error
    if reply.answered is None:
        raise ValueError(reply.faulted or "empty answer")
    if (reply.answered.effect, reply.answered.policy) != (effect, policy):
        raise ValueError("answered another question")
    problem = invalid_answer(reply.answered, state)
    if problem:
        raise ValueError(f"invalid answer: {problem}")
    return reply.answered


async def _read_stderr(stream: asyncio.StreamReader, tail: bytearray) -> None:
    while chunk := await stream.read(65536):
        tail += chunk
        del tail[:-STDERR_BYTES_MAX]


def _last_line(output: bytearray) -> str:
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()]
    return f"; its last line: {one_line(lines[-1])}" if lines else ""

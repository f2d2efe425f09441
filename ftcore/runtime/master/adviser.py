"""Asks policies that are not ftcore's own: carries out the orders that are addressed to ``@adviser``.

Every question gets a process of its own, with a process group of its own and a little less time than its order has.
Whatever happens there becomes a fact: ``policy.answered``, or ``policy.faulted`` with one line.

House rules: the master's loop never waits for a policy. A question that a new master inherits is asked again, by that
master, once; nothing is remembered between questions. The whole group is killed when the answer is there, so a policy
leaves nothing behind. A question about an incident that is no longer read as it was is dropped at once: its answer
would not count, and the chain waits for it.
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
from ftcore.policies.external import Question, Reply, misfit, one_line
from ftcore.runtime import tasks
from ftcore.runtime.wire import without_secrets
from ftcore.states import timers
from ftcore.states.model import ActionState, JobState, to_json

MARGIN_S = 1.0
"""So much before its order fails a policy is ended: the fact must be durable before the deadline is noticed."""

ANSWER_BYTES_MAX = 256 << 10
"""Of one answer; a plan that names every node of a large job fits."""

SAID_BYTES_MAX = 2048
"""Kept of what a policy prints, for the message if its process ends."""

ARGV = (sys.executable, "-P", "-m", "ftcore.runtime.advise", "ask")
"""The command that is given a question."""

Ask = Callable[[bytes], Coroutine[Any, Any, bytes]]

logger = structlog.get_logger()


async def ask(body: bytes, argv: tuple[str, ...] = ARGV) -> bytes:
    """The line that a process answers to a question.

    Raises:
        OSError: the process cannot be started.
        ValueError: it gave no answer; says why.
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
    said = bytearray()
    listening = asyncio.create_task(_listen(process.stderr, said))
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
            await asyncio.wait([listening], timeout=0.2)
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise ValueError(f"its process ended with {how} and no answer{_last_line(said)}")
        return line
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.stdin.close()
        await tasks.end([listening])
        await process.wait()


class Adviser:
    """Asks, for one term.

    Args:
        tell: takes the facts that come of it.
        ask: asks one question, as ``ask`` does.
    """

    def __init__(self, tell: Callable[[Any], Any], ask: Ask = ask) -> None:
        self._tell = tell
        self._question = ask
        self._asked: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[asyncio.Task[None], None] = {}

    def attend(self, state: JobState, now: int) -> None:
        """Ask what is to be asked, and drop what no longer is.

        Args:
            state: the folded state, exactly that of the log: an order must not be carried out before it is durable.
            now: nanoseconds of the clock that the events have.
        """
        for effect in [effect for effect in self._asked if effect not in state.actions]:
            self._drop(effect)
        for ordered in list(state.actions.values()):
            command = ordered.command
            if isinstance(command, AskPolicy) and ADVISER in ordered.waiting:
                self._see_to(command, ordered, state, now)

    def _see_to(self, command: AskPolicy, ordered: ActionState, state: JobState, now: int) -> None:
        effect, known = ordered.effect, state.incident
        if known is None or (known.id, known.revision) != (command.incident, command.revision):
            if self._drop(effect):
                self._say_fault(effect, command.policy, "the incident is read anew; it was told to stop thinking")
        elif effect not in self._asked:
            left_s = ((timers.due(state, timers.Action(effect)) or now) - now) / 1e9 - MARGIN_S
            entry = next((entry for entry in state.chain if _is_asked(entry, command, known.fault.cls)), None)
            if entry is None:
                self._say_fault(effect, command.policy, "it is no longer in the chain")
                return
            question = Question(
                policy=command.policy,
                origin=entry.external,
                effect=effect,
                options=entry.options,
                job=msgspec.Raw(to_json(state)),
            )
            self._asked[effect] = asyncio.create_task(self._answer(question, state, left_s))

    async def close(self) -> None:
        """End all questions."""
        for effect in list(self._asked):
            self._drop(effect)
        await tasks.end(self._ending)

    def _drop(self, effect: str) -> bool:
        """Forget a question; returns whether it was still being thought about."""
        task = self._asked.pop(effect, None)
        if task is None or task.done():
            return False
        self._ending[task] = None
        task.add_done_callback(lambda ended: self._ending.pop(ended, None))
        return task.cancel()

    def _say_fault(self, effect: str, policy: str, error: str) -> None:
        logger.warning("a policy gave no answer", policy=policy, error=error)
        self._tell(PolicyFaulted(effect=effect, policy=policy, error=error))

    async def _answer(self, question: Question, state: JobState, left_s: float) -> None:
        if left_s <= 0:
            return  # its order fails in a moment
        try:
            async with asyncio.timeout(left_s):
                body = await self._question(msgspec.json.encode(question) + b"\n")
            answer = _read(body, question, state)
        except TimeoutError:
            self._say_fault(question.effect, question.policy, f"did not answer in {left_s:.1f} s")
        except (OSError, ValueError) as error:
            self._say_fault(question.effect, question.policy, one_line(str(error), 500))
        else:
            self._tell(answer)


def _is_asked(entry: ChainEntry, command: AskPolicy, cls: str) -> bool:
    return entry.policy == command.policy and entry.external != "" and (not entry.faults or cls in entry.faults)


def _read(line: bytes, question: Question, state: JobState) -> PolicyAnswered:
    """What the policy said; raises ``ValueError`` if that is no answer to the question."""
    effect, policy = question.effect, question.policy
    try:
        reply = msgspec.json.decode(line, type=Reply)
    except msgspec.MsgspecError as error:
        raise ValueError(f"answered nonsense: {error}") from error
    if reply.answered is None:
        raise ValueError(reply.faulted or "answered nothing")
    if (reply.answered.effect, reply.answered.policy) != (effect, policy):
        raise ValueError("answered another question")
    problem = misfit(reply.answered, state)
    if problem:
        raise ValueError(f"answered nonsense: {problem}")
    return reply.answered


async def _listen(stream: asyncio.StreamReader, said: bytearray) -> None:
    while chunk := await stream.read(65536):
        said += chunk
        del said[:-SAID_BYTES_MAX]


def _last_line(said: bytearray) -> str:
    lines = [line for line in said.decode(errors="replace").splitlines() if line.strip()]
    return f"; it last said: {one_line(lines[-1])}" if lines else ""

"""Tells people: sends what ``alert.raised`` says, beside everything else the master does.

House rules: nothing waits for a message and nothing fails with one. Messages are sent one after the other, each by a
process of its own (``runtime/alert_child.py``) that is ended when it takes too long; what came of each is the fact
``alert.sent``. The queue has an end, and so has what is sent in a while, however many incidents there are: what is
beyond is left out, recorded as such, and counted in the next message; the word of the job's end is never left out, and
goes before those that wait. A new master sends what it finds unsent in the log, if it is not old news; what the log has
as sent is never sent again.
"""

import asyncio
import contextlib
import os
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import attrs
import msgspec
import structlog

from ftcore.events.envelope import Event
from ftcore.events.policy import AlertRaised, AlertSent, ChainEntry
from ftcore.ids import SECOND
from ftcore.policies.targets import targets
from ftcore.runtime import alert
from ftcore.runtime.wire import without_secrets
from ftcore.wording import plural

QUEUE_MAX = 32
"""Messages that wait."""

SENT_MAX, WINDOW_S = 20, 300.0
"""Messages sent in a while, over all incidents."""

NEWS_S = 900.0
"""What is older when a master begins to lead is not sent any more."""

PAUSE_S = 5.0
"""Before those targets that did not take a message are tried once more."""

ALERTS_S = 10.0
"""How long a master whose job has ended stays to tell people of it."""

logger = structlog.get_logger()

Send = Callable[[alert.Message], Coroutine[Any, Any, alert.Delivery]]


async def send(message: alert.Message) -> alert.Delivery:
    """Send a message by a process of its own.

    Args:
        message: what to send, and to whom.
    """
    argv = (sys.executable, "-P", "-m", "ftcore.runtime.alert_child", str(os.getpid()))
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    env = without_secrets(os.environ)
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=null, env=env, start_new_session=True
    )
    try:
        async with asyncio.timeout(alert.LIMIT_S):
            out, _ = await process.communicate(msgspec.json.encode(message))
        return msgspec.json.decode(out, type=alert.Delivery)
    except TimeoutError:
        return _all_failed(message, f"not sent in {alert.LIMIT_S:g} s")
    except msgspec.MsgspecError:
        return _all_failed(message, f"the process that sends it ended with code {process.returncode}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _all_failed(message: alert.Message, why: str) -> alert.Delivery:
    return alert.Delivery(failed=dict.fromkeys(range(len(message.to)), why))


@attrs.frozen
class _Waiting:
    seq: int
    data: AlertRaised
    to: tuple[str, ...]


class Alerts:
    """Sends alerts for one term.

    Args:
        tell: takes the facts that come of it; what it returns can be waited for until they are durable.
        send: sends one message.
        pause_s: seconds before what failed is tried once more.
    """

    def __init__(
        self, tell: Callable[[AlertSent], Awaitable[Any]], send: Send = send, pause_s: float = PAUSE_S
    ) -> None:
        self._tell = tell
        self._send = send
        self._pause_s = pause_s
        self._queue: deque[_Waiting] = deque()
        self._sent: deque[float] = deque(maxlen=SENT_MAX)
        self._left_out = 0
        self._mute = False
        self._told: Awaitable[Any] | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def take(self, event: Event, chain: tuple[ChainEntry, ...], *, end: bool = False) -> None:
        """Queue an ``alert.raised`` that is durable.

        Args:
            event: the event.
            chain: the chain in force, which says whom to tell.
            end: it tells of the end of the job.
        """
        assert isinstance(event.data, AlertRaised)
        to = targets(chain)
        if self._mute or not to:
            return
        now = asyncio.get_running_loop().time()
        if end:
            self._queue.insert(1, _Waiting(event.seq, event.data, to))  # the first one is under way
            self._idle.clear()
            self._wake.set()
        elif len(self._queue) >= QUEUE_MAX:
            self._leave_out(event.seq, f"{QUEUE_MAX} messages wait already")
        elif len(self._sent) == SENT_MAX and now - self._sent[0] < WINDOW_S:
            self._leave_out(event.seq, f"{SENT_MAX} messages were sent in the last {WINDOW_S:g} s")
        else:
            self._sent.append(now)
            self._queue.append(_Waiting(event.seq, event.data, to))
            self._idle.clear()
            self._wake.set()

    def _leave_out(self, seq: int, why: str) -> None:
        self._left_out += 1
        self._tell(AlertSent(alert=seq, ok=False, error=f"left out: {why}"))

    async def run(self) -> None:
        """Send what is queued, for as long as this master leads."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._deliver(self._queue[0])
                self._queue.popleft()
            self._idle.set()

    async def flush(self, timeout_s: float) -> None:
        """Wait until nothing is queued and what was told is durable, but no longer than so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
                if self._told is not None:
                    await self._told

    async def _deliver(self, waiting: _Waiting) -> None:
        data, text = waiting.data, waiting.data.text
        if self._mute:
            return
        if self._left_out:
            before = plural(self._left_out, "message before this one was", "messages before this one were")
            text += f"\n({before} left out)"
            self._left_out = 0
        message = alert.Message(to=waiting.to, title=data.title, text=text, severity=data.severity)
        try:
            errors = await self._try_twice(message)
        except Exception as error:  # whatever it is, it is no reason for a master to end
            logger.warning("an alert cannot be sent", error=type(error).__name__)
            errors = [f"{type(error).__name__} while sending"]
        self._told = self._tell(AlertSent(alert=waiting.seq, ok=not errors, error="; ".join(errors)[:1000]))

    async def _try_twice(self, message: alert.Message) -> list[str]:
        came = await self._send(message)
        if came.missing:
            self._mute = True  # said once
            return [alert.INSTALL]
        if came.failed:
            await asyncio.sleep(self._pause_s)
            again = msgspec.structs.replace(message, to=tuple(message.to[number] for number in came.failed))
            came = await self._send(again)
        return list(came.failed.values())


class Unsent:
    """What a log raised and has not as sent; fed by candidate and leader with every event."""

    def __init__(self) -> None:
        self._raised: dict[int, Event] = {}

    def feed(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event.data, AlertRaised):
            self._raised[event.seq] = event
            if len(self._raised) > QUEUE_MAX:
                del self._raised[next(iter(self._raised))]
        elif isinstance(event.data, AlertSent):
            self._raised.pop(event.data.alert, None)

    @property
    def waiting(self) -> tuple[Event, ...]:
        """All of it, oldest first."""
        return tuple(self._raised.values())

    def news(self, now: int) -> list[Event]:
        """What is still worth to be sent.

        Args:
            now: nanoseconds of the clock that the events have.
        """
        return [event for event in self._raised.values() if now - event.time < NEWS_S * SECOND]

"""Sends the alerts of ``alert.raised``, in the background.

House rules: no other work waits for an alert or fails with it. Alerts are sent one after the other, each by its own
process (``runtime/alert_child.py``) with a timeout; the result is recorded as ``alert.sent``. Queue length and rate are
limited: an alert beyond the limit is dropped, recorded as dropped, and counted in the next alert. The alert of the
job's end is never dropped and is sent before the others. A new master sends recent alerts without ``alert.sent``; an
alert with ``alert.sent`` is never sent again.
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
from ftcore.faults.failure_notes import FirstFailure
from ftcore.ids import SECOND
from ftcore.policies.targets import targets
from ftcore.redaction import redacted
from ftcore.runtime import alert
from ftcore.runtime.wire import without_secrets
from ftcore.wording import plural

QUEUE_MAX = 32
"""Limit of queued alerts."""

SENT_MAX, WINDOW_S = 20, 300.0
"""Limit of alerts per time window in seconds, over all incidents."""

MAX_AGE_S = 900.0
"""A new master does not send older alerts."""

RETRY_S = 5.0
"""Pause before the one retry of failed targets."""

ALERT_FLUSH_S = 10.0
"""How long a master waits for unsent alerts after its job has ended."""

logger = structlog.get_logger()

Send = Callable[[alert.Message], Coroutine[Any, Any, alert.Delivery]]


async def send(message: alert.Message) -> alert.Delivery:
    """Send a message in a separate process.

    Args:
        message: text and targets.
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
        return _all_failed(message, f"the sending process ended with exit code {process.returncode}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _all_failed(message: alert.Message, why: str) -> alert.Delivery:
    return alert.Delivery(failed=dict.fromkeys(range(len(message.to)), why))


@attrs.frozen
class _QueuedAlert:
    seq: int
    data: AlertRaised
    to: tuple[str, ...]
    first: FirstFailure | None


class Alerts:
    """Sends alerts for one term.

    Args:
        record: submits a fact; the result can be awaited until the fact is durable.
        send: sends one message.
        pause_s: seconds before the one retry of failed targets.
    """

    def __init__(
        self, record: Callable[[AlertSent], Awaitable[Any]], send: Send = send, pause_s: float = RETRY_S
    ) -> None:
        self._record = record
        self._send = send
        self._pause_s = pause_s
        self._queue: deque[_QueuedAlert] = deque()
        self._sent: deque[float] = deque(maxlen=SENT_MAX)
        self._dropped = 0
        self._disabled = False
        self._last_result: Awaitable[Any] | None = None
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def enqueue(
        self, event: Event, chain: tuple[ChainEntry, ...], *, end: bool = False, first: FirstFailure | None = None
    ) -> None:
        """Queue a durable ``alert.raised``.

        Args:
            event: the event.
            chain: the chain in force, which configures the targets.
            end: it is the alert of the job's end.
            first: the first failure of its incident.
        """
        assert isinstance(event.data, AlertRaised)
        to = targets(chain)
        if self._disabled or not to:
            return
        now = asyncio.get_running_loop().time()
        queued = _QueuedAlert(event.seq, event.data, to, first)
        if end:
            self._queue.insert(1, queued)  # the first one is being sent
            self._idle.clear()
            self._wake.set()
        elif len(self._queue) >= QUEUE_MAX:
            self._drop(event.seq, f"{QUEUE_MAX} messages are queued already")
        elif len(self._sent) == SENT_MAX and now - self._sent[0] < WINDOW_S:
            self._drop(event.seq, f"{SENT_MAX} messages were sent in the last {WINDOW_S:g} s")
        else:
            self._sent.append(now)
            self._queue.append(queued)
            self._idle.clear()
            self._wake.set()

    def _drop(self, seq: int, why: str) -> None:
        self._dropped += 1
        self._record(AlertSent(alert=seq, ok=False, error=f"dropped: {why}"))

    async def run(self) -> None:
        """Send queued alerts; never returns."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                await self._deliver(self._queue[0])
                self._queue.popleft()
            self._idle.set()

    async def flush(self, timeout_s: float) -> None:
        """Wait until the queue is empty and the results are durable, at most ``timeout_s`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
                if self._last_result is not None:
                    await self._last_result

    async def _deliver(self, waiting: _QueuedAlert) -> None:
        data, first = waiting.data, waiting.first
        text = _with_line(redacted(data.text), first.line if first is not None else "")
        if self._disabled:
            return
        if self._dropped:
            before = plural(self._dropped, "message before this one was", "messages before this one were")
            text += f"\n({before} dropped)"
            self._dropped = 0
        fields = first.fields if first is not None else None
        title = redacted(data.title)
        message = alert.Message(to=waiting.to, title=title, text=text, severity=data.severity, first_failure=fields)
        try:
            errors = await self._try_twice(message)
        except Exception as error:  # the master must survive any failure to send
            logger.warning("cannot send an alert", error=type(error).__name__)
            errors = [f"{type(error).__name__} while sending"]
        self._last_result = self._record(AlertSent(alert=waiting.seq, ok=not errors, error="; ".join(errors)[:1000]))

    async def _try_twice(self, message: alert.Message) -> list[str]:
        delivery = await self._send(message)
        if delivery.missing:
            self._disabled = True  # one error is enough
            return [alert.INSTALL]
        if delivery.failed:
            await asyncio.sleep(self._pause_s)
            retry = msgspec.structs.replace(message, to=tuple(message.to[number] for number in delivery.failed))
            delivery = await self._send(retry)
        return list(delivery.failed.values())


def _with_line(text: str, line: str) -> str:
    """The text with a line after its first one, which says what happened."""
    if not line:
        return text
    first, _, rest = text.partition("\n")
    return "\n".join(filter(None, (first, line, rest)))


class Unsent:
    """Alerts that were raised and not recorded as sent; candidate and leader feed it every event."""

    def __init__(self) -> None:
        self._raised: dict[int, Event] = {}

    def feed(self, event: Event) -> None:
        """Process the next event."""
        if isinstance(event.data, AlertRaised):
            self._raised[event.seq] = event
            if len(self._raised) > QUEUE_MAX:
                del self._raised[next(iter(self._raised))]
        elif isinstance(event.data, AlertSent):
            self._raised.pop(event.data.alert, None)

    @property
    def waiting(self) -> tuple[Event, ...]:
        """All unsent alerts, oldest first."""
        return tuple(self._raised.values())

    def recent(self, now: int) -> list[Event]:
        """The unsent alerts that are not too old to send.

        Args:
            now: nanoseconds of the event clock.
        """
        return [event for event in self._raised.values() if now - event.time < MAX_AGE_S * SECOND]

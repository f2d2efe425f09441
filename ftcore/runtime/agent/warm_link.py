"""The agent's side of the warm process: keeps one alive, keeps workers parked, hands them over.

The warm process is started at once (``warm_start``), so its imports overlap with joining the job. When it dies, a new
one is started; workers that it had forked are the agent's children and do not notice. One that does not get through its
imports is tried ``TRIES`` times for each launch, then the launch fails with what it printed.

Parked workers are forked ahead of their launch (``runtime.warm.child``), some time after the last launch so as not to
slow down what was just started. A launch that finds too few has the rest forked on demand.
"""

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ftcore.errors import UsageError
from ftcore.runtime.agent import processes, warm_start
from ftcore.runtime.agent.reaper import Reaper
from ftcore.runtime.warm import protocol
from ftcore.wording import plural

TRIES = 3
RETRY_S = 1.0
"""Between tries that fail while the warm process lives (no memory, too many processes)."""
REPARK_AFTER_S = 2.0
PARK_TIMEOUT_S = 10.0
"""A warm process that has not forked a worker by then (it takes milliseconds) is taken for stuck and made anew."""
STDERR_BYTES = 8192


@attrs.define
class Parked:
    """A worker process that waits for its launch; its own channel says so and will carry the launch."""

    pid: int
    channel: socket.socket


class _Died(Exception):
    """The warm process ended while something was asked of it."""


async def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Wait for one message on the agent's end of a channel; None: the peer is gone."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return protocol.receive(channel)
        except BlockingIOError:
            ready = loop.create_future()
            loop.add_reader(channel, _wake, ready)
            try:
                await ready
            finally:
                loop.remove_reader(channel)


class WarmLink:
    """Keeps a warm process alive until ``close``.

    Args:
        reaper: waits for it.
        env: the environment in which it imports, but for the tag.
        preload: the modules that it imports.
        spares: how many workers to keep parked.
        tag: of the agent.
        started: the first one, if it was started already.
    """

    def __init__(
        self,
        reaper: Reaper,
        env: Mapping[str, str],
        preload: Sequence[str],
        spares: int,
        tag: str,
        started: warm_start.Started | None = None,
    ) -> None:
        self._reaper = reaper
        self._env = env
        self._tag = tag
        self._preload = tuple(preload)
        self._spares = spares
        self._loop = asyncio.get_running_loop()
        self.asking = asyncio.Lock()
        """Held while something is being forked: its processes are nobody's until they said hello."""
        self._parked: list[Parked] = []
        self._channel: socket.socket | None = None
        self._errors = -1
        self._printed = bytearray()
        self._closed = False
        self._failed = 0
        self._ready: asyncio.Task[str] | None = None
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.pid = 0
        self._start(started)

    async def unsafe(self) -> str:
        """Why a fork of it would not equal a fresh start, or nothing. Raises ``UsageError`` if it cannot run."""
        for _ in range(TRIES):
            if self._ready is None:
                self._start()
            assert self._ready is not None
            try:
                return await asyncio.shield(self._ready)
            except _Died:
                continue
        raise UsageError(
            f"the warm process ended {TRIES} times while it imported {self._modules()}{self._last_words()}"
        )

    async def take(self, count: int) -> list[Parked]:
        """Parked workers, at least as old as their launch. Raises ``UsageError`` if they cannot be made."""
        for _ in range(TRIES):
            await self.unsafe()
            gone = self._gone
            self._reaper.drain()  # a parked worker that was killed just now is not to be taken
            with contextlib.suppress(_Died, OSError):
                async with self.asking:
                    await self._fork(count - len(self._parked))
            if len(self._parked) >= count:
                taken, self._parked = self._parked[:count], self._parked[count:]
                self._spares = count
                self._schedule_parking()
                return taken
            await asyncio.wait({gone}, timeout=RETRY_S)
        raise UsageError(f"{plural(count, 'worker')} could not be forked in {TRIES} tries{self._last_words()}")

    async def store_host(self) -> Parked:
        """A new store host. Raises ``UsageError`` if it cannot be made."""
        for _ in range(TRIES):
            await self.unsafe()
            gone = self._gone
            try:
                async with self.asking:
                    made = await self._ask(1, {"store": 1}, "serving")
            except (_Died, OSError):
                made = []
            if made:
                return made[0]
            await asyncio.wait({gone}, timeout=RETRY_S)
        raise UsageError(f"the store host could not be forked in {TRIES} tries{self._last_words()}")

    def close(self) -> None:
        """End it and the workers that are parked."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self._ready is not None:
            self._ready.cancel()
        for parked in self._parked:
            parked.channel.close()
            processes.kill(parked.pid, signal.SIGKILL)
        self._parked.clear()
        self._lost()
        processes.kill(self.pid, signal.SIGKILL)

    # The process itself

    def _start(self, started: warm_start.Started | None = None) -> None:
        if started is None:
            started = warm_start.start(self._env, self._preload, self._tag)
        self._printed.clear()
        self.pid, self._channel, self._errors = started.pid, started.channel, started.errors
        self._loop.add_reader(self._errors, self._read_errors, self._errors)
        self._gone = self._loop.create_future()
        self._reaper.watch(started.pid, lambda _code, _mono: self._ended(started.pid), started.since)
        self._ready = self._loop.create_task(self._await_ready(started.channel, self._gone))
        self._ready.add_done_callback(_consume)

    async def _await_ready(self, channel: socket.socket, gone: asyncio.Future[None]) -> str:
        message, _ = await receive(channel)
        if message is None:
            await gone
            raise _Died
        if "missing" in message:
            self._read_errors(self._errors)
            raise UsageError(f"{message['missing']}; mend the module, or change --preload{self._last_words()}")
        self._failed = 0
        self._park_soon()
        return str(message["unsafe"])

    def _ended(self, pid: int) -> None:
        if self._closed or pid != self.pid:
            return
        self._read_errors(self._errors)
        done = self._ready is not None and self._ready.done()
        error = self._ready.exception() if done and self._ready is not None else None
        imported = done and error is None
        self._lost()
        if isinstance(error, UsageError):
            return  # trying again would not mend it; whoever asks is told
        self._ready = None
        self._failed += 1
        if imported or self._failed < TRIES:
            self._start()

    def _lost(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            if self._ready is None or self._ready.done():
                channel.close()
            else:  # it still waits for the channel, which by now says end of file
                self._ready.add_done_callback(lambda _: channel.close())
        if not self._gone.done():
            self._gone.set_result(None)
        if self._errors >= 0:
            self._loop.remove_reader(self._errors)
            os.close(self._errors)
            self._errors = -1

    def _read_errors(self, fd: int) -> None:
        try:
            data = os.read(fd, 65536)
        except OSError:
            return
        if not data:
            self._loop.remove_reader(fd)
        self._printed += data
        del self._printed[:-STDERR_BYTES]

    def _modules(self) -> str:
        return ", ".join(self._preload) or "nothing"

    def _last_words(self) -> str:
        text = self._printed.decode(errors="replace").strip()
        return f"; it printed:\n{text}" if text else ""

    # Parked workers

    def _schedule_parking(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(REPARK_AFTER_S, self._park_soon)

    def _park_soon(self) -> None:
        task = self._loop.create_task(self._park())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _park(self) -> None:
        async with self.asking:
            # the next launch tries again, and says so if it fails
            with contextlib.suppress(_Died, OSError):
                await self._fork(self._spares - len(self._parked))

    async def _fork(self, count: int) -> None:
        while count > 0:
            chunk = min(count, protocol.FDS_MAX)
            self._parked += await self._ask(chunk, {"fork": chunk}, "parked")
            count -= chunk

    async def _ask(self, count: int, request: dict[str, Any], hello: str) -> list[Parked]:
        """Have ``count`` processes forked; those that said hello."""
        channel = self._channel
        if channel is None:
            raise _Died
        since = time.monotonic_ns()
        pairs = [protocol.pair() for _ in range(count)]
        try:
            protocol.send(channel, request, [theirs.fileno() for _, theirs in pairs])
            for _, theirs in pairs:
                theirs.close()
            made = await asyncio.gather(*(self._greeted(ours, hello, since) for ours, _ in pairs))
        except BaseException:
            for ends in pairs:  # those that wait at the other end of one read its end of file, and exit
                for end in ends:
                    end.close()
            raise
        return [parked for parked in made if parked is not None]

    async def _greeted(self, channel: socket.socket, hello: str, since: int) -> Parked | None:
        try:
            async with asyncio.timeout(PARK_TIMEOUT_S):
                message, _ = await receive(channel)
        except BaseException as error:
            channel.close()
            if isinstance(error, TimeoutError):
                processes.kill(self.pid, signal.SIGKILL)
                return None
            raise
        if message is None or hello not in message:
            channel.close()
            return None
        parked = Parked(int(message[hello]), channel)
        if hello == "parked":
            self._reaper.watch(parked.pid, lambda _code, _mono: self._forget(parked), since)
        return parked

    def _forget(self, parked: Parked) -> None:
        if parked in self._parked:
            self._parked.remove(parked)
            parked.channel.close()
            self._schedule_parking()


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _consume(task: asyncio.Task[str]) -> None:
    """Take note of the result, so that a failure that nobody waited for is not reported as lost."""
    if not task.cancelled():
        task.exception()

"""The agent's side of the warm process: keeps one alive and provides parked workers.

The warm process is started at once (``warm_start``), so that its imports overlap with joining the job. When it dies, a
new one is started; existing workers are the agent's children and are not affected. If its imports fail, they are tried
``TRIES`` times per launch; then the launch fails with the output of the warm process.

ParkedWorker workers are forked before their launch (``runtime.warm.child``), some time after the last launch, to avoid
slowing down workers that just started. A launch forks missing workers on demand.
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
from ftcore.runtime.agent.workers import processes, warm_start
from ftcore.runtime.agent.workers.reaper import Reaper
from ftcore.runtime.warm import protocol
from ftcore.wording import plural

TRIES = 3
RETRY_S = 1.0
"""Pause between failed tries while the warm process is alive (no memory, too many processes)."""
REPARK_AFTER_S = 2.0
PARK_TIMEOUT_S = 10.0
"""A warm process that takes longer to fork a worker (normally milliseconds) is stuck and is restarted."""
STDERR_BYTES = 8192


@attrs.define
class ParkedWorker:
    """A worker process that waits for its launch on its own channel."""

    pid: int
    channel: socket.socket


class _Died(Exception):
    """The warm process ended during a request."""


async def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Wait for one message on the agent's end of a channel; None: the peer has ended."""
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
        reaper: waits for the warm process.
        env: its environment, without the tag.
        preload: the modules that it imports.
        spares: number of workers to keep parked.
        tag: the agent's tag.
        started: a warm process that was started already.
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
        """Held during a fork: its processes are not watched until they send their first message."""
        self._parked: list[ParkedWorker] = []
        self._channel: socket.socket | None = None
        self._errors = -1
        self._printed = bytearray()
        self._closed = False
        self._failed = 0
        self._ready: asyncio.Task[str] | None = None
        self._died: asyncio.Future[None] = self._loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.pid = 0
        self._start(started)

    async def unsafe(self) -> str:
        """Why a fork would differ from a fresh start; empty: it does not. Raises ``UsageError`` if it cannot run."""
        for _ in range(TRIES):
            if self._ready is None:
                self._start()
            assert self._ready is not None
            try:
                return await asyncio.shield(self._ready)
            except _Died:
                continue
        raise UsageError(f"the warm process ended {TRIES} times while it imported {self._modules()}{self._output()}")

    async def take(self, count: int) -> list[ParkedWorker]:
        """Take parked workers, forking missing ones. Raises ``UsageError`` if they cannot be forked."""
        for _ in range(TRIES):
            await self.unsafe()
            died = self._died
            self._reaper.drain()  # do not take a parked worker that was just killed
            with contextlib.suppress(_Died, OSError):
                async with self.asking:
                    await self._fork(count - len(self._parked))
            if len(self._parked) >= count:
                taken, self._parked = self._parked[:count], self._parked[count:]
                self._spares = count
                self._schedule_parking()
                return taken
            await asyncio.wait({died}, timeout=RETRY_S)
        raise UsageError(f"{plural(count, 'worker')} could not be forked in {TRIES} tries{self._output()}")

    async def store_host(self) -> ParkedWorker:
        """Fork a store host. Raises ``UsageError`` if it cannot be forked."""
        for _ in range(TRIES):
            await self.unsafe()
            died = self._died
            try:
                async with self.asking:
                    made = await self._ask(1, {"store": 1}, "serving")
            except (_Died, OSError):
                made = []
            if made:
                return made[0]
            await asyncio.wait({died}, timeout=RETRY_S)
        raise UsageError(f"the store host could not be forked in {TRIES} tries{self._output()}")

    def close(self) -> None:
        """End the warm process and the parked workers."""
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
        self._release()
        processes.kill(self.pid, signal.SIGKILL)

    # The process itself

    def _start(self, started: warm_start.Started | None = None) -> None:
        if started is None:
            started = warm_start.start(self._env, self._preload, self._tag)
        self._printed.clear()
        self.pid, self._channel, self._errors = started.pid, started.channel, started.errors
        self._loop.add_reader(self._errors, self._read_errors, self._errors)
        self._died = self._loop.create_future()
        self._reaper.watch(started.pid, lambda _code, _mono: self._ended(started.pid), started.since)
        self._ready = self._loop.create_task(self._await_ready(started.channel, self._died))
        self._ready.add_done_callback(_consume)

    async def _await_ready(self, channel: socket.socket, died: asyncio.Future[None]) -> str:
        message, _ = await receive(channel)
        if message is None:
            await died
            raise _Died
        if "missing" in message:
            self._read_errors(self._errors)
            raise UsageError(f"{message['missing']}; fix the module, or change --preload{self._output()}")
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
        self._release()
        if isinstance(error, UsageError):
            return  # a retry would fail again; the next caller gets the error
        self._ready = None
        self._failed += 1
        if imported or self._failed < TRIES:
            self._start()

    def _release(self) -> None:
        if self._channel is not None:
            channel, self._channel = self._channel, None
            if self._ready is None or self._ready.done():
                channel.close()
            else:  # the task still waits for the channel, which is at end of file now
                self._ready.add_done_callback(lambda _: channel.close())
        if not self._died.done():
            self._died.set_result(None)
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

    def _output(self) -> str:
        text = self._printed.decode(errors="replace").strip()
        return f"; it printed:\n{text}" if text else ""

    # ParkedWorker workers

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
            # the next launch retries and reports a failure
            with contextlib.suppress(_Died, OSError):
                await self._fork(self._spares - len(self._parked))

    async def _fork(self, count: int) -> None:
        while count > 0:
            chunk = min(count, protocol.FDS_MAX)
            self._parked += await self._ask(chunk, {"fork": chunk}, "parked")
            count -= chunk

    async def _ask(self, count: int, request: dict[str, Any], hello: str) -> list[ParkedWorker]:
        """Have ``count`` processes forked; returns those that sent their first message."""
        channel = self._channel
        if channel is None:
            raise _Died
        since = time.monotonic_ns()
        pairs = [protocol.pair() for _ in range(count)]
        try:
            protocol.send(channel, request, [theirs.fileno() for _, theirs in pairs])
            for _, theirs in pairs:
                theirs.close()
            made = await asyncio.gather(*(self._await_hello(ours, hello, since) for ours, _ in pairs))
        except BaseException:
            for ends in pairs:  # processes at the other end read the end of file and exit
                for end in ends:
                    end.close()
            raise
        return [parked for parked in made if parked is not None]

    async def _await_hello(self, channel: socket.socket, hello: str, since: int) -> ParkedWorker | None:
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
        parked = ParkedWorker(int(message[hello]), channel)
        if hello == "parked":
            self._reaper.watch(parked.pid, lambda _code, _mono: self._forget(parked), since)
        return parked

    def _forget(self, parked: ParkedWorker) -> None:
        if parked in self._parked:
            self._parked.remove(parked)
            parked.channel.close()
            self._schedule_parking()


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


def _consume(task: asyncio.Task[str]) -> None:
    """Retrieve the result, so that asyncio does not log an exception as never retrieved."""
    if not task.cancelled():
        task.exception()

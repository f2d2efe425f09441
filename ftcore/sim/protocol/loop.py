"""An event loop in virtual time: that of one simulated process.

asyncio's own tasks, futures, events, queues and timeouts run on it as they are. It is turned by the simulation's clock,
and not at all while its process is frozen; of a process that was killed nothing runs any more, not even what stands
behind ``finally``. What is handed to a thread is done after a while of virtual time.

It is ours, in place of a package such as looptime: that one puts a selector's loop on a clock of its own, one for the
whole program; here every process has a loop that is frozen and killed by itself, and all of them share one clock.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from ftcore.sim.protocol.clock import Scheduler, ns

TURN_MAX = 100_000
"""Callbacks that one process may run at one instant; more is a wheel that does not come to rest."""


class Restless(Exception):
    """A process never comes to rest at an instant."""


class _Callback(asyncio.TimerHandle):
    """A callback that waits for its turn, or for its time."""

    __slots__ = ()

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: "VirtualLoop",
        context: contextvars.Context | None,
    ) -> None:
        # That of the base class asks the loop for its debug mode, each time.
        self._when, self._callback, self._args, self._loop = when, callback, args, loop
        self._context = context if context is not None else contextvars.copy_context()
        self._cancelled = self._scheduled = False
        self._repr = self._source_traceback = None

    def cancel(self) -> None:
        """It will not be called."""
        self._cancelled = True

    def ring(self) -> None:
        """Its time has come."""
        if not self._cancelled:
            self._loop.ready(self)


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process.

    Args:
        clock: virtual time.
        offset: nanoseconds by which the host's monotonic clock is ahead of it.
        stall: says how many nanoseconds a thread takes for a piece of work.
        crashed: told of an exception that nobody took.
    """

    def __init__(
        self, clock: Scheduler, offset: int, stall: Callable[[], int], crashed: Callable[[str, BaseException], None]
    ) -> None:
        self._clock = clock
        self._offset = offset
        self._stall = stall
        self._crashed = crashed
        self._ready: deque[_Callback] = deque()
        self._turns = False
        self._killed = False
        self._frozen = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fuse: tuple[int, Callable[[], object]] | None = None

    # -- what befalls the process

    def freeze(self) -> None:
        """Run nothing until ``thaw``."""
        self._frozen = True

    def thaw(self) -> None:
        """Run what came meanwhile."""
        self._frozen = False
        self._turn_soon()

    def kill(self) -> None:
        """Run nothing any more."""
        self._killed = True
        self._ready.clear()
        self._fuse = None

    def after_callbacks(self, count: int, work: Callable[[], object]) -> None:
        """Have something befall the process between two callbacks: behind so many of them."""
        self._fuse = (count, work)

    def dispose(self) -> None:
        """End the tasks of a process that was killed without a word; only when nothing is simulated any more."""
        tasks, self._tasks = self._tasks, set()
        for task in tasks:
            try:
                coroutine = task.get_coro()
                assert isinstance(coroutine, Coroutine)
                coroutine.close()
            except (RuntimeError, ValueError):
                pass  # it waits for something behind a `finally`

    # -- being turned

    def _turn_soon(self) -> None:
        if self._ready and not (self._turns or self._frozen or self._killed):
            self._turns = True
            self._clock.after(0, self._turn)

    def _turn(self) -> None:
        ready, count = self._ready, 0
        self._turns = True
        asyncio._set_running_loop(self)
        try:
            while ready and not (self._frozen or self._killed):
                callback = ready.popleft()
                if callback._cancelled:
                    continue
                callback._run()
                count += 1
                if count > TURN_MAX:
                    raise Restless(f"{len(ready)} callbacks, the next of them {ready[0]}")
                if self._fuse is not None:
                    self._burn()
        finally:
            asyncio._set_running_loop(None)
            self._turns = False

    def _burn(self) -> None:
        assert self._fuse is not None
        count, work = self._fuse
        self._fuse = (count - 1, work) if count > 1 else None
        if self._fuse is None:
            work()

    # -- what asyncio asks of a loop

    def time(self) -> float:
        """The host's monotonic clock in seconds."""
        return (self._clock.now + self._offset) / 1e9

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Run a callback at this instant, behind those that wait already."""
        handle = _Callback(0.0, callback, args, self, context)
        if not self._killed:
            self._ready.append(handle)
            self._turn_soon()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback in so many seconds."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        """Run a callback at a time."""
        handle = _Callback(when, callback, args, self, context)
        self._clock.put(ns(when) - self._offset, handle)
        return handle

    def ready(self, callback: _Callback) -> None:
        """The time of a callback has come."""
        if not self._killed:
            self._ready.append(callback)
            if not self._turns:
                self._turn()

    def create_future(self) -> "asyncio.Future[Any]":
        """A future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        """A task of this loop; kept alive until it is done."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Do blocking work as a thread would: behind a while, whether anybody still waits for it or not."""
        future = self.create_future()

        def work() -> None:
            if self._killed:
                return
            if self._frozen:
                self._clock.after(self._stall(), work)
                return
            try:
                result = func(*args)
            except Exception as error:
                if not future.done():
                    future.set_exception(error)
            else:
                if not future.done():
                    future.set_result(result)

        self._clock.after(self._stall(), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody took, unless it is of a process that was killed."""
        error = context.get("exception")
        if error is not None and not self._killed:
            self._crashed(context["message"], error)

    def get_debug(self) -> bool:
        """Never."""
        return False

    def is_running(self) -> bool:
        """It is turned from outside."""
        return not self._killed

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._killed

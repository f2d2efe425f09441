"""Event loop of one simulated process, in virtual time.

asyncio's tasks, futures, events, queues and timeouts run on it unchanged. The simulation's clock drives it, except
while its process is frozen. After a kill nothing runs, not even ``finally`` blocks. Work in executors is executed after
some virtual time.

Packages such as looptime do not fit: they run one selector loop on a virtual clock for the whole program. Here, every
process has a loop that can be frozen and killed, and all loops share one clock.
"""

import asyncio
from asyncio.futures import Future
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import msgspec

from ftcore.ids import SECOND
from ftcore.sim.protocol.clock import Scheduler, ns

TURN_MAX = 100_000
"""Most callbacks of a process at one instant; more count as an endless loop."""

_TURN = range(TURN_MAX)


class Restless(Exception):
    """A process runs callbacks endlessly at one instant."""


class _Callback(msgspec.Struct):
    """A ready or scheduled callback: what asyncio uses of its own ``TimerHandle``, at less cost.

    Args:
        callback, args, context: as for ``call_soon``; no callback: it was cancelled.
        loop: the loop, if it is scheduled.
    """

    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: Context
    loop: "VirtualLoop | None" = None

    def cancel(self) -> None:
        """Drop the callback."""
        self.callback = None

    def ring(self) -> None:
        """Make the callback ready now."""
        loop = self.loop
        assert loop is not None
        if self.callback is not None and not loop._killed:
            loop._ready.append(self)
            if not loop._turns:
                loop._turn()


class VirtualLoop(asyncio.AbstractEventLoop):
    """The loop of one process.

    Args:
        clock: virtual time.
        offset: nanoseconds by which the host's monotonic clock is ahead of virtual time.
        stall: returns the duration of work in an executor, in nanoseconds.
        crashed: called with unhandled exceptions.
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
        self._context = Context()
        self._tasks: list[asyncio.Task[Any]] = []
        self._fuse: tuple[int, Callable[[], object]] | None = None
        self._stalled: asyncio.Task[Any] | None = None
        self._late: list[_Callback] = []
        self.create_future = partial(Future, loop=self)  # type: ignore[method-assign]

    # -- state of the process

    def freeze(self) -> None:
        """Run nothing until ``thaw``."""
        self._frozen = True

    def thaw(self) -> None:
        """Run the pending callbacks."""
        self._frozen = False
        self._turn_soon()

    def kill(self) -> None:
        """Stop forever."""
        self._killed = True
        self._ready.clear()
        self._fuse = None

    def after_callbacks(self, count: int, work: Callable[[], object]) -> None:
        """Execute ``work`` after ``count`` further callbacks."""
        self._fuse = (count, work)

    def tasks(self) -> "list[asyncio.Task[Any]]":
        """The tasks that have not ended, in the order in which they began."""
        return [task for task in self._tasks if not task.done()]

    def stall(self, task: "asyncio.Task[Any]", duration_ns: int) -> None:
        """Let one task make no step for some time, while the others run on; a task that was stalled before resumes."""
        self._resume()
        self._stalled = task
        self._clock.after(duration_ns, partial(self._resume, task))

    def _resume(self, task: "asyncio.Task[Any] | None" = None) -> None:
        if task is None or task is self._stalled:
            self._stalled = None
            if not self._killed:
                self._ready.extend(self._late)
                self._turn_soon()
            self._late.clear()

    def dispose(self) -> None:
        """Close the tasks of a killed process; only after the end of the simulation."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            if task.done():
                continue
            try:
                coroutine = task.get_coro()
                assert isinstance(coroutine, Coroutine)
                coroutine.close()
            except (RuntimeError, ValueError):
                pass  # it awaits in a `finally` block

    # -- running callbacks

    def _turn_soon(self) -> None:
        if self._ready and not (self._turns or self._frozen or self._killed):
            self._turns = True
            self._clock.soon(self._turn)

    def _turn(self) -> None:
        ready = self._ready
        self._turns = True
        if self._clock.running is not self:  # it stays until another loop runs: telling asyncio is a system call
            self._clock.running = self
            asyncio._set_running_loop(self)
        try:
            for _ in _TURN:
                if not ready or self._frozen:  # `kill` clears it
                    break
                handle = ready.popleft()
                callback = handle.callback
                if callback is None:
                    continue
                if self._stalled is not None and getattr(callback, "__self__", None) is self._stalled:
                    self._late.append(handle)
                    continue
                try:
                    handle.context.run(callback, *handle.args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"Exception in callback {callback}", "exception": error})
                if self._fuse is not None:
                    self._burn()
            else:
                raise Restless(f"{TURN_MAX} callbacks, the newest of them {callback}")
        finally:
            self._turns = False

    def _burn(self) -> None:
        assert self._fuse is not None
        count, work = self._fuse
        self._fuse = (count - 1, work) if count > 1 else None
        if self._fuse is None:
            work()

    # -- asyncio.AbstractEventLoop

    def time(self) -> float:
        """The host's monotonic clock in seconds."""
        return (self._clock.now + self._offset) / 1e9

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Callback:
        """Run a callback at this instant, after the ready ones."""
        handle = _Callback(callback, args, copy_context() if context is None else context)
        if not self._killed:
            self._ready.append(handle)
            if not self._turns:
                self._turn_soon()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Callback:
        """Run a callback in ``delay`` seconds."""
        handle = _Callback(callback, args, self._context if context is None else context, self)
        clock, offset = self._clock, self._offset
        clock.at(round(((clock.now + offset) / 1e9 + delay) * SECOND) - offset, handle.ring)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Callback:
        """Run a callback at a time."""
        handle = _Callback(callback, args, self._context if context is None else context, self)
        self._clock.at(ns(when) - self._offset, handle.ring)
        return handle

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> "asyncio.Task[Any]":
        """A task of this loop, referenced until the end of the simulation: to forget it earlier costs a callback."""
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """Execute blocking work after some time, like a thread: also if its future was cancelled."""
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
        """Report an unhandled exception, unless the process was killed."""
        error = context.get("exception")
        if error is not None and not self._killed:
            self._crashed(context["message"], error)

    def get_debug(self) -> bool:
        """False."""
        return False

    def is_running(self) -> bool:
        """Whether the process is alive."""
        return not self._killed

    def is_closed(self) -> bool:
        """Whether the process has ended."""
        return self._killed

"""Simulated hosts and processes, which may die, freeze and resume at any time.

A process acts only on its loop or through its ``after``. So a dead process does nothing, and a frozen one does its
pending work late and in order when it resumes.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from ftcore.ids import Nanoseconds
from ftcore.sim.protocol.clock import Scheduler, Work, ns
from ftcore.sim.protocol.loop import VirtualLoop

EPOCH_NS = 1_700_000_000_000_000_000

THREAD_S, STALLED_S = (0.0001, 0.02), (0.5, 6.0)
"""Range of the duration of work in a thread, in seconds: normal, and on a host with stalled threads."""


class SimMachine:
    """A machine.

    Args:
        name: host name, by which nodes and masters on it are reached.
        skew_ns: error of its wall clock.
        uptime_ns: difference of its monotonic clock to virtual time.
        switch: its network switch; empty: unknown.
    """

    def __init__(self, name: str, skew_ns: int, uptime_ns: int = 0, switch: str = "") -> None:
        self.name = name
        self.switch = switch
        self.skew_ns = skew_ns
        self.uptime_ns = uptime_ns
        self.boots = 1
        self.up = True
        self.bad = False
        self.disk_full = False
        self.stalls = False
        self.processes: list[Process] = []
        self.disk: dict[str, list[bytes]] = {}
        self.lost_with_it: list[Work] = []

    @property
    def frozen(self) -> bool:
        """Whether a process on it is frozen."""
        return any(process.frozen for process in self.processes)

    def crash(self) -> None:
        """Crash; the contents of disk and memory are lost."""
        self.up = False
        self.boots += 1
        self.disk.clear()
        for lose in self.lost_with_it:
            lose()
        self.lost_with_it.clear()
        for process in list(self.processes):
            process.kill()


class Process:
    """A process on a host.

    Args:
        clock: virtual time.
        chance: random generator for durations of threads.
        host: its host.
        name: name for the trace.
        pid: its process ID.
        crashed: called with unhandled exceptions.
    """

    def __init__(
        self,
        clock: Scheduler,
        chance: random.Random,
        host: SimMachine,
        name: str,
        pid: int,
        crashed: Callable[[str, BaseException], None],
    ) -> None:
        self.clock = clock
        self.host = host
        self.name = name
        self.pid = pid
        self.alive = True
        self.frozen = False
        self._chance = chance
        # Methods that asyncio itself does not use raise NotImplementedError, as in the base class.
        self.loop = VirtualLoop(clock, host.uptime_ns, self._thread_ns, crashed)  # type: ignore[abstract]
        self._crashed = crashed
        self._held: list[Work] = []
        host.processes.append(self)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """Run the process; it ends when ``main`` returns."""
        self.loop.create_task(self._main(main))

    async def _main(self, main: Coroutine[Any, Any, None]) -> None:
        try:
            await main
        except Exception as error:
            self._crashed(f"{self.name} ends", error)
        self.kill()

    def _thread_ns(self) -> int:
        return ns(self._chance.uniform(*(STALLED_S if self.host.stalls else THREAD_S)))

    def mono(self) -> Nanoseconds:
        """The host's monotonic clock."""
        return Nanoseconds(self.clock.now + self.host.uptime_ns)

    def after(self, delay_ns: int, work: Work) -> None:
        """Schedule work; executed only if the process is alive, and delayed while it is frozen."""
        self.clock.after(delay_ns, partial(self.wake_for, work))

    def wake_for(self, work: Work) -> None:
        """Execute work now, or when the process resumes."""
        if not self.alive:
            return
        if self.frozen:
            self._held.append(work)
        else:
            work()

    def freeze(self, duration_ns: int) -> None:
        """Freeze for some time."""
        if self.alive and not self.frozen:
            self.frozen = True
            self.loop.freeze()
            self.clock.after(duration_ns, self._thaw)

    def _thaw(self) -> None:
        self.frozen = False
        held, self._held = self._held, []
        for work in held:
            self.wake_for(work)
        if self.alive:
            self.loop.thaw()

    def kill(self) -> None:
        """End at once."""
        if self.alive:
            self.alive = False
            self._held.clear()
            self.loop.kill()
            self.host.processes.remove(self)
            self.died()

    def died(self) -> None:
        """Hook for subclasses: the process has ended."""


class SimHost:
    """A host as seen by one of its processes; see ``ports.Host``.

    Args:
        process: the process.
        chance: random generator.
    """

    def __init__(self, process: Process, chance: random.Random) -> None:
        self._process = process
        self._chance = chance
        self.name = process.host.name
        self.pid = process.pid
        self.boot = f"{process.host.name}.{process.host.boots}"
        self.mono = process.mono

    def wall(self) -> Nanoseconds:
        """See ``ports.Host``."""
        return Nanoseconds(EPOCH_NS + self._process.clock.now + self._process.host.skew_ns)

    def uniform(self, low: float, high: float) -> float:
        """See ``ports.Host``."""
        return self._chance.uniform(low, high)

    def unique(self) -> str:
        """See ``ports.Host``."""
        return f"{self._chance.getrandbits(128):032x}"

    def can_open(self, count: int) -> bool:
        """See ``ports.Host``."""
        return True

    def devices(self) -> tuple[str, ...]:
        """See ``ports.Host``."""
        return ("simulated",)

    def interfaces(self) -> dict[str, tuple[int, int, int]]:
        """See ``ports.Host``."""
        return {}


class SimJournal:
    """A journal on a host's disk; see ``ports.Journal``. A full disk drops writes.

    Args:
        process: the writing process.
        path: the file.
        late_ns: returns the duration of a disk operation.
    """

    def __init__(self, process: Process, path: str, late_ns: Callable[[], int]) -> None:
        self._process, self._path, self._late_ns = process, path, late_ns
        self._left = process.loop.create_future()
        self._last = 0
        self._do(lambda disk: settle(self._left, list(disk.get(path, ()))))

    def _do(self, work: Callable[[dict[str, list[bytes]]], object]) -> None:
        """Schedule a disk operation; operations are executed in order."""
        clock, host, boots = self._process.clock, self._process.host, self._process.host.boots
        self._last = max(self._last, clock.now + self._late_ns())

        def reach() -> None:
            if host.boots == boots:
                work(host.disk)

        clock.after(self._last - clock.now, reach)

    def append(self, line: bytes) -> None:
        """See ``ports.Journal``."""

        def write(disk: dict[str, list[bytes]]) -> None:
            if not self._process.host.disk_full and self._process.alive:
                disk.setdefault(self._path, []).append(line)

        self._do(write)

    def empty(self) -> None:
        """See ``ports.Journal``."""
        self._do(lambda disk: disk.pop(self._path, None) if self._process.alive else None)

    async def left(self) -> list[bytes]:
        """See ``ports.Journal``."""
        lines: list[bytes] = await asyncio.shield(self._left)
        return lines

    async def close(self, timeout_s: float) -> None:
        """See ``ports.Journal``."""
        done = self._process.loop.create_future()
        self._do(lambda disk: settle(done, None))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await done


def settle(future: "asyncio.Future[Any]", result: object) -> None:
    """Set the result of a future unless it is done."""
    if not future.done():
        future.set_result(result)

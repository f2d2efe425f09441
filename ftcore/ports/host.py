"""The machine that an ftcore process runs on: clocks, identity, disk."""

from typing import Protocol

from ftcore.ids import Nanoseconds


class Clock(Protocol):
    """Time source of the core."""

    def now(self) -> Nanoseconds:
        """Nanoseconds since the epoch."""

    def mono(self) -> Nanoseconds:
        """Nanoseconds of a monotonic clock."""


class Host(Protocol):
    """The machine that an ftcore process runs on, as seen by that process."""

    @property
    def name(self) -> str:
        """Host name."""

    @property
    def pid(self) -> int:
        """Process ID of the caller."""

    @property
    def boot(self) -> str:
        """Boot ID; monotonic times are comparable within one boot. Empty if unknown."""

    def wall(self) -> Nanoseconds:
        """Nanoseconds since the epoch by the machine's wall clock, which may be stepped."""

    def mono(self) -> Nanoseconds:
        """Nanoseconds of the monotonic clock that the event loop uses."""

    def uniform(self, low: float, high: float) -> float:
        """A random number between ``low`` and ``high``, as jitter for actions of many hosts."""

    def unique(self) -> str:
        """A unique ID of 32 hex digits."""

    def can_open(self, count: int) -> bool:
        """Whether this process can open ``count`` more file descriptors."""

    def devices(self) -> tuple[str, ...]:
        """Models of the accelerators."""

    def interfaces(self) -> dict[str, tuple[int, int, int]]:
        """By network interface: bytes received, bytes sent, errors and drops, since boot."""


class Journal(Protocol):
    """Lines on disk that outlive the process. Only the coroutines wait for the disk.

    A failed write loses only the lines of that write.
    """

    def append(self, line: bytes) -> None:
        """Queue a line to be written at the end."""

    def empty(self) -> None:
        """Queue the removal of all lines, those of earlier processes included."""

    async def left(self) -> list[bytes]:
        """The lines that earlier processes left; the last may be cut short."""

    async def close(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` seconds for queued writes; the rest is dropped."""

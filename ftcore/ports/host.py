"""The machine that one of our processes runs on: its clocks, its names, its disk."""

from typing import Protocol

from ftcore.ids import Nanoseconds


class Clock(Protocol):
    """Time, as the runtime tells it to the core."""

    def now(self) -> Nanoseconds:
        """Nanoseconds since the epoch."""

    def mono(self) -> Nanoseconds:
        """Nanoseconds of a clock that is never stepped."""


class Host(Protocol):
    """The machine that one of our processes runs on: what the process asks of it."""

    @property
    def name(self) -> str:
        """Its host name."""

    @property
    def pid(self) -> int:
        """Process id of who asks."""

    @property
    def boot(self) -> str:
        """This boot of it, within which monotonic clocks can be compared; empty: it does not tell."""

    def wall(self) -> Nanoseconds:
        """Nanoseconds since the epoch, by its own clock, which people may step."""

    def mono(self) -> Nanoseconds:
        """Nanoseconds of a clock that is never stepped; the same clock as the event loop's."""

    def uniform(self, low: float, high: float) -> float:
        """A random number between two others: so that many hosts do not do the same thing at the same time."""

    def unique(self) -> str:
        """32 hex digits that nobody else is given."""

    def can_open(self, count: int) -> bool:
        """Whether this process could open so many more file descriptors."""

    def devices(self) -> tuple[str, ...]:
        """Models of its accelerators."""

    def interfaces(self) -> dict[str, tuple[int, int, int]]:
        """By network interface: bytes received, bytes sent, errors and drops, since it started."""


class Journal(Protocol):
    """Lines on a disk that outlive the process that wrote them. Nothing here waits for the disk but the coroutines.

    A disk that refuses loses what it refused, and nothing else.
    """

    def append(self, line: bytes) -> None:
        """Have a line written behind the others."""

    def empty(self) -> None:
        """Have nothing there of what was appended so far, nor of what was there before."""

    async def left(self) -> list[bytes]:
        """The lines that were there before this process wrote any; one may be cut short."""

    async def close(self, timeout_s: float) -> None:
        """Wait until all is done, at most so long; what is not done by then is not done."""

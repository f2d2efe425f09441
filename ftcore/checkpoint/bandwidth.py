"""The limit of the bandwidth that checkpoints use."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator

from ftcore.checkpoint.backend import Chunk


class BandwidthLimit:
    """Delays writers so that they write at most so many bytes per second together.

    Args:
        bandwidth: bytes per second; 0: no limit.
        clock: monotonic seconds.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        bandwidth: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bandwidth = bandwidth
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0

    def paced(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Yield the chunks, each when the ones before it have used their time."""
        for chunk in chunks:
            yield chunk
            if self._bandwidth > 0 and (delay := self._reserved(len(chunk))) > 0:
                self._sleep(delay)

    def unit(self, most: int) -> int:
        """Bytes to write at once so that a reader never waits for long: a tenth of a second's, at most ``most``."""
        return min(most, max(4096, int(self._bandwidth / 10))) if self._bandwidth > 0 else most

    def _reserved(self, count: int) -> float:
        """Reserve time for so many bytes; return the seconds until that time is over."""
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + count / self._bandwidth
            return self._free_at - now

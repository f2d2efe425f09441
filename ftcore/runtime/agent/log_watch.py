"""The live scan of what workers print: by a thread of its own, behind the log files and the console.

House rules: nobody waits for it. Output is handed over after it was forwarded; what the thread has no time for is
counted and not scanned, and a stream that was cut so goes on at its next line. What is found is told in the agent's
event loop.
"""

import asyncio
import collections
import contextlib
import threading
import time
from collections.abc import Callable

import attrs

from ftcore.faults.rule import Rule
from ftcore.faults.scan import INTERVAL_NS, Hit, Scanner
from ftcore.ids import Round

LAG_BYTES_MAX = 8 << 20
"""Of output that waits to be scanned; at the measured rate this is some hundredths of a second of work."""

Told = Callable[[Round, int, Hit], None]


@attrs.define(eq=False)
class Watched:
    """One stream of one worker, as the scan sees it.

    Args:
        round: the worker's round.
        rank: its global rank.
        scanner: reads the stream.
        torn: what came last was dropped.
    """

    round: Round
    rank: int
    scanner: Scanner | None = None
    torn: bool = False


class LogWatch:
    """Scans the output of all workers of the node.

    Args:
        loop: the agent's event loop.
        told: called in the loop with round, rank and what was found.
        extra: the job's own rules.

    Attributes:
        dropped: bytes that were not scanned.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, told: Told, extra: tuple[Rule, ...] = ()) -> None:
        self._loop = loop
        self._told = told
        self._extra = extra
        self._changed = threading.Condition()
        self._blocks: collections.deque[tuple[Watched, bytes | None]] = collections.deque()
        self._size = 0
        self._counting: set[Watched] = set()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def stream(self, round_: Round, rank: int) -> "Tap":
        """A stream to scan."""
        return Tap(self, Watched(round_, rank))

    def put(self, stream: Watched, data: bytes | None) -> None:
        """Hand over bytes, or None at the end of the stream; never waits."""
        with self._changed:
            if self._closed:
                return
            if data is not None and self._size + len(data) > LAG_BYTES_MAX:
                self.dropped += len(data)
                stream.torn = True
                return
            if data is not None and stream.torn:  # the two ends of the gap are no line
                stream.torn, data = False, b"\n" + data[data.find(b"\n") + 1 :]
            self._blocks.append((stream, data))
            self._size += len(data or b"")
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ftcore-scan", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; what waits is not scanned."""
        with self._changed:
            self._closed = True
            self._blocks.clear()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                pause = INTERVAL_NS / 1e9 if self._counting else None
                self._changed.wait_for(lambda: bool(self._blocks or self._closed), pause)
                if self._closed:
                    return
                block = self._blocks.popleft() if self._blocks else None
                self._size -= len((block[1] if block is not None else None) or b"")
            if block is None:
                for stream in list(self._counting):
                    self._tell(stream, self._scanner(stream).flush(time.monotonic_ns()))
            else:
                self._scan(*block)

    def _scanner(self, stream: Watched) -> Scanner:
        """Made by the thread: compiling the rules takes so long that a loaded machine's agent would lose its lease."""
        if stream.scanner is None:
            stream.scanner = Scanner(self._extra)
        return stream.scanner

    def _scan(self, stream: Watched, data: bytes | None) -> None:
        scanner = self._scanner(stream)
        now = time.monotonic_ns()
        if data is None:
            self._counting.discard(stream)
            self._tell(stream, scanner.flush(now, ended=True))
            return
        hits = scanner.feed(data, now)
        if hits:
            self._counting.add(stream)
            self._tell(stream, hits)

    def _tell(self, stream: Watched, hits: list[Hit]) -> None:
        for hit in hits:
            # the loop is closed: nobody is left to tell
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._told, stream.round, stream.rank, hit)


class Tap:
    """What a stream of output is handed to.

    Args:
        watch: scans it.
        stream: the stream.
    """

    def __init__(self, watch: LogWatch, stream: Watched) -> None:
        self._watch = watch
        self._stream = stream

    def put(self, data: bytes) -> None:
        """Hand over what was read."""
        self._watch.put(self._stream, data)

    def end(self) -> None:
        """No more comes."""
        self._watch.put(self._stream, None)

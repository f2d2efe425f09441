"""Live scan of the workers' output for known lines, in a separate thread.

House rules: nothing waits for the scan. Output is passed on only after it was written to log file and console. If the
thread lags, output is counted and skipped, and scanning continues at the next line. Matches are reported in the
agent's event loop.
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
"""Limit of queued output; scanning it takes some hundredths of a second."""

HitCallback = Callable[[Round, int, Hit], None]


@attrs.define(eq=False)
class ScannedStream:
    """One output stream of one worker.

    Args:
        round: the worker's round.
        rank: the worker's global rank.
        scanner: the scanner of the stream.
        torn: the last output was dropped.
    """

    round: Round
    rank: int
    scanner: Scanner | None = None
    torn: bool = False


class LogWatch:
    """Scans the output of all workers of the node.

    Args:
        loop: the agent's event loop.
        on_match: called in the loop with round, rank and match.
        extra: the job's own rules.

    Attributes:
        dropped: number of bytes that were not scanned.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_match: HitCallback, extra: tuple[Rule, ...] = ()) -> None:
        self._loop = loop
        self._on_match = on_match
        self._extra = extra
        self._changed = threading.Condition()
        self._blocks: collections.deque[tuple[ScannedStream, bytes | None]] = collections.deque()
        self._size = 0
        self._counting: set[ScannedStream] = set()
        self._closed = False
        self._thread: threading.Thread | None = None
        self.dropped = 0

    def stream(self, round_: Round, rank: int) -> "Tap":
        """Begin the scan of a stream."""
        return Tap(self, ScannedStream(round_, rank))

    def put(self, stream: ScannedStream, data: bytes | None) -> None:
        """Queue bytes, or None at the end of the stream, without waiting."""
        with self._changed:
            if self._closed:
                return
            if data is not None and self._size + len(data) > LAG_BYTES_MAX:
                self.dropped += len(data)
                stream.torn = True
                return
            if data is not None and stream.torn:  # the text around the gap must not form a line
                stream.torn, data = False, b"\n" + data[data.find(b"\n") + 1 :]
            self._blocks.append((stream, data))
            self._size += len(data or b"")
            self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ftcore-scan", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; queued output is not scanned."""
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
                    self._report(stream, self._scanner(stream).flush(time.monotonic_ns()))
            else:
                self._scan(*block)

    def _scanner(self, stream: ScannedStream) -> Scanner:
        """The stream's scanner, created in the thread: compiling the rules in the event loop could delay heartbeats."""
        if stream.scanner is None:
            stream.scanner = Scanner(self._extra)
        return stream.scanner

    def _scan(self, stream: ScannedStream, data: bytes | None) -> None:
        scanner = self._scanner(stream)
        now = time.monotonic_ns()
        if data is None:
            self._counting.discard(stream)
            self._report(stream, scanner.flush(now, ended=True))
            return
        hits = scanner.feed(data, now)
        if hits:
            self._counting.add(stream)
            self._report(stream, hits)

    def _report(self, stream: ScannedStream, hits: list[Hit]) -> None:
        for hit in hits:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._on_match, stream.round, stream.rank, hit)


class Tap:
    """The receiver of one output stream.

    Args:
        watch: scans the stream.
        stream: the stream.
    """

    def __init__(self, watch: LogWatch, stream: ScannedStream) -> None:
        self._watch = watch
        self._stream = stream

    def put(self, data: bytes) -> None:
        """Pass on output."""
        self._watch.put(self._stream, data)

    def end(self) -> None:
        """End the stream."""
        self._watch.put(self._stream, None)

"""Live scan of a worker's output: finds lines that match rules while the worker runs.

Bytes arrive in arbitrary pieces. A piece of ordinary output costs one pass of one automaton; only a piece with a match
is read line by line. Reports are rate-limited per rule: the first line at once, then one report in ``INTERVAL_NS`` with
the number of lines since.

House rules: memory is bounded: of a long line only its head and its tail are kept and read, however it is split into
pieces. No clock: time is an argument.
"""

import functools
import re

import attrs

from ftcore.faults.pattern import PatternSet
from ftcore.faults.rule import Rule
from ftcore.faults.rules import RULES
from ftcore.faults.table import LINE_BYTES_MAX, cut, table
from ftcore.ids import SECOND

INTERVAL_NS = 60 * SECOND
SHOWN_BYTES = 512
"""Most bytes of a reported line."""

_HALF = LINE_BYTES_MAX // 2
_END = re.compile(rb"[\r\n]")


@attrs.frozen
class Hit:
    """Lines that matched one rule.

    Args:
        rule: the rule's name.
        cls: the class that it indicates.
        line: the first such line, truncated to ``SHOWN_BYTES``.
        count: matching lines since the rule's last report.
    """

    rule: str
    cls: str
    line: str
    count: int


@attrs.define
class _Quiet:
    """A rule that was reported recently; further lines are counted."""

    until: int
    line: bytes = b""
    count: int = 0


class Scanner:
    """Scans one stream.

    Args:
        extra: the job's custom rules.
    """

    def __init__(self, extra: tuple[Rule, ...] = ()) -> None:
        self._table = table(extra)
        self._live = _live(extra)
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0
        self._quiet: dict[str, _Quiet] = {}

    def feed(self, data: bytes, now: int) -> list[Hit]:
        """Read the next bytes and return the hits to report for the lines that end in them.

        Args:
            data: any piece of the stream.
            now: nanoseconds of a monotonic clock.
        """
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if not end:
            self._keep(data)
            return []
        if self._head:
            first = _END.search(data)
            assert first is not None
            self._keep(data[: first.start()])
            hits = self._read(self._unfinished(), now)
            hits += self._block(data[first.end() : end], now)
        else:
            hits = self._block(data[:end], now)
        self._keep(data[end:])
        return hits

    def flush(self, now: int, *, ended: bool = False) -> list[Hit]:
        """Return the counted but unreported hits: of rules whose interval is over, or of all at the end of the stream.

        Args:
            now: as for ``feed``.
            ended: the stream has ended: an unterminated last line is read.
        """
        hits = self._read(self._unfinished(), now) if ended and self._head else []
        for name in [name for name, quiet in self._quiet.items() if ended or quiet.until <= now]:
            quiet = self._quiet.pop(name)
            if quiet.count:
                hits.append(self._hit(name, quiet.line, quiet.count))
                self._quiet[name] = _Quiet(now + INTERVAL_NS)
        return hits

    @property
    def held(self) -> int:
        """Number of kept bytes of the unfinished line."""
        return len(self._head) + len(self._tail)

    def _keep(self, data: bytes) -> None:
        room = LINE_BYTES_MAX - len(self._head) if not self._tail and not self._cut else 0
        self._head += data[:room]
        rest = data[room:]
        if rest:
            self._tail += rest[-_HALF:]
            self._cut += len(rest)
            del self._tail[:-_HALF]

    def _unfinished(self) -> bytes:
        """Return and forget the unfinished line, shortened as ``cut`` shortens a complete line."""
        head, tail = bytes(self._head), bytes(self._tail)
        whole = len(head) + self._cut
        self._head.clear()
        self._tail.clear()
        self._cut = 0
        if whole <= LINE_BYTES_MAX:
            return head + tail
        return cut(head[:_HALF] + b" " * (LINE_BYTES_MAX + 1) + (head + tail)[-_HALF:])

    def _block(self, block: bytes, now: int) -> list[Hit]:
        if not block or not self._live.found_in(block):
            return []
        return [hit for line in _END.split(block) if line for hit in self._read(line, now)]

    def _read(self, line: bytes, now: int) -> list[Hit]:
        shown = cut(line)
        if not self._live.found_in(shown):
            return []
        rule = self._table.read(shown)
        if rule is None or not rule.live:
            return []
        quiet = self._quiet.get(rule.name)
        if quiet is not None and now < quiet.until:
            quiet.line = quiet.line or shown[:SHOWN_BYTES]
            quiet.count += 1
            return []
        count = 1 + (quiet.count if quiet is not None else 0)
        first = quiet.line if quiet is not None and quiet.line else shown
        self._quiet[rule.name] = _Quiet(now + INTERVAL_NS)
        return [self._hit(rule.name, first, count)]

    def _hit(self, name: str, line: bytes, count: int) -> Hit:
        cls = next(rule.cls for rule in self._table.rules if rule.name == name)
        # a replacement character is longer than the byte that it replaces
        shown = line[:SHOWN_BYTES].decode("utf-8", "replace").strip().encode()[:SHOWN_BYTES].decode("utf-8", "ignore")
        return Hit(name, str(cls), shown, count)


@functools.lru_cache(maxsize=8)
def _live(extra: tuple[Rule, ...]) -> PatternSet:
    """Compile the rules for live reports; ``^`` and ``$`` match at line ends."""
    return PatternSet(f"(?m:{rule.pattern})" for rule in (*extra, *RULES) if rule.live)

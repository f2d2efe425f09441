"""The live scan: lines of a worker's output that rules know, found while it runs.

Bytes come in any pieces; a piece of ordinary output costs one pass of one automaton over all of it, and only a piece in
which that finds something is looked at line by line. What is told is limited per rule: the first line at once, then one
report in ``INTERVAL_NS`` with the count of those between.

House rules: memory is bounded whatever comes: of a line without an end its head and its tail are kept, and that is what
the rules see of any long line, however it was cut into pieces. No clock: the caller says what time it is.
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
"""Of a line that is told."""

_HALF = LINE_BYTES_MAX // 2
_END = re.compile(rb"[\r\n]")


@attrs.frozen
class Hit:
    """Lines that one rule read.

    Args:
        rule: the rule's name.
        cls: the class that it speaks for.
        line: the first such line, cut to ``SHOWN_BYTES``.
        count: such lines since the rule was last told.
    """

    rule: str
    cls: str
    line: str
    count: int


@attrs.define
class _Quiet:
    """A rule that was told a short while ago."""

    until: int
    line: bytes = b""
    count: int = 0


class Scanner:
    """Scans one stream.

    Args:
        extra: the job's own rules.
    """

    def __init__(self, extra: tuple[Rule, ...] = ()) -> None:
        self._table = table(extra)
        self._live = _live(extra)
        self._head = bytearray()
        self._tail = bytearray()
        self._cut = 0
        self._quiet: dict[str, _Quiet] = {}

    def feed(self, data: bytes, now: int) -> list[Hit]:
        """Take the next bytes; what is to be told of the lines that end in them.

        Args:
            data: any piece of the stream.
            now: nanoseconds of a clock that never goes back.
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
        """What was counted and not told; of rules whose interval is over, or of all at the end of the stream.

        Args:
            now: as for ``feed``.
            ended: no more bytes come: the last line needs no end.
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
        """Bytes of the unfinished line that are kept."""
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
        """The line that was kept so far, as ``cut`` makes it of the whole line."""
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
        # a replacement character is longer than the byte that it stands for
        shown = line[:SHOWN_BYTES].decode("utf-8", "replace").strip().encode()[:SHOWN_BYTES].decode("utf-8", "ignore")
        return Hit(name, str(cls), shown, count)


@functools.lru_cache(maxsize=8)
def _live(extra: tuple[Rule, ...]) -> PatternSet:
    """The rules that are worth telling at once, with the ends of lines as ends."""
    return PatternSet(f"(?m:{rule.pattern})" for rule in (*extra, *RULES) if rule.live)

"""The rules, compiled: built-in ones behind a job's own, all in one automaton."""

import functools

from ftcore.faults.pattern import PatternSet, to_bytes
from ftcore.faults.rule import Rule
from ftcore.faults.rules import RULES

LINE_BYTES_MAX = 8192
"""Of a longer line its start and its end are read, half of this each."""

LOOKS_BAD = r"(?i)error|fail|fatal|abort|exception|killed|panic|warn|traceback|timed? ?out"
"""A line that is worth showing where no rule knows anything."""


class Table:
    """An ordered table of rules.

    Args:
        extra: a job's own rules; read first.
    """

    def __init__(self, extra: tuple[Rule, ...] = ()) -> None:
        self.rules = (*extra, *RULES)
        self._set = PatternSet([*(rule.pattern for rule in self.rules), LOOKS_BAD])

    def read(self, line: bytes) -> Rule | None:
        """The rule that reads the line: the first of those that find their pattern in it."""
        return self.look(line)[0]

    def look(self, line: bytes) -> tuple[Rule | None, bool]:
        """As ``read``, and whether the line looks bad to somebody who knows no rule."""
        found = self._set.found_in(cut(line))
        if not found:
            return None, False
        known = len(self.rules)
        return self.rules[found[0]] if found[0] < known else None, found[-1] == known

    def read_text(self, line: str) -> Rule | None:
        """As ``read``, of text."""
        return self.read(to_bytes(line))


def cut(line: bytes) -> bytes:
    """A line no longer than ``LINE_BYTES_MAX``: of a longer one the start and the end."""
    if len(line) <= LINE_BYTES_MAX:
        return line
    half = LINE_BYTES_MAX // 2
    return line[:half] + b" ... " + line[-half:]


@functools.lru_cache(maxsize=8)
def table(extra: tuple[Rule, ...] = ()) -> Table:
    """The table with these rules in front; compiled once."""
    return Table(extra)

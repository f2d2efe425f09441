"""The compiled rules: a job's custom rules before the built-in ones, all in one automaton."""

import functools

from ftcore.faults.pattern import PatternSet, to_bytes
from ftcore.faults.rule import Rule
from ftcore.faults.rules import RULES

LINE_BYTES_MAX = 8192
"""Of a longer line only the start and the end are read, half of this each."""

LOOKS_BAD = r"(?i)error|fail|fatal|abort|exception|killed|panic|warn|traceback|timed? ?out"
"""A line that is shown as evidence if no rule matches."""


class Table:
    """An ordered table of rules.

    Args:
        extra: a job's custom rules; they take precedence.
    """

    def __init__(self, extra: tuple[Rule, ...] = ()) -> None:
        self.rules = (*extra, *RULES)
        self._set = PatternSet([*(rule.pattern for rule in self.rules), LOOKS_BAD])

    def read(self, line: bytes) -> Rule | None:
        """Return the first rule whose pattern matches the line."""
        return self.look(line)[0]

    def look(self, line: bytes) -> tuple[Rule | None, bool]:
        """As ``read``, and whether the line resembles a failure (``LOOKS_BAD``)."""
        found = self._set.found_in(cut(line))
        if not found:
            return None, False
        known = len(self.rules)
        return self.rules[found[0]] if found[0] < known else None, found[-1] == known

    def read_text(self, line: str) -> Rule | None:
        """As ``read``, for text."""
        return self.read(to_bytes(line))


def cut(line: bytes) -> bytes:
    """Shorten a line longer than ``LINE_BYTES_MAX`` to its start and its end."""
    if len(line) <= LINE_BYTES_MAX:
        return line
    half = LINE_BYTES_MAX // 2
    return line[:half] + b" ... " + line[-half:]


@functools.lru_cache(maxsize=8)
def table(extra: tuple[Rule, ...] = ()) -> Table:
    """Return the table with these custom rules; compiled once."""
    return Table(extra)

"""Patterns on RE2: the time of a search depends on the length of the text only, not on the pattern.

Patterns come from users' policy files, and a backtracking engine can block the interpreter for seconds on one line with
a careless pattern. The built-in patterns use the same engine, all in one automaton: a block of output costs one pass
over its bytes for any number of rules. House rule: no other module imports the library. Text is bytes, read as Latin-1,
so any input can be searched.
"""

from collections.abc import Iterable, Sequence

import re2

from ftcore.errors import UsageError

PATTERN_CHARS_MAX = 1000
"""Most characters of a pattern."""

PROGRAM_MAX = 20_000
"""Most instructions of a compiled pattern: ``(a{900}){900}`` is short but compiles to many."""

SET_MEMORY_BYTES = 24 << 20
"""Memory limit of a table's automaton; it is built on demand and takes far less."""


def _options(memory: int = 0) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_capture = False
    if memory:
        options.max_mem = memory
    return options


def to_bytes(text: str) -> bytes:
    """Encode a text for patterns; undecodable bytes are preserved."""
    return text.encode("utf-8", "surrogateescape")


def check(pattern: str, where: str) -> None:
    """Check a pattern.

    Args:
        pattern: in RE2 syntax.
        where: place named in the error.

    Raises:
        UsageError: the pattern is empty, too long, not valid RE2 syntax, or matches the empty line and so every line.
    """
    if not pattern:
        raise UsageError(f"{where}: the pattern is empty; expected a regular expression in RE2 syntax")
    if len(pattern) > PATTERN_CHARS_MAX:
        raise UsageError(f"{where}: the pattern has {len(pattern)} characters, expected at most {PATTERN_CHARS_MAX}")
    try:
        compiled = re2.compile(to_bytes(pattern), _options())
    except re2.error as error:
        reason = error.args[0] if error.args else error
        detail = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise UsageError(
            f"{where}: {pattern!r} is not valid in RE2 ({detail}); RE2 has no look-around and no back-references"
        ) from None
    if compiled.programsize > PROGRAM_MAX:
        raise UsageError(f"{where}: {pattern!r} repeats too much; use smaller repetition counts")
    if compiled.search(b"") is not None:
        raise UsageError(f"{where}: {pattern!r} matches every line, even an empty one; make it more specific")


class Pattern:
    """One compiled pattern.

    Args:
        pattern: in RE2 syntax, already checked.
    """

    def __init__(self, pattern: str) -> None:
        self._compiled = re2.compile(to_bytes(pattern), _options())

    def groups(self, line: bytes) -> tuple[str, ...] | None:
        """Return the groups of the first match, an unmatched one as an empty string; None if there is no match."""
        found = self._compiled.search(line)
        if found is None:
            return None
        return tuple((group or b"").decode("utf-8", "replace") for group in found.groups())


class PatternSet:
    """Many compiled patterns, searched for in one pass.

    Args:
        patterns: in RE2 syntax, already checked.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._set = re2.Set.SearchSet(_options(SET_MEMORY_BYTES))
        for pattern in patterns:
            self._set.Add(to_bytes(pattern))
        self._set.Compile()

    def found_in(self, text: bytes) -> Sequence[int]:
        """Return the indexes of the matching patterns, ascending; several lines are searched as one text."""
        return sorted(self._set.Match(text) or ())

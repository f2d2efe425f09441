"""Patterns on RE2: the time of a search grows with the length of the text alone, whoever wrote the pattern.

A backtracking engine was measured to hold the interpreter for seconds on one line and one careless pattern; a user's
patterns come from a policy file, so they never meet one. The built-in patterns run on the same engine, all in one
automaton: a block of ordinary output costs one pass over its bytes however many rules there are. House rule: the only
module that knows the library. Text is bytes here, read as Latin-1, so there is no input that cannot be searched.
"""

from collections.abc import Iterable, Sequence

import re2

from ftcore.errors import UsageError

PATTERN_CHARS_MAX = 1000
"""Characters of one pattern."""

PROGRAM_MAX = 20_000
"""Instructions of one compiled pattern: ``(a{900}){900}`` is short to write."""

SET_MEMORY_BYTES = 24 << 20
"""What the automaton of a whole table may take; it is built as it is needed, and far less is."""


def _options(memory: int = 0) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    options.never_capture = False
    if memory:
        options.max_mem = memory
    return options


def to_bytes(text: str) -> bytes:
    """The text as patterns see it; half characters are kept as they came."""
    return text.encode("utf-8", "surrogateescape")


def check(pattern: str, where: str) -> None:
    """See to it that a pattern can be used.

    Args:
        pattern: in RE2's syntax.
        where: named in the error.

    Raises:
        UsageError: it is empty or too long, is not in RE2's syntax, or matches the empty line and so every line.
    """
    if not pattern:
        raise UsageError(f"{where}: the pattern is empty; expected what to search a line for")
    if len(pattern) > PATTERN_CHARS_MAX:
        raise UsageError(f"{where}: the pattern has {len(pattern)} characters; at most {PATTERN_CHARS_MAX} are taken")
    try:
        compiled = re2.compile(to_bytes(pattern), _options())
    except re2.error as error:
        told = error.args[0] if error.args else error
        detail = told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
        raise UsageError(
            f"{where}: {pattern!r} is no pattern of RE2 ({detail}); RE2 has no look-around and no back-references"
        ) from None
    if compiled.programsize > PROGRAM_MAX:
        raise UsageError(f"{where}: {pattern!r} repeats too much; write smaller counts")
    if compiled.search(b"") is not None:
        raise UsageError(f"{where}: {pattern!r} is found in every line, even in an empty one; make it say more")


class Pattern:
    """One pattern, to be searched for in one line.

    Args:
        pattern: in RE2's syntax, known to be good.
    """

    def __init__(self, pattern: str) -> None:
        self._compiled = re2.compile(to_bytes(pattern), _options())

    def groups(self, line: bytes) -> tuple[str, ...] | None:
        """The groups of the first match, empty where one took no part; None if there is no match."""
        found = self._compiled.search(line)
        if found is None:
            return None
        return tuple((group or b"").decode("utf-8", "replace") for group in found.groups())


class PatternSet:
    """Many patterns, searched for at once.

    Args:
        patterns: in RE2's syntax, each known to be good.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._set = re2.Set.SearchSet(_options(SET_MEMORY_BYTES))
        for pattern in patterns:
            self._set.Add(to_bytes(pattern))
        self._set.Compile()

    def found_in(self, text: bytes) -> Sequence[int]:
        """Numbers of the patterns that the text has, ascending; a text of many lines is searched as one."""
        return sorted(self._set.Match(text) or ())

"""Text of the log for a report: cut to a length, without characters that control a terminal or the order of writing."""

from ftcore.replay.report.limits import LINE_MAX, TEXT_MAX
from ftcore.wording import format_elapsed, printable

_DAY_S = 86400
_DAYS_FROM_S = 2 * _DAY_S
"""Durations of two days and more are written in days."""


def duration(seconds: float | None) -> str:
    """A measured time as ``wording.format_elapsed`` writes it; from two days on as ``12d07h``."""
    if seconds is None or seconds < _DAYS_FROM_S:
        return format_elapsed(seconds)
    hours = round(seconds / 3600)
    return f"{hours // 24}d{hours % 24:02d}h"


def line(text: str, most: int = LINE_MAX) -> str:
    """The text on one line, cut to ``most`` characters with a note of its length."""
    if len(text) > most:
        return f"{printable(text[:most])}{_note(text)}"
    return text if text.isprintable() else printable(text)


def several_lines(text: str, most: int = TEXT_MAX) -> str:
    """The text with its lines and tabs; of a long one its beginning and its end, with a note between."""
    if len(text) > most:
        half = most // 2
        return f"{_clean(text[:half])}\n{_note(text).strip()}\n{_clean(text[-half:])}"
    return _clean(text)


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() or char in "\n\t" else " " for char in text.replace("\r\n", "\n"))


def _note(text: str) -> str:
    return f" … (cut: {len(text):,} characters; ftctl events has the whole text)"

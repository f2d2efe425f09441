"""Text of the log for a report: cut to a length, without characters that control a terminal or the order of writing."""

from ftcore.replay.report.limits import LINE_MAX, TEXT_MAX
from ftcore.wording import printable


def line(text: str, most: int = LINE_MAX) -> str:
    """The text on one line, cut to ``most`` characters with a note of its length."""
    return printable(text[: 4 * most]) if len(text) <= most else f"{printable(text[:most])}{_note(text)}"


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

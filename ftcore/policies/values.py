"""Options of policies: from what a file says to values, by their kind.

House rule: a value that is taken means what it looks like. ``yes`` is no truth, ``"5"`` no number, a fraction no whole
number; the message names what would be right.
"""

import re
from collections.abc import Mapping
from typing import Any

from ftcore.policies.base import Option
from ftcore.policies.yaml_nodes import Items, Keys, Node, Problems, Scalar, did_you_mean, found, plain, short
from ftcore.wording import format_duration

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
DURATION_PATTERN = r"([0-9]{1,15}(\.[0-9]{1,9})? ?(ms|s|m|h|d)?|([0-9]{1,9}[dhms]){2,4})"
"""Shared with the schema for editors, which takes the parts of a duration in any order."""

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)?")
_IN_PARTS = re.compile(r"(?=[0-9])(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")

TEXT_CHARS_MAX = 4096
"""Of one option; it goes into the log."""

EXPECTED = {
    "int": "a whole number",
    "number": "a number",
    "duration": "a duration such as 30, 90s, 5m or 1h30m",
    "bool": "true or false",
    "choice": "one of the words that its meaning names",
    "text": "text",
    "texts": "a list of texts",
}


def defaults(options: Mapping[str, Option]) -> dict[str, Any]:
    """Every option with its default, as JSON has the values: a list for ``texts``, seconds for a duration."""
    return {key: _as_kind(option.default, option.kind) for key, option in options.items()}


def read_option(node: Node, where: str, option: Option, problems: Problems) -> Any:
    """The value of an option.

    Args:
        node: what the file has.
        where: whose option it is and its name, for messages.
        option: its declaration.
        problems: receives what is wrong.

    Returns:
        The value; None if something is wrong.
    """
    value = _convert(node, option)
    if option.kind == "texts" and option.choices and isinstance(value, list):
        wrong = [item for item in node.items if plain(item) not in option.choices] if isinstance(node, Items) else []
        for item in wrong:
            near = did_you_mean(str(plain(item)), option.choices)
            problems.add(item.line, f"{where}: {found(item)} is not known{near}")
        return None if wrong else value
    if value is None:
        what = f"one of: {', '.join(option.choices)}" if option.kind == "choice" else EXPECTED[option.kind]
        hint = ""
        if option.kind == "choice" and isinstance(node, Scalar) and isinstance(node.value, str):
            hint = did_you_mean(node.value, option.choices) if len(option.choices) > 1 else ""
            hint = hint if "did you mean" in hint else ""
        problems.add(node.line, f"{where}: found {found(node)}; expected {what}{hint}")
        return None
    if option.kind in ("int", "number", "duration"):
        if value < option.minimum or (option.maximum is not None and value > option.maximum):
            told = format_duration if option.kind == "duration" else "{:.12g}".format
            upper = f" and at most {told(option.maximum)}" if option.maximum is not None else ""
            problems.add(node.line, f"{where}: found {found(node)}; expected at least {told(option.minimum)}{upper}")
            return None
    else:
        texts = value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and len(text) > TEXT_CHARS_MAX for text in texts):
            problems.add(node.line, f"{where}: found a text longer than {TEXT_CHARS_MAX} characters")
            return None
    return value


def words(node: Node, where: str, known: Mapping[str, str], problems: Problems) -> tuple[str, ...] | None:
    """A list of words out of a known set, each at most once.

    Args:
        node: what the file has; a single word is a list of one.
        where: for messages.
        known: the words; a value that is not empty says why the word is not allowed here.
        problems: receives what is wrong.
    """
    items = node.items if isinstance(node, Items) else [node]
    if isinstance(node, Keys) or not items or (isinstance(node, Scalar) and node.value is None):
        problems.add(node.line, f"{where}: found {found(node)}; expected a list of: {', '.join(known)}")
        return None
    taken: list[str] = []
    before = len(problems)
    for item in items:
        word = item.value if isinstance(item, Scalar) else None
        if not isinstance(word, str):
            problems.add(item.line, f"{where}: found {found(item)}; expected a word of: {', '.join(known)}")
        elif word not in known:
            problems.add(item.line, f"{where}: {short(word)} is not known{did_you_mean(word, known)}")
        elif known[word]:
            problems.add(item.line, f"{where}: {word}: {known[word]}")
        elif word in taken:
            problems.add(item.line, f"{where}: {word} stands there twice")
        else:
            taken.append(word)
    return tuple(taken) if len(problems) == before else None


def _as_kind(value: Any, kind: str) -> Any:
    if kind in ("duration", "number"):
        return float(value)
    return list(value) if kind == "texts" else value


def _convert(node: Node, option: Option) -> Any:
    """The value in its kind; None if it is of another one."""
    if option.kind == "texts":
        if not isinstance(node, Items):
            return None
        texts = [item.value if isinstance(item, Scalar) else None for item in node.items]
        return texts if all(isinstance(text, str) for text in texts) else None
    if not isinstance(node, Scalar):
        return None
    value = node.value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match option.kind:
        case "duration":
            return _seconds(value) if not isinstance(value, bool) and value is not None else None
        case "number":
            return float(value) if is_number and value is not None else None
        case "int":
            return int(value) if is_number and value is not None and float(value).is_integer() else None
        case "bool":
            return value if isinstance(value, bool) else None
        case "choice":
            return value if isinstance(value, str) and value in option.choices else None
        case _:
            return value if isinstance(value, str) else None


def _seconds(value: int | float | str) -> float | None:
    if not isinstance(value, str):
        return float(value) if 0 <= value <= 1e15 else None
    return duration(value)


def duration(text: str) -> float | None:
    """Seconds of a duration: ``300``, ``90s``, ``1.5h``, ``1h30m``, the largest unit first; None if it is none."""
    single = _DURATION.fullmatch(text)
    if single is not None:
        return float(single[1]) * UNITS[single[2] or "s"]
    parts = _IN_PARTS.fullmatch(text)
    if parts is None:
        return None
    return sum(float(count) * UNITS[unit] for unit, count in zip("dhms", parts.groups(), strict=True) if count)

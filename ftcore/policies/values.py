"""Options of policies: from what a file says to values, by their kind.

House rule: a value that is taken means what it looks like. ``yes`` is no truth, ``"5"`` no number, a fraction no whole
number; the message names what would be right.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ftcore.policies.options import TEXT_CHARS_MAX, Option
from ftcore.policies.yaml_nodes import Items, Keys, Node, Problems, Scalar, did_you_mean, found, plain, short
from ftcore.wording import format_duration

DURATION_MAX_S = 1e15
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_DURATION = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d)?")
_IN_PARTS = re.compile(r"(?=[0-9])(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")

KINDS: Mapping[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "number": (float, "a number"),
    "duration": (float, "a duration such as 30, 90s, 5m or 1h30m"),
    "bool": (bool, "true or false"),
    "choice": (str, "one of the words that its meaning names"),
    "text": (str, "text"),
    "texts": (list[str], "a list of texts"),
}
"""By kind of option, its type in a file, and what a message expects."""


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
    kind, expected = KINDS[option.kind]
    try:
        value = msgspec.convert(_plain(node, option.kind), kind)
    except msgspec.ValidationError:
        value = None
    if value is None or (option.kind == "choice" and value not in option.choices):
        near = did_you_mean(value, option.choices) if isinstance(value, str) else ""
        hint = near if "did you mean" in near else ""
        expected = f"one of: {', '.join(option.choices)}" if option.kind == "choice" else expected
        problems.add(node.line, f"{where}: found {found(node)}; expected {expected}{hint}")
        return None
    if option.kind in ("int", "number", "duration"):
        if not option.minimum <= value <= (math.inf if option.maximum is None else option.maximum):
            told = format_duration if option.kind == "duration" else "{:.12g}".format
            upper = f" and at most {told(option.maximum)}" if option.maximum is not None else ""
            problems.add(node.line, f"{where}: found {found(node)}; expected at least {told(option.minimum)}{upper}")
            return None
    elif option.kind == "texts" and option.choices and isinstance(node, Items):
        wrong = [item for item in node.items if plain(item) not in option.choices]
        for item in wrong:
            near = did_you_mean(str(plain(item)), option.choices)
            problems.add(item.line, f"{where}: {found(item)} is not known{near}")
        return None if wrong else value
    elif any(len(text) > TEXT_CHARS_MAX for text in (value if option.kind == "texts" else [str(value)])):
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


def _plain(node: Node, kind: str) -> object:
    """What stands at a node, a number of any kind as its type has it."""
    value = plain(node)
    if kind == "duration" and isinstance(value, str):
        return duration(value)
    if kind == "duration" and isinstance(value, int | float) and not 0 <= value <= DURATION_MAX_S:
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value  # YAML has 1e9 for a float


def duration(text: str) -> float | None:
    """Seconds of a duration: ``300``, ``90s``, ``1.5h``, ``1h30m``, the largest unit first; None if it is none."""
    single = _DURATION.fullmatch(text)
    if single is not None:
        return float(single[1]) * UNITS[single[2] or "s"]
    parts = _IN_PARTS.fullmatch(text)
    if parts is None:
        return None
    return sum(float(count) * UNITS[unit] for unit, count in zip("dhms", parts.groups(), strict=True) if count)

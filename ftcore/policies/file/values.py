"""Parse the values of options in a policy file.

There are no implicit conversions: ``yes`` is not a boolean, ``"5"`` not a number, and 0.5 not an integer.
"""

import math
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import msgspec

from ftcore.policies.file.durations import duration
from ftcore.policies.file.yaml_nodes import (
    MappingNode,
    Node,
    Problems,
    ScalarNode,
    SequenceNode,
    did_you_mean,
    found,
    plain,
    short,
)
from ftcore.policies.options import TEXT_CHARS_MAX, Option
from ftcore.wording import format_bytes, format_duration

DURATION_MAX_S = 1e15
SIZES = {
    f"{prefix}{i}B": base**power for i, base in (("i", 1024), ("", 1000)) for power, prefix in enumerate("KMGTP", 1)
}

_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([KMGTP]i?B)")

KINDS: Mapping[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "number": (float, "a number"),
    "duration": (float, "a duration such as 30, 90s, 5m or 1h30m"),
    "size": (int, "a size such as 500MiB, 200GiB or 1.5TB, or a number of bytes"),
    "bool": (bool, "true or false"),
    "choice": (str, "one of the accepted values"),
    "text": (str, "text"),
    "texts": (list[str], "a list of texts"),
}
"""By kind of option: its type in a file, and the expected value for messages."""

_SHOWN: Mapping[str, Callable[[float], str]] = {
    "duration": format_duration,
    "size": lambda count: format_bytes(int(count)),
}


def read_option(node: Node, where: str, option: Option, problems: Problems) -> Any:
    """Parse the value of an option.

    Args:
        node: the value in the file.
        where: policy and option, for messages.
        option: the declaration of the option.
        problems: receives the errors.

    Returns:
        The value; None if it is invalid.
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
    if option.kind in ("int", "number", "duration", "size"):
        if not option.minimum <= value <= (math.inf if option.maximum is None else option.maximum):
            show = _SHOWN.get(option.kind, "{:.12g}".format)
            upper = f" and at most {show(option.maximum)}" if option.maximum is not None else ""
            problems.add(node.line, f"{where}: found {found(node)}; expected at least {show(option.minimum)}{upper}")
            return None
    elif option.kind == "texts" and option.choices and isinstance(node, SequenceNode):
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
    """Parse a list of distinct words from a known set; None if it is invalid.

    Args:
        node: the value in the file; a single word counts as a list.
        where: the key, for messages.
        known: the known words; a non-empty value says why the word is not accepted here.
        problems: receives the errors.
    """
    items = node.items if isinstance(node, SequenceNode) else [node]
    if isinstance(node, MappingNode) or not items or (isinstance(node, ScalarNode) and node.value is None):
        problems.add(node.line, f"{where}: found {found(node)}; expected a list of: {', '.join(known)}")
        return None
    taken: list[str] = []
    before = len(problems)
    for item in items:
        word = item.value if isinstance(item, ScalarNode) else None
        if not isinstance(word, str):
            problems.add(item.line, f"{where}: found {found(item)}; expected a word of: {', '.join(known)}")
        elif word not in known:
            problems.add(item.line, f"{where}: {short(word)} is not known{did_you_mean(word, known)}")
        elif known[word]:
            problems.add(item.line, f"{where}: {word}: {known[word]}")
        elif word in taken:
            problems.add(item.line, f"{where}: {word} occurs twice")
        else:
            taken.append(word)
    return tuple(taken) if len(problems) == before else None


def _plain(node: Node, kind: str) -> object:
    """The plain value of a node, converted to the number type of the option's kind."""
    value = plain(node)
    if kind == "duration" and isinstance(value, str):
        return duration(value)
    if kind == "size" and isinstance(value, str):
        return size(value)
    if kind == "duration" and isinstance(value, int | float) and not 0 <= value <= DURATION_MAX_S:
        return None
    return int(value) if isinstance(value, float) and value.is_integer() else value  # YAML reads 1e9 as a float


def size(text: str) -> int | None:
    """Parse a size to bytes: ``500MiB``, ``200 GiB``, ``1.5TB``; None if it is invalid."""
    found = _SIZE.fullmatch(text)
    return int(Fraction(found[1]) * SIZES[found[2]]) if found is not None else None

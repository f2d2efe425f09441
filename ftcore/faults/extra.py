"""Rules of a job's own: from its policy file, or from an entry point. They are read before the built-in ones.

A rule as it stands in YAML::

    faults:
      rules:
        - name: licence                  # default: rule-1, rule-2, ...
          pattern: licence server .* unreachable   # RE2, searched for in each line; required
          class: config-env              # a class of the taxonomy; required
          detail: licence                # default: the name
          role: root                     # root (default), collateral or unknown
          action: wait                   # default: what the class recommends
          reason: the licence server is restarted at noon
          example: "licence server lic01 unreachable"   # if given, the pattern must find it

House rule: whatever stands in the file, it ends as rules or as one ``UsageError`` that names the place.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ftcore.errors import UsageError
from ftcore.faults.pattern import Pattern, check, to_bytes
from ftcore.faults.rule import COLLATERAL, EXTRA_WEIGHT, ROLES, ROOT, Rule
from ftcore.faults.taxonomy import Action, FaultClass

RULES_MAX = 200
TEXT_CHARS_MAX = 500
KEYS = ("name", "pattern", "class", "detail", "role", "action", "reason", "example")
NOT_FOR_RULES = (FaultClass.NODE_LOST, FaultClass.REQUEST)
"""Classes that no line of text can speak for."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def extra_rules(items: Sequence[Any], where: str) -> tuple[Rule, ...]:
    """Read rules as YAML or an entry point gave them.

    Args:
        items: one mapping to a rule, in order of precedence; see the module for its keys.
        where: named in errors, as ``policy.yaml: faults.rules``.

    Raises:
        UsageError: an item cannot be used; names its place, what was found and what was expected.
    """
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        raise UsageError(f"{where}: found {_kind(items)}, expected a list of rules")
    if len(items) > RULES_MAX:
        raise UsageError(f"{where}: {len(items)} rules; at most {RULES_MAX} are taken")
    rules: list[Rule] = []
    for index, item in enumerate(items):
        rules.append(_rule(item, f"{where}[{index}]", f"rule-{index + 1}"))
    names = [rule.name for rule in rules]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f"{where}[{index}]: the name {name!r} is taken by {where}[{names.index(name)}]")
    return tuple(rules)


def _rule(item: Any, where: str, default_name: str) -> Rule:
    if not isinstance(item, Mapping):
        raise UsageError(f"{where}: found {_kind(item)}, expected a rule with the keys pattern and class")
    for key in item:
        if key not in KEYS:
            raise UsageError(f"{where}: unknown key {key!r}{_near(str(key), KEYS)}; known: {', '.join(KEYS)}")
    for key in ("pattern", "class"):
        if key not in item:
            raise UsageError(f"{where}: the key {key!r} is missing")
    texts = {key: _text(item[key], f"{where}.{key}") for key in item}
    name = texts.get("name", default_name)
    if _NAME.fullmatch(name) is None:
        raise UsageError(f"{where}.name: {name!r} is no name: expected letters, digits, '.', '_' and '-', at most 64")
    check(texts["pattern"], f"{where}.pattern")
    role = _one_of(texts.get("role", ROOT), ROLES, f"{where}.role")
    classes = [str(cls) for cls in FaultClass if cls not in NOT_FOR_RULES]
    action = texts.get("action")
    example = texts.get("example", "")
    if example and Pattern(texts["pattern"]).groups(to_bytes(example)) is None:
        raise UsageError(f"{where}.example: the pattern {texts['pattern']!r} does not find {example!r}")
    return Rule(
        name=name,
        pattern=texts["pattern"],
        cls=FaultClass(_one_of(texts["class"], classes, f"{where}.class")),
        detail=texts.get("detail", name),
        role=role,
        weight=20 if role == COLLATERAL else EXTRA_WEIGHT,
        reason=texts.get("reason", f"rule {name} of the job"),
        example=example,
        action=Action(_one_of(action, [str(a) for a in Action], f"{where}.action")) if action is not None else None,
        live=True,
    )


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{where}: found {_kind(value)}, expected text; put it into quotes")
    if where.endswith(".pattern"):
        return value
    if len(value) > TEXT_CHARS_MAX or "\n" in value or not value.isprintable():
        raise UsageError(f"{where}: expected one printable line of at most {TEXT_CHARS_MAX} characters")
    return value


def _one_of(value: str, known: Sequence[str], where: str) -> str:
    if value not in known:
        raise UsageError(f"{where}: unknown {value!r}{_near(value, known)}; known: {', '.join(known)}")
    return value


def _near(value: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(value, known, n=1)
    return f", did you mean {near[0]!r}?" if near else ""


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, list | tuple):
        return "a list"
    return f"{str(value)[:40]} ({type(value).__name__})"

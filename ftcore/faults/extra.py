"""Custom rules of a job, from its policy file or from an entry point. They precede the built-in rules.

A rule in YAML::

    faults:
      rules:
        - name: licence                  # default: rule-1, rule-2, ...
          pattern: licence server .* unreachable   # RE2 syntax, searched for in each line; required
          class: config-env              # a class of the taxonomy; required
          detail: licence                # default: the name
          role: root                     # root (default), collateral or unknown
          action: wait                   # default: the usual action of the class
          reason: the licence server is restarted at noon
          example: "licence server lic01 unreachable"   # if given, the pattern must match it

Invalid rules are refused with a ``UsageError`` that names the place in the file.
"""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from ftcore.errors import UsageError
from ftcore.faults.pattern import Pattern, check, to_bytes
from ftcore.faults.rule import COLLATERAL, EXTRA_WEIGHT, ROLES, ROOT, Rule
from ftcore.faults.taxonomy import FaultClass, Remedy

RULES_MAX = 200
TEXT_CHARS_MAX = 500
KEYS = ("name", "pattern", "class", "detail", "role", "action", "reason", "example")
NOT_FOR_RULES = (FaultClass.NODE_LOST, FaultClass.REQUEST)
"""Classes that no line of text is evidence for."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

_VALUES: Mapping[str, Sequence[str]] = {
    "role": ROLES,
    "class": [str(cls) for cls in FaultClass if cls not in NOT_FOR_RULES],
    "action": [str(action) for action in Remedy],
}
"""Accepted values of the keys that have a fixed set of values."""


ORDINARY = (
    "step 1200 loss 2.3142 grad_norm 0.81 lr 3.0e-04",
    "[rank0]: iteration 500/ 10000 | elapsed time per iteration (ms): 812.3 | lm loss: 2.1E+00",
    "2026-01-05 10:22:31,114 INFO trainer: epoch 3 begins",
    "INFO:root:saving checkpoint to /data/run7/step_2000.pt",
    "saved checkpoint in 12.4 s",
    "Epoch 1:  42%|####2     | 420/1000 [05:12<07:11,  1.34it/s, loss=2.11]",
    "I0105 10:22:31.114000 4121 torch/distributed/run.py:651] Starting elastic_operator",
    "W0105 10:22:31.114000 4121 torch/distributed/run.py:851] Setting OMP_NUM_THREADS to 1",
    "node-3:4121:4190 [0] NCCL INFO Connected all rings",
    "{'loss': 2.31, 'learning_rate': 0.0003, 'epoch': 1.2}",
    "throughput: 3121.4 tokens/s/gpu, mfu 41.2%",
    "validation perplexity 11.2",
    "Loading dataset shards: done",
    "world size: 64, seed: 1234",
    "tensor([0.1, 0.2], device='cuda:0')",
    "Training finished",
)
"""Lines of a normal training log, as frameworks write them."""
ORDINARY_SHARE_MAX = 0.4


@attrs.frozen
class Mistake:
    """A mistake in a rule.

    Args:
        index: index of the rule; -1: all rules.
        key: the key with the mistake; empty: the rule as a whole.
        text: the message: the place, what was found and what was expected.
    """

    index: int
    key: str
    text: str


def extra_rules(items: Sequence[Any], where: str) -> tuple[Rule, ...]:
    """Read rules from YAML or an entry point.

    Args:
        items: one mapping for each rule, in order of precedence; see the module for its keys.
        where: place named in errors, for example ``policy.yaml: faults.rules``.

    Raises:
        UsageError: an item is invalid; the message names its place, what was found and what was expected.
    """
    for mistake in mistakes(items, where):
        raise UsageError(mistake.text)
    return tuple(_rule(item, _default_name(index)) for index, item in enumerate(items))


def mistakes(items: Sequence[Any], where: str) -> list[Mistake]:
    """Return all mistakes in rules; empty if ``extra_rules``, which has the same arguments, accepts them."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        return [Mistake(-1, "", f"{where}: found {_kind(items)}, expected a list of rules")]
    if len(items) > RULES_MAX:
        return [Mistake(-1, "", f"{where}: found {len(items)} rules, expected at most {RULES_MAX}")]
    found: list[Mistake] = []
    names: dict[str, int] = {}
    for index, item in enumerate(items):
        found += [Mistake(index, key, f"{where}[{index}]{text}") for key, text in _mistakes(item)]
        name = item.get("name", _default_name(index)) if isinstance(item, Mapping) else _default_name(index)
        first = names.setdefault(name, index) if isinstance(name, str) else index
        if first != index:
            text = f"{where}[{index}]: the name {name!r} is already used by {where}[{first}]"
            found.append(Mistake(index, "name", text))
    return found


def _default_name(index: int) -> str:
    return f"rule-{index + 1}"


def _mistakes(item: Any) -> Iterator[tuple[str, str]]:
    """Yield keys with their mistakes; each text follows the place of the rule."""
    if not isinstance(item, Mapping):
        yield "", f": found {_kind(item)}, expected a rule with the keys pattern and class"
        return
    for key in item:
        if key not in KEYS:
            yield str(key), f": unknown key {key!r}{_near(str(key), KEYS)}; known: {', '.join(KEYS)}"
    for key in ("pattern", "class"):
        if key not in item:
            yield "", f": the key {key!r} is missing"
    texts: dict[str, str] = {}
    for key in (key for key in KEYS if key in item):
        text = _text_mistake(key, item[key]) or _value_mistake(key, item[key])
        if text:
            yield key, f".{key}: {text}"
        else:
            texts[key] = item[key]
    if "pattern" in texts and (share := _ordinary_share(texts["pattern"])) > ORDINARY_SHARE_MAX:
        yield (
            "pattern",
            f".pattern: {texts['pattern']!r} matches {share:.0%} of the lines of a normal training log, each of which "
            "would be read as a fault; make it more specific",
        )
    example = texts.get("example", "")
    if example and "pattern" in texts and Pattern(texts["pattern"]).groups(to_bytes(example)) is None:
        yield "example", f".example: the pattern {texts['pattern']!r} does not match {example!r}"


def _ordinary_share(pattern: str) -> float:
    """Return the share of the lines of a normal log that a pattern matches."""
    search = Pattern(pattern)
    return sum(search.groups(to_bytes(line)) is not None for line in ORDINARY) / len(ORDINARY)


def _rule(item: Mapping[str, str], default_name: str) -> Rule:
    name = item.get("name", default_name)
    role = item.get("role", ROOT)
    return Rule(
        name=name,
        pattern=item["pattern"],
        cls=FaultClass(item["class"]),
        detail=item.get("detail", name),
        role=role,
        weight=20 if role == COLLATERAL else EXTRA_WEIGHT,
        reason=item.get("reason", f"custom rule {name}"),
        example=item.get("example", ""),
        action=Remedy(item["action"]) if "action" in item else None,
        live=True,
    )


def _text_mistake(key: str, value: Any) -> str:
    """Return why a value is not a text that the key accepts; empty if it is."""
    if not isinstance(value, str):
        return f"found {_kind(value)}, expected text; put it into quotes"
    if key != "pattern" and (len(value) > TEXT_CHARS_MAX or "\n" in value or not value.isprintable()):
        return f"expected one printable line of at most {TEXT_CHARS_MAX} characters"
    return ""


def _value_mistake(key: str, value: str) -> str:
    """Return why a key does not accept a text; empty if it does."""
    known = _VALUES.get(key)
    if known is not None and value not in known:
        return f"unknown {value!r}{_near(value, known)}; known: {', '.join(known)}"
    if key == "name" and _NAME.fullmatch(value) is None:
        return f"{value!r} is not a valid name: expected letters, digits, '.', '_' and '-', at most 64 characters"
    if key == "pattern":
        try:
            check(value, "")
        except UsageError as error:
            return str(error).removeprefix(": ")
    return ""


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

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

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

_WORDS: Mapping[str, Sequence[str]] = {
    "role": ROLES,
    "class": [str(cls) for cls in FaultClass if cls not in NOT_FOR_RULES],
    "action": [str(action) for action in Action],
}
"""What the keys take that take words."""


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
"""Lines of a log in which nothing went wrong, as frameworks write them."""
ORDINARY_SHARE_MAX = 0.4


@attrs.frozen
class Mistake:
    """What is wrong with a rule.

    Args:
        index: its place among the rules; -1: it is about all of them.
        key: the key that has it; empty: it is about the rule as a whole.
        text: its place, what was found and what was expected.
    """

    index: int
    key: str
    text: str


def extra_rules(items: Sequence[Any], where: str) -> tuple[Rule, ...]:
    """Read rules as YAML or an entry point gave them.

    Args:
        items: one mapping to a rule, in order of precedence; see the module for its keys.
        where: named in errors, as ``policy.yaml: faults.rules``.

    Raises:
        UsageError: an item cannot be used; names its place, what was found and what was expected.
    """
    for mistake in mistakes(items, where):
        raise UsageError(mistake.text)
    return tuple(_rule(item, _default_name(index)) for index, item in enumerate(items))


def mistakes(items: Sequence[Any], where: str) -> list[Mistake]:
    """Everything that is wrong with rules; empty if ``extra_rules`` takes them. For the arguments see there."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
        return [Mistake(-1, "", f"{where}: found {_kind(items)}, expected a list of rules")]
    if len(items) > RULES_MAX:
        return [Mistake(-1, "", f"{where}: {len(items)} rules; at most {RULES_MAX} are taken")]
    found: list[Mistake] = []
    names: dict[str, int] = {}
    for index, item in enumerate(items):
        found += [Mistake(index, key, f"{where}[{index}]{text}") for key, text in _mistakes(item)]
        name = item.get("name", _default_name(index)) if isinstance(item, Mapping) else _default_name(index)
        first = names.setdefault(name, index) if isinstance(name, str) else index
        if first != index:
            text = f"{where}[{index}]: the name {name!r} is taken by {where}[{first}]"
            found.append(Mistake(index, "name", text))
    return found


def _default_name(index: int) -> str:
    return f"rule-{index + 1}"


def _mistakes(item: Any) -> Iterator[tuple[str, str]]:
    """Keys and what is wrong with them, behind the place of the rule."""
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
        text = _no_text(key, item[key]) or _wrong_word(key, item[key])
        if text:
            yield key, f".{key}: {text}"
        else:
            texts[key] = item[key]
    if "pattern" in texts and (share := _ordinary_share(texts["pattern"])) > ORDINARY_SHARE_MAX:
        yield (
            "pattern",
            f".pattern: {texts['pattern']!r} is found in {share:.0%} of the lines of an ordinary training log, each of "
            "which would be taken for a fault; make it say more",
        )
    example = texts.get("example", "")
    if example and "pattern" in texts and Pattern(texts["pattern"]).groups(to_bytes(example)) is None:
        yield "example", f".example: the pattern {texts['pattern']!r} does not find {example!r}"


def _ordinary_share(pattern: str) -> float:
    """The share of ordinary lines that a pattern is found in."""
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
        reason=item.get("reason", f"rule {name} of the job"),
        example=item.get("example", ""),
        action=Action(item["action"]) if "action" in item else None,
        live=True,
    )


def _no_text(key: str, value: Any) -> str:
    """Why a value is not the text that the key takes; empty if it is."""
    if not isinstance(value, str):
        return f"found {_kind(value)}, expected text; put it into quotes"
    if key != "pattern" and (len(value) > TEXT_CHARS_MAX or "\n" in value or not value.isprintable()):
        return f"expected one printable line of at most {TEXT_CHARS_MAX} characters"
    return ""


def _wrong_word(key: str, value: str) -> str:
    """Why a text is none that its key takes; empty if it is."""
    known = _WORDS.get(key)
    if known is not None and value not in known:
        return f"unknown {value!r}{_near(value, known)}; known: {', '.join(known)}"
    if key == "name" and _NAME.fullmatch(value) is None:
        return f"{value!r} is no name: expected letters, digits, '.', '_' and '-', at most 64"
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

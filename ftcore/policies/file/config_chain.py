"""Parse the chain of a policy file: its entries, their options, and conflicts between them.

Every entry is parsed, even after errors in earlier ones, and every error is reported. The checks of the whole chain
ignore invalid entries, so that an error is not reported twice.
"""

from collections.abc import Mapping, Sequence

import attrs
import msgspec

from ftcore.events.policy import ChainEntry, Declared
from ftcore.events.worker import CURVES
from ftcore.faults.extra import extra_rules
from ftcore.faults.rules import RULES
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN, kinds_of, needs_of
from ftcore.policies.external import External, Offered, options_of
from ftcore.policies.file.reach import asked
from ftcore.policies.file.rules import broken_rules, clashes
from ftcore.policies.file.values import read_option, words
from ftcore.policies.file.yaml_nodes import (
    MappingNode,
    Node,
    Problems,
    ScalarNode,
    SequenceNode,
    did_you_mean,
    found,
    short,
)
from ftcore.policies.options import defaults
from ftcore.policies.targets import wrong_target
from ftcore.policies.traits import Trait, has, having

_CLASSES = dict.fromkeys(map(str, FaultClass), "")
_CHAIN_EXPECTED = "expected a list of policies, highest priority first"
_ENTRY_EXPECTED = "expected `- policy` or `- policy: {option: value}`, one policy to an entry"

COMMON_KEYS = ("faults", "optional")
"""MappingNode of every entry, in addition to its policy's options."""


@attrs.frozen(kw_only=True)
class ChainContext:
    """What is needed to parse a chain.

    Args:
        declared: section ``job`` of the file.
        external: policies of other packages by name.
        rules: rules of the file.
        offered: what else installed packages provide.
    """

    declared: Declared
    external: Mapping[str, External]
    rules: Sequence[Mapping[str, str]]
    offered: Offered


@attrs.frozen(kw_only=True)
class _EntryRead:
    """A parsed entry.

    Args:
        line: its line in the file.
        entry: the entry; None if it names no known policy.
        wrong: keys with an error.
    """

    line: int
    entry: ChainEntry | None
    wrong: frozenset[str] = frozenset()


def read_options(
    node: Node | None, base: tuple[ChainEntry, ...], context: ChainContext, problems: Problems
) -> tuple[ChainEntry, ...]:
    """The chain ``base`` with the options that the file changes."""
    if node is None or is_null(node):
        return base
    if not isinstance(node, MappingNode):
        problems.add(node.line, f"options: found {found(node)}; expected `policy: {{option: value}}` lines")
        return base
    names = [entry.policy for entry in base]
    for key, (line, _) in node.entries.items():
        if key not in names:
            problems.add(line, f"options: the chain has no {short(key)}{did_you_mean(key, names)}")
    changed = []
    for entry in base:
        if entry.policy in node.entries:
            line, options = node.entries[entry.policy]
            read = _entry(entry, line, options, context, problems)
            changed.append(read.entry or entry)
        else:
            changed.append(entry)
    return tuple(changed)


def read_chain(node: Node, context: ChainContext, problems: Problems, *, required: bool) -> tuple[ChainEntry, ...]:
    """Parse a chain; the result is valid only if no problem was added.

    Args:
        node: the value of ``chain`` in the file.
        context: the rest of the file, and installed packages.
        problems: receives the errors.
        required: entries are required unless marked optional; if false, no entry is.
    """
    if not isinstance(node, SequenceNode) or not node.items:
        problems.add(node.line, f"chain: {_CHAIN_EXPECTED}")
        return ()
    entries = [_read_entry(item, context, problems) for item in node.items]
    _check_reach(entries, problems)
    if required:
        _check_replicas(entries, context.declared, problems)
    sound = [read for read in entries if read.entry is not None and not read.wrong]
    for clash in clashes([read.entry for read in sound if read.entry is not None], context.declared):
        line = next(read.line for read in sound if read.entry is not None and read.entry.policy == clash.policy)
        problems.add(line, f"{clash.policy}: {clash.text}")
    known = (read.entry for read in entries if read.entry is not None)
    return tuple(msgspec.structs.replace(entry, required=entry.required and required) for entry in known)


def _read_entry(item: Node, context: ChainContext, problems: Problems) -> _EntryRead:
    options: Node | None = None
    if isinstance(item, ScalarNode) and isinstance(item.value, str):
        name = item.value
    elif isinstance(item, MappingNode) and (slip := _not_indented(item, problems)) is not None:
        name, options = slip
    elif isinstance(item, MappingNode) and len(item.entries) == 1:
        [(name, (_, options))] = item.entries.items()
    elif isinstance(item, MappingNode) and item.entries:
        for key, (line, value) in item.entries.items():  # to report other errors in them as well
            _read_entry(MappingNode(line=line, entries={key: (line, value)}), context, problems)
        problems.add(item.line, f"chain: found {len(item.entries)} keys in one entry; {_ENTRY_EXPECTED}")
        return _EntryRead(line=item.line, entry=None)
    else:
        problems.add(item.line, f"chain: {_ENTRY_EXPECTED}")
        return _EntryRead(line=item.line, entry=None)
    known = BUILT_IN.get(name) or context.external.get(name)
    if known is None:
        names = dict.fromkeys([*BUILT_IN, *context.external, *context.offered.names])
        problems.add(item.line, f"chain: unknown policy {short(name)}{did_you_mean(name, names)}")
        return _EntryRead(line=item.line, entry=None)
    fresh = ChainEntry(policy=name, options=defaults(options_of(name, context.external)))
    if isinstance(known, External):
        if known.error:
            problems.add(item.line, f"chain: {name}, from {known.origin}, cannot be used: {known.error}")
            return _EntryRead(line=item.line, entry=None)
        needs = tuple(map(str, known.needs))
        fresh = msgspec.structs.replace(fresh, external=known.origin, kinds=tuple(known.kinds), needs=needs)
    return _entry(fresh, item.line, options, context, problems)


def _not_indented(item: MappingNode, problems: Problems) -> tuple[str, Node] | None:
    """Detect options at the indentation of their policy; returns the policy and its options, or None."""
    if len(item.entries) < 2:
        return None
    (name, (line, first)), *rest = item.entries.items()
    if not is_null(first) or any(key in BUILT_IN for key, _ in rest):
        return None
    options = dict(rest)
    problems.add(
        rest[0][1][0],
        f"chain: {', '.join(options)} must be indented below `{short(name, quoted=False)}:`, by two spaces more",
    )
    return name, MappingNode(line=line, entries=options)


def _entry(base: ChainEntry, line: int, node: Node | None, context: ChainContext, problems: Problems) -> _EntryRead:
    """An entry with the options that the file sets; it is required unless the file marks it optional."""
    if node is None or is_null(node):
        return _EntryRead(line=line, entry=msgspec.structs.replace(base, required=True))
    name, declared = base.policy, options_of(base.policy, context.external)
    given = mapping(node, name, (*declared, *COMMON_KEYS), problems)
    if given is None:
        return _EntryRead(line=line, entry=base, wrong=frozenset(COMMON_KEYS))
    values, wrong = dict(base.options), set()
    for key, option in declared.items():
        if key in given:
            value = read_option(given[key], f"{name}: {key}", option, problems)
            if value is None or _has_unknown_words(given[key], f"{name}: {key}", option.words, context, problems):
                wrong.add(key)
            else:
                values[key] = value
    faults: tuple[str, ...] | None = base.faults
    if "faults" in given:
        faults = words(given["faults"], f"{name}: faults", _CLASSES, problems)
        wrong |= {"faults"} if faults is None else set()
    optional = given.get("optional")
    if optional is not None and not (isinstance(optional, ScalarNode) and isinstance(optional.value, bool)):
        problems.add(optional.line, f"{name}: optional: found {found(optional)}; expected true or false")
        wrong.add("optional")
    if not base.external:
        certain = {key: value for key, value in values.items() if key not in wrong}
        for key, text in broken_rules(BUILT_IN[name].options, certain, list(given)):
            problems.add(given[key].line if key else line, f"{name}: {text}")
    required = not (isinstance(optional, ScalarNode) and optional.value is True)
    entry = msgspec.structs.replace(base, options=values, faults=faults or (), required=required)
    return _EntryRead(line=line, entry=entry, wrong=frozenset(wrong))


def _has_unknown_words(node: Node, where: str, words: str, context: ChainContext, problems: Problems) -> bool:
    """Report invalid targets, or kinds of observations that no detector and no rule produces."""
    before = len(problems)
    for item in node.items if isinstance(node, SequenceNode) else ():
        word = item.value if isinstance(item, ScalarNode) and isinstance(item.value, str) else ""
        if words == "targets":
            why = wrong_target(word)
            if why:
                problems.add(item.line, f"{where}: {why}")
        elif words == "kinds" and word not in (known := _kinds(context.rules)):
            known = (*known, *context.offered.details())
            if word not in known:
                text = f"no detector and no rule reports {short(word)}{did_you_mean(word, known)}"
                problems.add(item.line, f"{where}: {text}")
    return len(problems) > before


def _kinds(rules: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Kinds of numeric observations: of detectors, and of rules for lines of output."""
    built_in = (rule.detail for rule in RULES if rule.cls is FaultClass.NUMERIC)
    return tuple(dict.fromkeys((*CURVES, *built_in, *numeric_details(rules))))


def numeric_details(rules: Sequence[Mapping[str, str]]) -> list[str]:
    """The details of numeric faults in the rules of a file or a package."""
    return [rule.detail for rule in extra_rules(rules, "rules") if rule.cls is FaultClass.NUMERIC]


def _check_reach(entries: Sequence[_EntryRead], problems: Problems) -> None:
    """Check that every entry can be asked, no class reaches a policy twice, and every incident reaches ``stop``."""
    clear = [(read.line, read.entry) for read in entries if read.entry is not None and "faults" not in read.wrong]
    lines, chain = [line for line, _ in clear], [entry for _, entry in clear]
    end = next((place for place, entry in enumerate(chain) if has(entry, Trait.ENDS) and not entry.faults), None)
    last = entries[-1]
    if end is None and last.entry is not None and "faults" not in last.wrong:
        problems.add(
            lines[-1], "chain: the last policy must be `stop`, for all faults, so that every incident is resolved"
        )
    reported: set[int] = set()
    for place in range(end + 1, len(chain)) if end is not None else ():
        reported.add(place)
        problems.add(lines[place], f"chain: {chain[place].policy} is never asked: `stop` above it takes every fault")
    reached: set[int] = set()
    for cls in FaultClass:
        seen: dict[str, int] = {}
        for place in asked(chain, str(cls)):
            reached.add(place)
            name = chain[place].policy
            first = seen.setdefault(name, place)
            if first != place and place not in reported:
                reported.add(place)
                both = f"; lines {lines[first]} and {lines[place]} are both for {cls}" if chain[place].faults else ""
                problems.add(lines[place], f"chain: {name} occurs twice; each policy is asked once{both}")
    for place, entry in enumerate(chain):
        if place not in reached | reported:
            problems.add(lines[place], f"chain: {entry.policy} is never asked: {_why_never(chain, place)}")


def _why_never(chain: Sequence[ChainEntry], place: int) -> str:
    kinds = kinds_of(chain[place])
    if having(chain[:place], Trait.ENDS):
        return f"for {', '.join(chain[place].faults) or 'all faults'} `stop` is above it"
    return f"it handles {', '.join(kinds)}, but its `faults` are {', '.join(chain[place].faults)}"


def _check_replicas(entries: Sequence[_EntryRead], declared: Declared, problems: Problems) -> None:
    """Check that replicas are declared if a required entry needs them."""
    if Ability.REPLICAS in declared.abilities:
        return
    for read in entries:
        entry = read.entry
        if (
            entry is not None
            and "optional" not in read.wrong
            and entry.required
            and Ability.REPLICAS in needs_of(entry)
        ):
            problems.add(
                read.line,
                f"{entry.policy}: needs replicas, but `job: replicas` is {declared.replicas or 'not set'}; set which "
                "ranks hold the same state (all, or groups: [[0, 4], [1, 5]]), or make the entry `optional: true`",
            )


def mapping(node: Node, where: str, known: tuple[str, ...], problems: Problems) -> dict[str, Node] | None:
    """The values of a mapping by known keys; None if the node is not a mapping. Reports unknown keys."""
    if not isinstance(node, MappingNode):
        problems.add(node.line, f"{where}: found {found(node)}; expected `key: value` lines")
        return None
    for key, (line, _) in node.entries.items():
        if key not in known:
            problems.add(line, f"{where}: unknown key {short(key)}{did_you_mean(key, known)}")
    return {key: value for key, (_, value) in node.entries.items() if key in known}


def is_null(node: Node) -> bool:
    """Whether the node has no value."""
    return isinstance(node, ScalarNode) and node.value is None

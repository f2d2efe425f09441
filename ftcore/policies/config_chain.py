"""The chain of a policy file: its entries, their options, and what cannot stand together.

House rules: every entry is read, whatever is wrong with those before it, and every mistake is told. But what is wrong
in an entry is not told a second time as a gap in the chain: there, an entry that cannot be read counts for nothing.
"""

from collections.abc import Mapping, Sequence

import attrs

from ftcore.events.policy import ChainEntry, Declared
from ftcore.events.worker import CURVES
from ftcore.faults.extra import extra_rules
from ftcore.faults.rules import RULES
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN, kinds_of, needs_of
from ftcore.policies.external import External, Offered, options_of
from ftcore.policies.options import defaults
from ftcore.policies.reach import asked
from ftcore.policies.rules import broken_rules, clashes
from ftcore.policies.targets import wrong_target
from ftcore.policies.traits import Trait, has, having
from ftcore.policies.values import read_option, words
from ftcore.policies.yaml_nodes import Items, Keys, Node, Problems, Scalar, did_you_mean, found, short

_CLASSES = dict.fromkeys(map(str, FaultClass), "")
_CHAIN_EXPECTED = "expected a list of policies, highest priority first"
_ENTRY_EXPECTED = "expected `- policy` or `- policy: {option: value}`, one policy to an entry"

COMMON_KEYS = ("faults", "optional")
"""Of every entry, beside its policy's options."""


@attrs.frozen(kw_only=True)
class Surroundings:
    """What the chain of a file is read with.

    Args:
        declared: what the file says of the job.
        external: policies that are not ftcore's, by name.
        rules: the file's own rules.
        offered: what installed packages offer beside that.
    """

    declared: Declared
    external: Mapping[str, External]
    rules: Sequence[Mapping[str, str]]
    offered: Offered


@attrs.frozen(kw_only=True)
class _Read:
    """An entry as it was read.

    Args:
        line: where it stands.
        entry: the entry; None: it names no policy.
        wrong: keys with a mistake.
    """

    line: int
    entry: ChainEntry | None
    wrong: frozenset[str] = frozenset()


def read_options(
    node: Node | None, base: tuple[ChainEntry, ...], around: Surroundings, problems: Problems
) -> tuple[ChainEntry, ...]:
    """The base's chain with the options that the file changes in it."""
    if node is None or is_null(node):
        return base
    if not isinstance(node, Keys):
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
            read = _entry(entry, line, options, around, problems)
            changed.append(read.entry or entry)
        else:
            changed.append(entry)
    return tuple(changed)


def read_chain(node: Node, around: Surroundings, problems: Problems, *, required: bool) -> tuple[ChainEntry, ...]:
    """The chain that stands at a node; worth something only if ``problems`` has nothing to tell.

    Args:
        node: what the file has.
        around: the rest of the file, and what is installed.
        problems: receives what is wrong.
        required: what is not called optional is required; else nothing is.
    """
    if not isinstance(node, Items) or not node.items:
        problems.add(node.line, f"chain: {_CHAIN_EXPECTED}")
        return ()
    entries = [_read_entry(item, around, problems) for item in node.items]
    _check_reach(entries, problems)
    if required:
        _check_replicas(entries, around.declared, problems)
    sound = [read for read in entries if read.entry is not None and not read.wrong]
    for clash in clashes([read.entry for read in sound if read.entry is not None], around.declared):
        line = next(read.line for read in sound if read.entry is not None and read.entry.policy == clash.policy)
        problems.add(line, f"{clash.policy}: {clash.text}")
    known = (read.entry for read in entries if read.entry is not None)
    return tuple(attrs.evolve(entry, required=entry.required and required) for entry in known)


def _read_entry(item: Node, around: Surroundings, problems: Problems) -> _Read:
    options: Node | None = None
    if isinstance(item, Scalar) and isinstance(item.value, str):
        name = item.value
    elif isinstance(item, Keys) and (slip := _not_indented(item, problems)) is not None:
        name, options = slip
    elif isinstance(item, Keys) and len(item.entries) == 1:
        [(name, (_, options))] = item.entries.items()
    elif isinstance(item, Keys) and item.entries:
        for key, (line, value) in item.entries.items():  # what else is wrong with them is told at once
            _read_entry(Keys(line=line, entries={key: (line, value)}), around, problems)
        problems.add(item.line, f"chain: found {len(item.entries)} keys in one entry; {_ENTRY_EXPECTED}")
        return _Read(line=item.line, entry=None)
    else:
        problems.add(item.line, f"chain: {_ENTRY_EXPECTED}")
        return _Read(line=item.line, entry=None)
    known = BUILT_IN.get(name) or around.external.get(name)
    if known is None:
        names = dict.fromkeys([*BUILT_IN, *around.external, *around.offered.names])
        problems.add(item.line, f"chain: no policy is called {short(name)}{did_you_mean(name, names)}")
        return _Read(line=item.line, entry=None)
    fresh = ChainEntry(policy=name, options=defaults(options_of(name, around.external)))
    if isinstance(known, External):
        if known.error:
            problems.add(item.line, f"chain: {name}, from {known.origin}, cannot be used: {known.error}")
            return _Read(line=item.line, entry=None)
        needs = tuple(map(str, known.needs))
        fresh = attrs.evolve(fresh, external=known.origin, kinds=tuple(known.kinds), needs=needs)
    return _entry(fresh, item.line, options, around, problems)


def _not_indented(item: Keys, problems: Problems) -> tuple[str, Node] | None:
    """The commonest slip: the options stand beside their policy, not below it. Then the policy and what was meant."""
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
    return name, Keys(line=line, entries=options)


def _entry(base: ChainEntry, line: int, node: Node | None, around: Surroundings, problems: Problems) -> _Read:
    """An entry with what the file sets in it; it is required unless the file calls it optional."""
    if node is None or is_null(node):
        return _Read(line=line, entry=attrs.evolve(base, required=True))
    name, declared = base.policy, options_of(base.policy, around.external)
    given = mapping(node, name, (*declared, *COMMON_KEYS), problems)
    if given is None:
        return _Read(line=line, entry=base, wrong=frozenset(COMMON_KEYS))
    values, wrong = dict(base.options), set()
    for key, option in declared.items():
        if key in given:
            value = read_option(given[key], f"{name}: {key}", option, problems)
            if value is None or _has_strange_words(given[key], f"{name}: {key}", option.words, around, problems):
                wrong.add(key)
            else:
                values[key] = value
    faults: tuple[str, ...] | None = base.faults
    if "faults" in given:
        faults = words(given["faults"], f"{name}: faults", _CLASSES, problems)
        wrong |= {"faults"} if faults is None else set()
    optional = given.get("optional")
    if optional is not None and not (isinstance(optional, Scalar) and isinstance(optional.value, bool)):
        problems.add(optional.line, f"{name}: optional: found {found(optional)}; expected true or false")
        wrong.add("optional")
    if not base.external:
        certain = {key: value for key, value in values.items() if key not in wrong}
        for key, text in broken_rules(BUILT_IN[name].options, certain, list(given)):
            problems.add(given[key].line if key else line, f"{name}: {text}")
    required = not (isinstance(optional, Scalar) and optional.value is True)
    entry = attrs.evolve(base, options=values, faults=faults or (), required=required)
    return _Read(line=line, entry=entry, wrong=frozenset(wrong))


def _has_strange_words(node: Node, where: str, words: str, around: Surroundings, problems: Problems) -> bool:
    """Tell of words in a list that nothing would ever answer to."""
    before = len(problems)
    for item in node.items if isinstance(node, Items) else ():
        word = item.value if isinstance(item, Scalar) and isinstance(item.value, str) else ""
        if words == "targets":
            why = wrong_target(word)
            if why:
                problems.add(item.line, f"{where}: {why}")
        elif words == "kinds" and word not in (known := _kinds(around.rules)):
            known = (*known, *around.offered.details())
            if word not in known:
                text = f"no detector and no rule tells of {short(word)}{did_you_mean(word, known)}"
                problems.add(item.line, f"{where}: {text}")
    return len(problems) > before


def _kinds(rules: Sequence[Mapping[str, str]]) -> tuple[str, ...]:
    """Kinds of observations of figures that go wrong: of detectors, and of rules for lines of output."""
    built_in = (rule.detail for rule in RULES if rule.cls is FaultClass.NUMERIC)
    return tuple(dict.fromkeys((*CURVES, *built_in, *numeric_details(rules))))


def numeric_details(rules: Sequence[Mapping[str, str]]) -> list[str]:
    """The details that rules, as a file or a package has them, give to numeric faults."""
    return [rule.detail for rule in extra_rules(rules, "rules") if rule.cls is FaultClass.NUMERIC]


def _check_reach(entries: Sequence[_Read], problems: Problems) -> None:
    """Every entry is asked about some incident, no class finds a policy twice, and every incident has an end."""
    clear = [(read.line, read.entry) for read in entries if read.entry is not None and "faults" not in read.wrong]
    lines, chain = [line for line, _ in clear], [entry for _, entry in clear]
    end = next((place for place, entry in enumerate(chain) if has(entry, Trait.ENDS) and not entry.faults), None)
    last = entries[-1]
    if end is None and last.entry is not None and "faults" not in last.wrong:
        problems.add(
            lines[-1], "chain: the last policy must be `stop`, for all faults, so that every incident has an end"
        )
    told: set[int] = set()
    for place in range(end + 1, len(chain)) if end is not None else ():
        told.add(place)
        problems.add(lines[place], f"chain: {chain[place].policy} is never asked: `stop` before it takes everything")
    reached: set[int] = set()
    for cls in FaultClass:
        seen: dict[str, int] = {}
        for place in asked(chain, str(cls)):
            reached.add(place)
            name = chain[place].policy
            first = seen.setdefault(name, place)
            if first != place and place not in told:
                told.add(place)
                both = f"; lines {lines[first]} and {lines[place]} both are for {cls}" if chain[place].faults else ""
                problems.add(lines[place], f"chain: {name} stands there twice; each policy is asked once{both}")
    for place, entry in enumerate(chain):
        if place not in reached | told:
            problems.add(lines[place], f"chain: {entry.policy} is never asked: {_why_never(chain, place)}")


def _why_never(chain: Sequence[ChainEntry], place: int) -> str:
    kinds = kinds_of(chain[place])
    if having(chain[:place], Trait.ENDS):
        return f"for {', '.join(chain[place].faults) or 'all faults'} `stop` comes before it"
    return f"it deals with {', '.join(kinds)}, which {', '.join(chain[place].faults)} is not"


def _check_replicas(entries: Sequence[_Read], declared: Declared, problems: Problems) -> None:
    """A policy that somebody named and that needs replicas needs them said."""
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
                f"{entry.policy}: needs replicas, and `job: replicas` says {declared.replicas or 'nothing'}; say which "
                "ranks hold the same state (all, or groups: [[0, 4], [1, 5]]), or make the entry `optional: true`",
            )


def mapping(node: Node, where: str, known: tuple[str, ...], problems: Problems) -> dict[str, Node] | None:
    """The values of a mapping whose keys are all known; None if it is none."""
    if not isinstance(node, Keys):
        problems.add(node.line, f"{where}: found {found(node)}; expected `key: value` lines")
        return None
    for key, (line, _) in node.entries.items():
        if key not in known:
            problems.add(line, f"{where}: unknown key {short(key)}{did_you_mean(key, known)}")
    return {key: value for key, (_, value) in node.entries.items() if key in known}


def is_null(node: Node) -> bool:
    """Nothing stands there."""
    return isinstance(node, Scalar) and node.value is None

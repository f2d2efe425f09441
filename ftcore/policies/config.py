"""The policy file: YAML, one per job, validated with line, key, what was found and what is expected.

    version: 1
    job:
      replicas: all              # which ranks hold the same state
      abilities: [save]          # what the script can do when it is told to
    chain:                       # highest priority first
      - dying_checkpoint
      - process_restart:
          max_restarts: 20
          window: 1h
      - stop

House rules: every option has a default; what is not known is an error with a suggestion, never ignored; what cannot
work together, or has no effect, is an error here, not at three in the morning. All mistakes of a file are told at once.
"""

from collections.abc import Mapping
from typing import Any

import attrs

from ftcore.errors import UsageError
from ftcore.events.codec import digest_of
from ftcore.events.policy import ChainEntry, Declared, PolicyLoaded
from ftcore.faults.extra import extra_rules
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies import presets
from ftcore.policies.base import Ability, Option
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER
from ftcore.policies.external import External
from ftcore.policies.reach import asked, kinds_of, needs_of
from ftcore.policies.rules import broken_rules, clashes
from ftcore.policies.values import defaults, read_option, words
from ftcore.policies.yaml_nodes import (
    Items,
    Keys,
    Node,
    Problem,
    Problems,
    Scalar,
    did_you_mean,
    found,
    plain,
    read_tree,
    short,
)

SCHEMA_VERSION = 1

MEANINGS: Mapping[str, str] = {
    "version": "version of this form of file; required",
    "preset": "a chain that comes with ftcore; without `preset` and `chain`, the default one",
    "job: replicas": "which ranks hold the same state: `none`, `all`, or groups of global ranks, as `[[0, 4], [1, 5]]`",
    "job: abilities": "what the script can do when it is told to",
    "job: checkpoint_every": "steps between two checkpoints, where a rollback has to find one",
    "job: checkpoints_kept": "checkpoints that are kept, the newest included",
    "faults: rules": "rules of this job's own, read before the built-in ones: see [faults](faults.md)",
    "options": "options to change in the chain of the preset, or in the default one: `policy: {option: value}`",
    "chain": "the policies in order of priority, each as `- policy` or `- policy: {option: value}`; the last is `stop`",
    "chain: POLICY: faults": "the classes of faults that this entry is asked about; default: all. A policy may stand "
    "there more than once for different classes",
    "chain: POLICY: optional": "`true`: passed over where the job cannot carry it out; default: refused at the start. "
    "Entries of presets are optional",
}
"""Every key of a policy file beside the options of policies, and what it means."""

KEYS = tuple(key for key in dict.fromkeys(key.partition(":")[0] for key in MEANINGS))
JOB_KEYS = tuple(key.removeprefix("job: ") for key in MEANINGS if key.startswith("job: "))
FAULT_KEYS = ("rules",)
COMMON_KEYS = ("faults", "optional")
"""Of every entry, beside its policy's options."""

ASKS_FOR_REPLICAS = ("mindio",)
"""Presets that are not worth their name without replicas: who chooses one has to say what there is."""

RANKS_MAX = 1 << 20
SAID_BY_SCRIPT = (
    Ability.PAUSE,
    Ability.RETRY,
    Ability.SNAPSHOT,
    Ability.PARK,
    Ability.SAVE,
    Ability.ROLLBACK,
    Ability.SKIP,
)
"""Abilities that a file may declare for the script."""

_ABILITIES: Mapping[str, str] = {
    **dict.fromkeys(map(str, SAID_BY_SCRIPT), ""),
    str(Ability.REPLICAS): "say which ranks hold the same state: `replicas: all`",
    str(Ability.REPLACE): "that is the platform's to declare",
    str(Ability.CHECK): "that is the agents' to declare",
}
_CLASSES = dict.fromkeys(map(str, FaultClass), "")
_CHAIN_EXPECTED = "expected a list of policies, highest priority first"
_ENTRY_EXPECTED = "expected `- policy` or `- policy: {option: value}`, one policy to an entry"


@attrs.frozen(kw_only=True)
class Checked:
    """What came of reading a policy file.

    Args:
        loaded: what is in force; None if there are problems.
        problems: what is wrong, by line.
    """

    loaded: PolicyLoaded | None
    problems: tuple[Problem, ...]


def default_chain(max_restarts: int | None = None) -> PolicyLoaded:
    """The chain of a job without a policy file.

    Args:
        max_restarts: ``--max-restarts``, if it was given.
    """
    chain = tuple(ChainEntry(policy=name, options=defaults(BUILT_IN[name].options)) for name in DEFAULT_ORDER)
    loaded = PolicyLoaded(source="default", text="", digest=digest_of(b""), chain=chain)
    return loaded if max_restarts is None else with_max_restarts(loaded, max_restarts)


def with_max_restarts(loaded: PolicyLoaded, max_restarts: int) -> PolicyLoaded:
    """The same chain with another budget for ``process_restart``; the command line wins over the file.

    Raises:
        UsageError: the chain has no ``process_restart``.
    """
    if all(entry.policy != "process_restart" for entry in loaded.chain):
        raise UsageError(f"--max-restarts has no effect: the chain of {loaded.source} has no process_restart")
    chain = tuple(
        attrs.evolve(entry, options={**entry.options, "max_restarts": max_restarts})
        if entry.policy == "process_restart"
        else entry
        for entry in loaded.chain
    )
    return attrs.evolve(loaded, source=f"{loaded.source} with --max-restarts {max_restarts}", chain=chain)


def parse(text: str, source: str, *, external: Mapping[str, External] | None = None) -> PolicyLoaded:
    """Read and validate a policy file.

    Args:
        text: the file's content.
        source: its name, for messages and the log.
        external: policies that are not ftcore's and that the chain may name, by name.

    Raises:
        UsageError: one message with file, line, key, what was found and what is expected.
    """
    problems = Problems(source)
    loaded = _read(text, problems, external or {})
    if loaded is None:
        raise problems.error()
    return loaded


def check(text: str, source: str, *, external: Mapping[str, External] | None = None) -> Checked:
    """As ``parse``, but with the mistakes one by one."""
    problems = Problems(source)
    loaded = _read(text, problems, external or {})
    return Checked(loaded=loaded, problems=tuple(problems))


def preset(name: str) -> PolicyLoaded:
    """What a preset has in force; none of its entries is required.

    Raises:
        UsageError: there is no such preset.
    """
    if name == presets.DEFAULT:
        return attrs.evolve(default_chain(), source=f"preset {name}")
    if name not in presets.names():
        raise UsageError(f"no preset is called {short(name)}{did_you_mean(name, presets.names())}")
    problems = Problems(f"preset {name}")
    loaded = _read(presets.text(name), problems, {}, required=False)
    if loaded is None:
        raise problems.error()
    return loaded


def _read(
    text: str, problems: Problems, external: Mapping[str, External], *, required: bool = True
) -> PolicyLoaded | None:
    """What a text has in force; None if ``problems`` has something to tell.

    Args:
        text: the file's content.
        problems: receives what is wrong.
        external: policies that are not ftcore's.
        required: what stands in the chain is required unless it is called optional; else none of it is.
    """
    root = read_tree(text, problems)
    if root is None or (isinstance(root, Scalar) and root.value is None):
        if not len(problems):
            problems.add(0, f"is empty; expected at least: version: {SCHEMA_VERSION}")
        return None
    file = mapping(root, "the file", KEYS, problems)
    if file is None or not _version_is_ours(file, root, problems):
        return None
    declared = _read_job(file.get("job"), problems)
    rules = _read_faults(file.get("faults"), problems)
    base = _read_preset(file, declared, problems)
    chain = _read_options(file.get("options"), base, problems)
    if "chain" in file:
        chain = _read_chain(file["chain"], declared, problems, external, required=required)
        for key in ("preset", "options"):
            if key in file:
                problems.add(
                    file[key].line,
                    f"{key}: has no effect beside `chain`; `ftctl policy init --preset NAME` writes a preset's chain "
                    "out, to be changed",
                )
    else:
        for clash in clashes(chain, declared):
            problems.add(root.line, f"{clash.policy}: {clash.text}")
    if len(problems):
        return None
    return PolicyLoaded(
        source=problems.source,
        text=text,
        digest=digest_of(text.encode()),
        chain=chain,
        declared=declared,
        rules=rules,
    )


def _version_is_ours(file: Mapping[str, Node], root: Node, problems: Problems) -> bool:
    node = file.get("version")
    if node is None:
        problems.add(root.line, f"version is missing; expected version: {SCHEMA_VERSION}")
    elif not isinstance(node, Scalar) or type(node.value) is not int or node.value != SCHEMA_VERSION:
        problems.add(node.line, f"version: found {found(node)}; this ftcore reads version: {SCHEMA_VERSION}")
        return False
    return True


def mapping(node: Node, where: str, known: tuple[str, ...], problems: Problems) -> dict[str, Node] | None:
    """The values of a mapping whose keys are all known; None if it is none."""
    if not isinstance(node, Keys):
        problems.add(node.line, f"{where}: found {found(node)}; expected `key: value` lines")
        return None
    for key, (line, _) in node.entries.items():
        if key not in known:
            problems.add(line, f"{where}: unknown key {short(key)}{did_you_mean(key, known)}")
    return {key: value for key, (_, value) in node.entries.items() if key in known}


# --- job and faults --------------------------------------------------------------------------------------------------


def _read_job(node: Node | None, problems: Problems) -> Declared:
    section = mapping(node, "job", JOB_KEYS, problems) if node is not None and not _is_null(node) else None
    if section is None:
        return Declared()
    replicas, groups = _read_replicas(section["replicas"], problems) if "replicas" in section else ("", ())
    abilities: tuple[str, ...] = ()
    if "abilities" in section:
        abilities = words(section["abilities"], "job: abilities", _ABILITIES, problems) or ()
    if replicas in ("all", "groups"):
        abilities = (*abilities, str(Ability.REPLICAS))
    counts = {}
    for key in ("checkpoint_every", "checkpoints_kept"):
        value = section.get(key)
        if value is None:
            continue
        if isinstance(value, Scalar) and type(value.value) is int and value.value >= 1:
            counts[key] = value.value
        else:
            problems.add(value.line, f"job: {key}: found {found(value)}; expected a whole number from 1")
    return Declared(replicas=replicas, groups=groups, abilities=abilities, **counts)


def _read_replicas(node: Node, problems: Problems) -> tuple[str, tuple[tuple[int, ...], ...]]:
    """``none``, ``all``, or groups of ranks of which each holds the same."""
    if isinstance(node, Scalar) and node.value in ("none", "all"):
        return str(node.value), ()
    where = "job: replicas"
    if not isinstance(node, Items) or not node.items:
        problems.add(
            node.line, f"{where}: found {found(node)}; expected none, all or groups of ranks: [[0, 4], [1, 5]]"
        )
        return "", ()
    groups: list[tuple[int, ...]] = []
    first: dict[int, int] = {}
    before = len(problems)
    for item in node.items:
        ranks = plain(item)
        if not isinstance(ranks, list) or not all(type(r) is int and 0 <= r < RANKS_MAX for r in ranks):
            problems.add(item.line, f"{where}: found {short(ranks)}; expected a group of global ranks, as [0, 4]")
            continue
        if len(ranks) < 2:
            problems.add(item.line, f"{where}: {ranks} is no group: a replica takes two ranks that hold the same")
        for rank in ranks:
            if rank in first:
                problems.add(item.line, f"{where}: rank {rank} stands there twice, first in line {first[rank]}")
            first.setdefault(rank, item.line)
        groups.append(tuple(ranks))
    if len(problems) > before:
        return "", ()
    missing = next((rank for rank in range(len(first)) if rank not in first), None)
    if missing is not None:
        problems.add(node.line, f"{where}: rank {missing} is in no group, so its state is held once only")
    return "groups", tuple(groups)


def _read_faults(node: Node | None, problems: Problems) -> tuple[dict[str, Any], ...]:
    section = mapping(node, "faults", FAULT_KEYS, problems) if node is not None and not _is_null(node) else None
    if section is None or "rules" not in section:
        return ()
    rules = section["rules"]
    if not isinstance(rules, Items):
        problems.add(rules.line, f"faults: rules: found {found(rules)}; expected a list of rules")
        return ()
    items = [plain(item) for item in rules.items]
    try:
        extra_rules(items, "faults: rules")
    except UsageError as error:
        problems.add(_line_of_rule(rules, str(error)), str(error))
        return ()
    return tuple(item for item in items if isinstance(item, dict))


def _line_of_rule(rules: Items, message: str) -> int:
    """The line of the rule that a message of ``extra_rules`` is about, which names it by its place."""
    place = message.removeprefix("faults: rules[").partition("]")[0]
    return rules.items[int(place)].line if place.isdecimal() and int(place) < len(rules.items) else rules.line


# --- the chain -------------------------------------------------------------------------------------------------------


def _read_preset(file: Mapping[str, Node], declared: Declared, problems: Problems) -> tuple[ChainEntry, ...]:
    node = file.get("preset")
    if node is None:
        return default_chain().chain
    name = node.value if isinstance(node, Scalar) else None
    if not isinstance(name, str) or name not in presets.names():
        hint = did_you_mean(name, presets.names()) if isinstance(name, str) else ""
        problems.add(node.line, f"preset: found {found(node)}; expected the name of a preset{hint}")
        return default_chain().chain
    if name in ASKS_FOR_REPLICAS and not declared.replicas:
        problems.add(
            node.line,
            f"preset: {name} rests on replicas, and nothing is said of them; expected `job: replicas:` with all, none "
            "or groups of ranks that hold the same state: [[0, 4], [1, 5]]",
        )
    return preset(name).chain


def _read_options(node: Node | None, base: tuple[ChainEntry, ...], problems: Problems) -> tuple[ChainEntry, ...]:
    """The base's chain with the options that the file changes in it."""
    if node is None or _is_null(node):
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
            changed.append(_entry(entry, line, options, problems, BUILT_IN[entry.policy].options))
        else:
            changed.append(entry)
    return tuple(changed)


def _read_chain(
    node: Node, declared: Declared, problems: Problems, external: Mapping[str, External], *, required: bool
) -> tuple[ChainEntry, ...]:
    if not isinstance(node, Items) or not node.items:
        problems.add(node.line, f"chain: {_CHAIN_EXPECTED}")
        return ()
    before = len(problems)
    read = [(item.line, _read_entry(item, problems, external)) for item in node.items]
    if len(problems) > before:  # what is wrong in an entry must not be told a second time as a gap in the chain
        return ()
    lines = [line for line, _ in read]
    chain = tuple(attrs.evolve(entry, required=entry.required and required) for _, entry in read if entry is not None)
    _check_reach(chain, lines, problems)
    _check_replicas(chain, lines, declared, problems)
    if len(problems) == before:
        for clash in clashes(chain, declared):
            line = next(line for line, entry in zip(lines, chain, strict=True) if entry.policy == clash.policy)
            problems.add(line, f"{clash.policy}: {clash.text}")
    return chain


def _read_entry(item: Node, problems: Problems, external: Mapping[str, External]) -> ChainEntry | None:
    options: Node | None = None
    if isinstance(item, Scalar) and isinstance(item.value, str):
        name = item.value
    elif isinstance(item, Keys) and len(item.entries) == 1:
        [(name, (_, options))] = item.entries.items()
    else:
        problems.add(item.line, f"chain: {_ENTRY_EXPECTED}")
        return None
    known = BUILT_IN.get(name) or external.get(name)
    if known is None:
        names = [*BUILT_IN, *external]
        problems.add(item.line, f"chain: no policy is called {short(name)}{did_you_mean(name, names)}")
        return None
    fresh = ChainEntry(policy=name, options=defaults(known.options))
    if isinstance(known, External):
        if known.error:
            problems.add(item.line, f"chain: {name}, from {known.origin}, cannot be used: {known.error}")
            return None
        needs = tuple(map(str, known.needs))
        fresh = attrs.evolve(fresh, external=known.origin, kinds=tuple(known.kinds), needs=needs)
    return _entry(fresh, item.line, options, problems, known.options)


def _entry(
    base: ChainEntry, line: int, node: Node | None, problems: Problems, declared: Mapping[str, Option]
) -> ChainEntry:
    """An entry with what the file sets in it; it is required unless the file calls it optional."""
    if node is None or _is_null(node):
        return attrs.evolve(base, required=True)
    name = base.policy
    given = mapping(node, name, (*declared, *COMMON_KEYS), problems)
    if given is None:
        return base
    before = len(problems)
    values = dict(base.options)
    for key, option in declared.items():
        if key in given:
            values[key] = read_option(given[key], f"{name}: {key}", option, problems)
    faults: tuple[str, ...] | None = base.faults
    if "faults" in given:
        faults = words(given["faults"], f"{name}: faults", _CLASSES, problems)
    optional = given.get("optional")
    if optional is not None and not (isinstance(optional, Scalar) and isinstance(optional.value, bool)):
        problems.add(optional.line, f"{name}: optional: found {found(optional)}; expected true or false")
    if len(problems) == before and not base.external:
        for key, text in broken_rules(name, values, list(given)):
            problems.add(given[key].line if key else line, f"{name}: {text}")
    required = not (isinstance(optional, Scalar) and optional.value is True)
    return attrs.evolve(base, options=values, faults=faults or (), required=required)


def _check_reach(chain: tuple[ChainEntry, ...], lines: list[int], problems: Problems) -> None:
    """Every entry is asked about some incident, no class finds a policy twice, and every incident has an end."""
    ends = [place for place, entry in enumerate(chain) if entry.policy == "stop" and not entry.faults]
    if ends and ends[0] + 1 < len(chain):
        place = ends[0] + 1
        problems.add(lines[place], f"chain: {chain[place].policy} is never asked: `stop` before it takes everything")
        return
    if not ends:
        problems.add(
            lines[-1], "chain: the last policy must be `stop`, for all faults, so that every incident has an end"
        )
        return
    reached: set[int] = set()
    for cls in FaultClass:
        seen: dict[str, int] = {}
        for place in asked(chain, str(cls)):
            name = chain[place].policy
            if name in seen:
                both = (
                    f"; lines {lines[seen[name]]} and {lines[place]} both are for {cls}" if chain[place].faults else ""
                )
                problems.add(lines[place], f"chain: {name} stands there twice; each policy is asked once{both}")
                return
            seen[name] = place
            reached.add(place)
    for place, entry in enumerate(chain):
        if place not in reached:
            problems.add(lines[place], f"chain: {entry.policy} is never asked: {_why_never(chain, place)}")


def _why_never(chain: tuple[ChainEntry, ...], place: int) -> str:
    kinds = kinds_of(chain[place])
    if any(entry.policy == "stop" for entry in chain[:place]):
        return f"for {', '.join(chain[place].faults) or 'all faults'} `stop` comes before it"
    return f"it deals with {', '.join(kinds)}, which {', '.join(chain[place].faults)} is not"


def _check_replicas(chain: tuple[ChainEntry, ...], lines: list[int], declared: Declared, problems: Problems) -> None:
    """A policy that somebody named and that needs replicas needs them said."""
    if Ability.REPLICAS in declared.abilities:
        return
    for line, entry in zip(lines, chain, strict=True):
        if entry.required and Ability.REPLICAS in needs_of(entry):
            problems.add(
                line,
                f"{entry.policy}: needs replicas, and `job: replicas` says {declared.replicas or 'nothing'}; say which "
                "ranks hold the same state (all, or groups: [[0, 4], [1, 5]]), or make the entry `optional: true`",
            )


def _is_null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None

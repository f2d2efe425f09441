"""The policy file: YAML, one per job, validated with line, key, what was found and what is expected.

    version: 1
    job:
      replicas: all              # which ranks hold the same state
      abilities: [rollback]      # what the script can do
    chain:                       # highest priority first
      - dying_checkpoint
      - process_restart:
          max_restarts: 20
          window: 1h
      - stop

Every option has a default. Unknown keys, settings that contradict each other and settings without effect are errors,
reported with a suggestion before the job starts. All errors of a file are reported at once.
"""

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from ftcore.errors import UsageError
from ftcore.events.codec import digest_of
from ftcore.events.policy import ChainEntry, Declared, DeclaredCheckpoints, DeclaredHangs, PolicyLoaded
from ftcore.faults.extra import Mistake, mistakes
from ftcore.policies.abilities import usable_abilities
from ftcore.policies.base import Ability
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER, default_entry
from ftcore.policies.external import NOTHING, External, Offered
from ftcore.policies.file import presets
from ftcore.policies.file.config_chain import ChainContext, is_null, mapping, read_chain, read_options
from ftcore.policies.file.environment import with_implied
from ftcore.policies.file.job_options import CHECKPOINTS, HANGS, HEALTH, CheckpointOptions
from ftcore.policies.file.replicas import read_replicas
from ftcore.policies.file.rules import broken_rules, clashes
from ftcore.policies.file.values import read_option, words
from ftcore.policies.file.yaml_nodes import (
    MappingNode,
    Node,
    Problem,
    Problems,
    ScalarNode,
    SequenceNode,
    did_you_mean,
    found,
    plain,
    read_tree,
    short,
)
from ftcore.policies.options import Option, defaults
from ftcore.policies.traits import Trait, has, having, traits_of

SCHEMA_VERSION = 1

MEANINGS: Mapping[str, str] = {
    "version": "version of the file format; required",
    "preset": "a chain that is part of ftcore; default without `preset` and `chain`: `default`",
    "job": "properties of the job that ftcore cannot detect",
    "job: replicas": "which ranks hold the same state: `none`, `all`, groups of global ranks, as `[[0, 4], [1, 5]]`, "
    "or the sizes from which the groups follow",
    "job: replicas: data_parallel": "number of ranks over which the batch is split; ranks that differ in nothing else "
    "are `ranks / data_parallel` apart",
    "job: replicas: optimizer_shard": "number of data-parallel ranks over which parameters or the optimizer's state "
    "are split; with 4 of 8 ranks, 0 and 4 hold the same state. A divisor of `data_parallel`, at most half of it",
    "job: abilities": "what the script can do: `rollback`, `skip`. The running script itself reports `pause`, "
    "`checkpoint`, `save`, `interval`, `retry`, `park`, `resize` and `tokens`",
    "job: checkpoint_every": "steps between two checkpoints; used to check the options of rollbacks",
    "job: checkpoints": "checkpoints that ftcore writes, as `checkpoints: {kept: 5}`",
    **{f"job: checkpoints: {key}": option.doc for key, option in CHECKPOINTS.items()},
    **{f"job: {key}": option.doc for key, option in HEALTH.items()},
    "job: hangs": "limits for hangs, as `hangs: {evaluation: 2h}`",
    **{f"job: hangs: {key}": option.doc for key, option in HANGS.items()},
    "faults": "how faults are classified",
    "faults: rules": "rules of this job, applied before the built-in ones: see [faults](faults.md)",
    "options": "options to change in the chain of the preset, or in the default one: `policy: {option: value}`",
    "chain": "the policies in order of priority, each as `- policy` or `- policy: {option: value}`; the last is `stop`",
    "chain: POLICY: faults": "the classes of faults that this entry is asked about; default: all. A policy may have "
    "several entries for different classes",
    "chain: POLICY: optional": "`true`: skip the entry if the job cannot carry it out; default: refuse to start. "
    "Entries of presets are optional",
}
"""The keys of a policy file, without the options of policies, and their descriptions."""

KEYS = tuple(key for key in dict.fromkeys(key.partition(":")[0] for key in MEANINGS))
JOB_KEYS = tuple(key.removeprefix("job: ") for key in MEANINGS if key.startswith("job: ") and key.count(":") == 1)
FAULT_KEYS = ("rules",)
ASKS_FOR_REPLICAS = ("mindio",)
"""Presets that depend on replicas: a file that uses one must set ``job: replicas``."""

SAID_BY_SCRIPT = (
    Ability.PAUSE,
    Ability.RETRY,
    Ability.PARK,
    Ability.RESIZE,
    Ability.SAVE,
    Ability.ROLLBACK,
    Ability.SKIP,
)
"""Abilities that a policy file may declare for the script."""

_ABILITIES: Mapping[str, str] = {
    **dict.fromkeys(map(str, SAID_BY_SCRIPT), ""),
    str(Ability.REPLICAS): "set which ranks hold the same state: `replicas: all`",
    str(Ability.CHECKPOINT): "the running script reports it (`ftcore.worker.on_save`)",
    str(Ability.INTERVAL): "the running script reports it (`persist_every='auto'`)",
    "snapshot": "`retry` implies it, which the running script reports",
    str(Ability.REPLACE): "only the platform can declare it",
    str(Ability.CHECK): "only the agents can declare it",
}


@attrs.frozen(kw_only=True)
class Checked:
    """The result of parsing a policy file.

    Args:
        loaded: the policies in force; None if there are problems.
        problems: the errors, by line.
    """

    loaded: PolicyLoaded | None
    problems: tuple[Problem, ...]


def default_chain(max_restarts: int | None = None) -> PolicyLoaded:
    """The chain of a job without a policy file.

    Args:
        max_restarts: value of ``--max-restarts``; None if the flag is not set.
    """
    loaded = PolicyLoaded(
        source="default", text="", digest=digest_of(b""), chain=tuple(map(default_entry, DEFAULT_ORDER))
    )
    return loaded if max_restarts is None else with_max_restarts(loaded, max_restarts)


def with_grace(loaded: PolicyLoaded, grace_s: int) -> PolicyLoaded:
    """The same chain with another time between TERM and KILL; the command line overrides the file."""
    chain = []
    for entry in loaded.chain:
        changed = dict(entry.options)
        if "grace" in changed and entry.policy in BUILT_IN and not has(entry, Trait.PARKS):
            changed["grace"] = grace_s
            if 0 < changed.get("patience", 0) < grace_s:
                changed["patience"] = grace_s  # otherwise the wait for a node ends before the workers are stopped
        chain.append(msgspec.structs.replace(entry, options=changed))
    return msgspec.structs.replace(
        loaded, source=f"{loaded.source} with --shutdown-timeout {grace_s}", chain=tuple(chain)
    )


def with_max_restarts(loaded: PolicyLoaded, max_restarts: int) -> PolicyLoaded:
    """The same chain with another budget for ``process_restart``; the command line overrides the file.

    Raises:
        UsageError: the chain has no ``process_restart``.
    """
    if not having(loaded.chain, Trait.RESTARTS):
        raise UsageError(f"--max-restarts has no effect: the chain of {loaded.source} has no process_restart")
    chain = tuple(
        msgspec.structs.replace(entry, options={**entry.options, traits_of(entry.policy).budget: max_restarts})
        if has(entry, Trait.RESTARTS)
        else entry
        for entry in loaded.chain
    )
    return msgspec.structs.replace(loaded, source=f"{loaded.source} with --max-restarts {max_restarts}", chain=chain)


def parse(
    text: str,
    source: str,
    *,
    external: Mapping[str, External] | None = None,
    offered: Offered = NOTHING,
) -> PolicyLoaded:
    """Parse and validate a policy file.

    Args:
        text: content of the file.
        source: name of the file, for messages and the log.
        external: policies of other packages that the chain may name, by name.
        offered: what else installed packages provide; used for suggestions in messages.

    Raises:
        UsageError: the file is invalid; the message has file, line, key, the value found and the values expected.
    """
    problems = Problems(source)
    loaded = _read(text, problems, external or {}, offered)
    if loaded is None:
        raise problems.error()
    return loaded


def check(
    text: str,
    source: str,
    *,
    external: Mapping[str, External] | None = None,
    offered: Offered = NOTHING,
) -> Checked:
    """Like ``parse``, but return the errors as a list."""
    problems = Problems(source)
    loaded = _read(text, problems, external or {}, offered)
    return Checked(loaded=loaded, problems=tuple(problems))


def preset(name: str) -> PolicyLoaded:
    """The policies of a preset. None of its entries is required.

    Raises:
        UsageError: unknown preset.
    """
    if name == presets.DEFAULT:
        return msgspec.structs.replace(default_chain(), source=f"preset {name}")
    if name not in presets.names():
        raise UsageError(f"unknown preset {short(name)}{did_you_mean(name, presets.names())}")
    problems = Problems(f"preset {name}")
    loaded = _read(presets.text(name), problems, {}, required=False)
    if loaded is None:
        raise problems.error()
    return loaded


def _read(
    text: str,
    problems: Problems,
    external: Mapping[str, External],
    offered: Offered = NOTHING,
    *,
    required: bool = True,
) -> PolicyLoaded | None:
    """The policies of a file; None if there are problems.

    Args:
        text: content of the file.
        problems: receives the errors.
        external: policies of other packages.
        offered: see ``parse``.
        required: entries are required unless marked optional; if false, no entry is.
    """
    root = read_tree(text, problems)
    if root is None or (isinstance(root, ScalarNode) and root.value is None):
        if not len(problems):
            problems.add(0, f"is empty; expected at least: version: {SCHEMA_VERSION}")
        return None
    file = mapping(root, "the file", KEYS, problems)
    if file is None or not _version_is_ours(file, root, problems):
        return None
    declared = _read_job(file.get("job"), problems)
    rules = _read_faults(file.get("faults"), problems)
    context = ChainContext(declared=declared, external=external, rules=rules, offered=offered)
    base = _read_preset(file, declared, problems)
    before = len(problems)
    chain = read_options(file.get("options"), base, context, problems)
    if "chain" in file:
        chain = read_chain(file["chain"], context, problems, required=required)
        for key in ("preset", "options"):
            if key in file:
                problems.add(
                    file[key].line,
                    f"{key}: has no effect together with `chain`; to edit a preset's chain, write it to a file with "
                    "`ftctl policy init --preset NAME`",
                )
    elif len(problems) == before:
        for clash in clashes(chain, declared):
            problems.add(root.line, f"{clash.policy}: {clash.text}")
    if len(problems):
        return None
    return PolicyLoaded(
        source=problems.source,
        text=text,
        digest=digest_of(text.encode()),
        chain=with_implied(chain),
        declared=declared,
        rules=rules,
    )


def _version_is_ours(file: Mapping[str, Node], root: Node, problems: Problems) -> bool:
    node = file.get("version")
    if node is None:
        problems.add(root.line, f"version is missing; expected version: {SCHEMA_VERSION}")
    elif not isinstance(node, ScalarNode) or type(node.value) is not int or node.value != SCHEMA_VERSION:
        problems.add(node.line, f"version: found {found(node)}; this ftcore reads version: {SCHEMA_VERSION}")
        return False
    return True


# --- job and faults --------------------------------------------------------------------------------------------------


def _read_job(node: Node | None, problems: Problems) -> Declared:
    section = mapping(node, "job", JOB_KEYS, problems) if node is not None and not is_null(node) else None
    if section is None:
        return Declared()
    replicas = read_replicas(section["replicas"], problems) if "replicas" in section else Declared()
    abilities: tuple[str, ...] = ()
    if "abilities" in section:
        abilities = words(section["abilities"], "job: abilities", _ABILITIES, problems) or ()
    if replicas.replicas not in ("", "none"):
        abilities = (*abilities, str(Ability.REPLICAS))
    every = section.get("checkpoint_every")
    steps = every.value if isinstance(every, ScalarNode) and type(every.value) is int else 0
    if every is not None and steps < 1:
        problems.add(every.line, f"job: checkpoint_every: found {found(every)}; expected a whole number from 1")
    able = usable_abilities(abilities)
    return msgspec.structs.replace(
        replicas,
        abilities=able,
        unsupported=tuple(ability for ability in abilities if ability not in able),
        checkpoint_every=steps,
        checkpoints=_read_checkpoints(section.get("checkpoints"), problems),
        hangs=_read_hangs(section.get("hangs"), problems),
        **_given(section, "job", HEALTH, problems),
    )


def _read_hangs(node: Node | None, problems: Problems) -> DeclaredHangs:
    section = mapping(node, "job: hangs", tuple(HANGS), problems) if node is not None and not is_null(node) else None
    return DeclaredHangs(**_given(section, "job: hangs", HANGS, problems)) if section is not None else DeclaredHangs()


def _read_checkpoints(node: Node | None, problems: Problems) -> DeclaredCheckpoints:
    where = "job: checkpoints"
    section = mapping(node, where, tuple(CHECKPOINTS), problems) if node is not None and not is_null(node) else None
    if section is None:
        return DeclaredCheckpoints()
    values = _given(section, where, CHECKPOINTS, problems)
    for key, text in broken_rules(CheckpointOptions, {**defaults(CHECKPOINTS), **values}, list(section)):
        problems.add(section[key].line, f"{where}: {text}")
    return DeclaredCheckpoints(**values)


def _given(
    section: Mapping[str, Node], where: str, options: Mapping[str, Option], problems: Problems
) -> dict[str, Any]:
    """The options that a section sets, without those that are invalid."""
    read = {
        key: read_option(section[key], f"{where}: {key}", option, problems)
        for key, option in options.items()
        if key in section
    }
    return {key: value for key, value in read.items() if value is not None}


def _read_faults(node: Node | None, problems: Problems) -> tuple[dict[str, Any], ...]:
    section = mapping(node, "faults", FAULT_KEYS, problems) if node is not None and not is_null(node) else None
    if section is None or "rules" not in section:
        return ()
    rules = section["rules"]
    if not isinstance(rules, SequenceNode):
        problems.add(rules.line, f"faults: rules: found {found(rules)}; expected a list of rules")
        return ()
    items = [plain(item) for item in rules.items]
    found_wrong = mistakes(items, "faults: rules")
    for mistake in found_wrong:
        problems.add(_line_of(mistake, rules), mistake.text)
    wrong = {mistake.index for mistake in found_wrong}
    sound = (item for index, item in enumerate(items) if index not in wrong and -1 not in wrong)
    return tuple(item for item in sound if isinstance(item, dict))


def _line_of(mistake: Mistake, rules: SequenceNode) -> int:
    """The line of the key that is wrong, of the rule that has it, or of all rules."""
    if mistake.index < 0:
        return rules.line
    rule = rules.items[mistake.index]
    return rule.entries[mistake.key][0] if isinstance(rule, MappingNode) and mistake.key in rule.entries else rule.line


def _read_preset(file: Mapping[str, Node], declared: Declared, problems: Problems) -> tuple[ChainEntry, ...]:
    node = file.get("preset")
    if node is None:
        return default_chain().chain
    name = node.value if isinstance(node, ScalarNode) else None
    if not isinstance(name, str) or name not in presets.names():
        hint = did_you_mean(name, presets.names()) if isinstance(name, str) else ""
        problems.add(node.line, f"preset: found {found(node)}; expected the name of a preset{hint}")
        return default_chain().chain
    if name in ASKS_FOR_REPLICAS and not declared.replicas:
        problems.add(
            node.line,
            f"preset: {name} depends on replicas; set `job: replicas:` to all, none or groups of ranks that hold the "
            "same state: [[0, 4], [1, 5]]",
        )
    return preset(name).chain

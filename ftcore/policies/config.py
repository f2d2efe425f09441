"""The policy file: YAML, one per job, validated with line, key, what was found and what is expected.

    version: 1
    chain:                       # highest priority first
      - process_restart:
          max_restarts: 20
          window: 1h
      - stop

House rules: every option has a default; what is not known is an error with a suggestion, never ignored; what cannot
work together is an error here, not at three in the morning. PyYAML's node tree is used for the line numbers.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from ftcore.errors import UsageError
from ftcore.events.codec import digest_of
from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.policies.base import Option
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER

SCHEMA_VERSION = 1
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")


def default_chain(max_restarts: int | None = None) -> PolicyLoaded:
    """The chain of a job without a policy file.

    Args:
        max_restarts: ``--max-restarts``, if it was given.
    """
    chain = tuple(ChainEntry(policy=name, options=_defaults(name)) for name in DEFAULT_ORDER)
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
        ChainEntry(policy=entry.policy, options={**entry.options, "max_restarts": max_restarts})
        if entry.policy == "process_restart"
        else entry
        for entry in loaded.chain
    )
    return PolicyLoaded(
        source=f"{loaded.source} with --max-restarts {max_restarts}",
        text=loaded.text,
        digest=loaded.digest,
        chain=chain,
    )


def parse(text: str, source: str) -> PolicyLoaded:
    """Read and validate a policy file.

    Args:
        text: the file's content.
        source: its name, for messages and the log.

    Raises:
        UsageError: one message with file, line, key, what was found and what is expected.
    """
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise UsageError(f"{source}, line {line}: not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: not YAML: {error}") from error
    if root is None:
        raise UsageError(f"{source} is empty; expected at least: version: {SCHEMA_VERSION}")
    file = _Mapping(root, source, "the file")
    file.only(("version", "chain"))
    version = file.scalar("version")
    if version != SCHEMA_VERSION:
        raise file.error("version", f"found {version!r}; this ftcore reads version: {SCHEMA_VERSION}")
    chain = _read_chain(file)
    return PolicyLoaded(source=source, text=text, digest=digest_of(text.encode()), chain=chain)


def _read_chain(file: "_Mapping") -> tuple[ChainEntry, ...]:
    node = file.get("chain")
    if node is None:
        return default_chain().chain
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise file.error("chain", "expected a list of policies, highest priority first")
    entries: list[ChainEntry] = []
    for item in node.value:
        entry = _read_entry(item, file)
        if entries and entries[-1].policy == "stop":
            raise file.at(item, f"chain: {entry.policy} is never asked: `stop` before it takes everything")
        if any(other.policy == entry.policy for other in entries):
            raise file.at(item, f"chain: {entry.policy} stands there twice; each policy is asked once")
        entries.append(entry)
    if entries[-1].policy != "stop":
        raise file.at(node.value[-1], "chain: the last policy must be `stop`, so that every incident has an end")
    return tuple(entries)


def _read_entry(item: yaml.Node, file: "_Mapping") -> ChainEntry:
    if isinstance(item, yaml.ScalarNode):
        name, options = str(item.value), None
    elif isinstance(item, yaml.MappingNode) and len(item.value) == 1:
        key, options = item.value[0]
        name = str(key.value)
    else:
        raise file.at(item, "chain: expected `- policy` or `- policy: {option: value}`, one policy to an entry")
    if name not in BUILT_IN:
        raise file.at(item, f"chain: no policy is called {name!r}{_did_you_mean(name, BUILT_IN)}")
    values = _defaults(name)
    if options is not None and not (isinstance(options, yaml.ScalarNode) and options.value in ("", "null", "~")):
        given = _Mapping(options, file.source, name)
        declared = BUILT_IN[name].options
        given.only(declared)
        for key_name in given.names():
            values[key_name] = _read_option(given, key_name, declared[key_name])
    _check_together(name, values, item, file)
    return ChainEntry(policy=name, options=values)


def _check_together(name: str, values: Mapping[str, Any], item: yaml.Node, file: "_Mapping") -> None:
    if name == "process_restart" and values["backoff_max"] < values["backoff"]:
        raise file.at(
            item, f"{name}: backoff_max ({values['backoff_max']:g} s) is below backoff ({values['backoff']:g} s)"
        )


def _read_option(given: "_Mapping", key: str, option: Option) -> float | int:
    found = given.scalar(key)
    value: float
    if option.kind == "duration":
        match = _DURATION.fullmatch(str(found).strip())
        if match is None or isinstance(found, bool):
            raise given.error(key, f"found {found!r}; expected a duration such as 30, 90s, 5m or 1h")
        value = float(match[1]) * _UNITS[match[2] or "s"]
    elif isinstance(found, bool) or not isinstance(found, int):
        raise given.error(key, f"found {found!r}; expected a whole number")
    else:
        value = found
    if value < option.minimum or (option.maximum is not None and value > option.maximum):
        upper = f" and at most {option.maximum:g}" if option.maximum is not None else ""
        raise given.error(key, f"found {found!r}; expected at least {option.minimum:g}{upper}")
    return value


def _defaults(name: str) -> dict[str, Any]:
    return {
        key: float(option.default) if option.kind == "duration" else option.default  # type: ignore[arg-type]
        for key, option in BUILT_IN[name].options.items()
    }


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are: {', '.join(names)}"


class _Mapping:
    """A YAML mapping with its line numbers."""

    def __init__(self, node: yaml.Node, source: str, name: str) -> None:
        self.source, self.name, self.node = source, name, node
        if not isinstance(node, yaml.MappingNode):
            raise self.at(node, f"{name}: expected `key: value` lines")
        self._values: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key, value in node.value:
            if str(key.value) in self._values:
                raise self.at(key, f"{name}: {key.value} is set twice")
            self._values[str(key.value)] = (key, value)

    def names(self) -> list[str]:
        return list(self._values)

    def only(self, known: Iterable[str]) -> None:
        names = list(known)
        for key, (node, _) in self._values.items():
            if key not in names:
                raise self.at(node, f"{self.name}: unknown key {key!r}{_did_you_mean(key, names)}")

    def get(self, key: str) -> yaml.Node | None:
        found = self._values.get(key)
        return found[1] if found is not None else None

    def scalar(self, key: str) -> Any:
        node = self.get(key)
        if node is None:
            raise self.at(self.node, f"{self.name}: {key} is missing")
        if not isinstance(node, yaml.ScalarNode):
            raise self.error(key, "expected a single value")
        return yaml.safe_load(yaml.serialize(node))

    def error(self, key: str, text: str) -> UsageError:
        return self.at(self._values[key][1], f"{self.name}: {key}: {text}")

    def at(self, node: yaml.Node, text: str) -> UsageError:
        return UsageError(f"{self.source}, line {node.start_mark.line + 1}: {text}")

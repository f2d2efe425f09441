"""Generate the JSON Schema (draft 7, as used by editors) of the policy file from the parser's own declarations.

The schema accepts every file that the parser accepts. Checks that involve several keys (``rules.py``, entries that are
never asked, abilities of the job) are done by the parser only.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ftcore.faults.extra import KEYS, NOT_FOR_RULES, RULES_MAX, TEXT_CHARS_MAX
from ftcore.faults.rule import ROLES
from ftcore.faults.taxonomy import FaultClass, Remedy
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.file import presets
from ftcore.policies.file.config import MEANINGS, SAID_BY_SCRIPT
from ftcore.policies.file.job_options import CheckpointOptions, HangOptions, JobOptions
from ftcore.policies.file.replicas import LAYOUT_KEYS
from ftcore.states.replicas import WHERE

URI = "http://json-schema.org/draft-07/schema#"
ID = "urn:ftcore:policy-file:1"
"""Name of the schema; it ends with the ``version`` of the files that the schema accepts. Not an address."""


def schema() -> dict[str, Any]:
    """The JSON Schema of a policy file, as plain data for ``json.dumps``."""
    entries = {name: _entry(name) | None for name in BUILT_IN}
    keys = {
        "version": Literal[1],
        "preset": _one_of(presets.names()),
        "job": _job() | None,
        "faults": _faults() | None,
        "options": _record("Changes", entries) | None,
        "chain": _list(_one_of(BUILT_IN) | _record("Entry", entries)),
    }
    record = _record("File", keys, MEANINGS, doc="A policy file of ftcore.", required=("version",))
    [file], parts = msgspec.json.schema_components([record])
    parts["Entry"] |= {"minProperties": 1, "maxProperties": 1}
    parts["File"]["not"] = {"required": ["chain"], "anyOf": [{"required": ["preset"]}, {"required": ["options"]}]}
    for option in (option for part in parts.values() for option in part.get("properties", {}).values()):
        if "pattern" in option:
            option["type"] = ["number", "string"]
    # draft 7 ignores what stands beside a $ref, an $id too
    whole = {"$schema": URI, "$id": ID, "allOf": [file], "$defs": parts}
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))
    return plain


def _job() -> Any:
    group = _list(Annotated[int, Meta(ge=0)], least=2, unique=True)
    count = Annotated[int, Meta(ge=1)]
    keys = {
        "replicas": _one_of(("none", "all")) | _list(group) | _layout(),
        "abilities": _words(map(str, SAID_BY_SCRIPT)),
        "checkpoint_every": count,
        "checkpoints": _record("Checkpoints", {}, base=CheckpointOptions) | None,
        "hangs": _record("Hangs", {}, base=HangOptions) | None,
    }
    return _record("Job", keys, {key: MEANINGS[f"job: {key}"] for key in keys}, base=JobOptions)


def _layout() -> Any:
    size = Annotated[int, Meta(ge=1)]
    meanings = {key: MEANINGS[f"{WHERE}: {key}"] for key in LAYOUT_KEYS}
    return _record("Layout", dict.fromkeys(LAYOUT_KEYS, size), meanings, required=LAYOUT_KEYS)


def _faults() -> Any:
    text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
    known = {
        "pattern": Annotated[str, Meta(description="RE2, searched for in each line of output.")],
        "class": _one_of(cls for cls in FaultClass if cls not in NOT_FOR_RULES),
        "role": _one_of(ROLES),
        "action": _one_of(Remedy),
    }
    rule = _record("Rule", {key: known.get(key, text) for key in KEYS}, required=("pattern", "class"))
    return _record("Faults", {"rules": _list(rule, least=0, most=RULES_MAX)}, {"rules": MEANINGS["faults: rules"]})


def _entry(policy: str) -> Any:
    keys = {"faults": _words(FaultClass), "optional": bool}
    meanings = {key: MEANINGS[f"chain: POLICY: {key}"] for key in keys}
    return _record(policy, keys, meanings, doc=BUILT_IN[policy].doc, base=BUILT_IN[policy].options)


def _one_of(words: Iterable[str]) -> Any:
    return Literal[tuple(map(str, words))]


def _words(known: Iterable[str]) -> Any:
    one = _one_of(known)
    return one | _list(one, unique=True)


def _list(item: Any, least: int = 1, most: int | None = None, unique: bool = False) -> Any:
    return Annotated[
        list[item],
        Meta(min_length=least, max_length=most, extra_json_schema={"uniqueItems": True} if unique else None),
    ]


def _record(
    name: str,
    keys: Mapping[str, Any],
    meanings: Mapping[str, str] | None = None,
    *,
    doc: str = "",
    required: Collection[str] = (),
    base: type[msgspec.Struct] = msgspec.Struct,
) -> Any:
    """A record type without unknown keys; keys that are not in ``required`` are optional."""
    kinds = {key: Annotated[kind, Meta(description=meanings[key])] for key, kind in keys.items()} if meanings else keys
    fields = [
        (key, kind) if key in required else (key, kind | UnsetType, msgspec.field(default=UNSET))
        for key, kind in kinds.items()
    ]
    namespace = {"__doc__": doc}
    return msgspec.defstruct(name, fields, bases=(base,), forbid_unknown_fields=True, kw_only=True, namespace=namespace)

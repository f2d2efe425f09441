"""The policy file as JSON Schema (draft 7, which editors' YAML support speaks), from what the parser itself reads.

Whatever the parser takes the schema takes; what speaks of several keys at once (``rules.py``, who is never asked, what
the job can do) only the parser knows.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ftcore.faults.extra import KEYS, NOT_FOR_RULES, RULES_MAX, TEXT_CHARS_MAX
from ftcore.faults.rule import ROLES
from ftcore.faults.taxonomy import Action, FaultClass
from ftcore.policies import presets
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.config import MEANINGS, SAID_BY_SCRIPT, JobOptions

URI = "http://json-schema.org/draft-07/schema#"


def schema() -> dict[str, Any]:
    """The schema of a policy file, as plain data for ``json.dumps``."""
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
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({"$schema": URI, **file, "$defs": parts}))
    return plain


def _job() -> Any:
    group = _list(Annotated[int, Meta(ge=0)], least=2, unique=True)
    count = Annotated[int, Meta(ge=1)]
    keys = {
        "replicas": _one_of(("none", "all")) | _list(group),
        "abilities": _words(map(str, SAID_BY_SCRIPT)),
        "checkpoint_every": count,
        "checkpoints_kept": count,
    }
    return _record("Job", keys, {key: MEANINGS[f"job: {key}"] for key in keys}, base=JobOptions)


def _faults() -> Any:
    text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]
    known = {
        "pattern": Annotated[str, Meta(description="RE2, searched for in each line of output.")],
        "class": _one_of(cls for cls in FaultClass if cls not in NOT_FOR_RULES),
        "role": _one_of(ROLES),
        "action": _one_of(Action),
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
    """A record type whose keys are all known; those that are not required may be left out."""
    told = {key: Annotated[kind, Meta(description=meanings[key])] for key, kind in keys.items()} if meanings else keys
    fields = [
        (key, kind) if key in required else (key, kind | UnsetType, msgspec.field(default=UNSET))
        for key, kind in told.items()
    ]
    namespace = {"__doc__": doc}
    return msgspec.defstruct(name, fields, bases=(base,), forbid_unknown_fields=True, kw_only=True, namespace=namespace)

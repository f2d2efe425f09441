"""The policy file as JSON Schema (draft 7, which editors' YAML support speaks), from what the parser itself reads.

Whatever the parser takes the schema takes; what speaks of several keys at once (``rules.py``, who is never asked, what
the job can do) only the parser knows.
"""

from typing import Any

from ftcore.faults.extra import KEYS, NOT_FOR_RULES, RULES_MAX, TEXT_CHARS_MAX
from ftcore.faults.rule import ROLES
from ftcore.faults.taxonomy import Action, FaultClass
from ftcore.policies import presets, values
from ftcore.policies.base import Option, Policy
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.config import HEALTH, SAID_BY_SCRIPT, SCHEMA_VERSION

URI = "http://json-schema.org/draft-07/schema#"


def schema() -> dict[str, Any]:
    """The schema of a policy file, as plain data for ``json.dumps``."""
    return {
        "$schema": URI,
        "title": "ftcore policy file",
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "not": {"required": ["chain"], "anyOf": [{"required": ["preset"]}, {"required": ["options"]}]},
        "properties": {
            "version": {"const": SCHEMA_VERSION, "description": "Version of this form of file."},
            "preset": {
                "description": "A chain that comes with ftcore; without it the default one is in force.",
                "anyOf": [{"const": name, "description": presets.doc(name)} for name in presets.names()],
            },
            "job": _job(),
            "faults": _faults(),
            "options": {
                "description": "Options to change in the chain of the preset, by policy; the order stays.",
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {name: _entry(policy) for name, policy in BUILT_IN.items()},
            },
            "chain": {
                "description": "The policies, highest priority first; the last one is stop.",
                "type": "array",
                "minItems": 1,
                "items": {
                    "anyOf": [
                        {"type": "string", "enum": list(BUILT_IN)},
                        {
                            "type": "object",
                            "minProperties": 1,
                            "maxProperties": 1,
                            "additionalProperties": False,
                            "properties": {name: _entry(policy) for name, policy in BUILT_IN.items()},
                        },
                    ]
                },
            },
        },
    }


def _job() -> dict[str, Any]:
    rank = {"type": "integer", "minimum": 0}
    count = {"type": "integer", "minimum": 1}
    return {
        "description": "What nobody but the user knows of the job.",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "replicas": {
                "description": "Which ranks hold the same state: all, none, or groups such as [[0, 4], [1, 5]].",
                "anyOf": [
                    {"enum": ["none", "all"]},
                    {
                        "type": "array",
                        "minItems": 1,
                        "items": {"type": "array", "minItems": 2, "uniqueItems": True, "items": rank},
                    },
                ],
            },
            "abilities": {
                "description": "What the script can do when it is told to, where it does not declare it itself.",
                **_words([str(ability) for ability in SAID_BY_SCRIPT]),
            },
            "checkpoint_every": {"description": "Steps between two checkpoints.", **count},
            "checkpoints_kept": {"description": "Checkpoints kept, the newest included.", **count},
            **{key: _option(option) for key, option in HEALTH.items()},
        },
    }


def _faults() -> dict[str, Any]:
    classes = [str(cls) for cls in FaultClass if cls not in NOT_FOR_RULES]
    known: dict[str, dict[str, Any]] = {
        "pattern": {"type": "string", "description": "RE2, searched for in each line of output."},
        "class": {"enum": classes},
        "role": {"enum": list(ROLES)},
        "action": {"enum": [str(action) for action in Action]},
    }
    text = {"type": "string", "maxLength": TEXT_CHARS_MAX}
    return {
        "description": "How faults are told apart.",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            "rules": {
                "description": "Rules of this job, read before the built-in ones.",
                "type": "array",
                "maxItems": RULES_MAX,
                "items": {
                    "type": "object",
                    "required": ["pattern", "class"],
                    "additionalProperties": False,
                    "properties": {key: known.get(key, text) for key in KEYS},
                },
            }
        },
    }


def _entry(policy: Policy) -> dict[str, Any]:
    return {
        "description": policy.doc,
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {
            **{key: _option(option) for key, option in policy.options.items()},
            "faults": {
                "description": "Classes of faults that it is asked about; default: all.",
                **_words([str(cls) for cls in FaultClass]),
            },
            "optional": {
                "description": "Passed over where the job cannot carry it out; default: refused at the start.",
                "type": "boolean",
            },
        },
    }


def _words(known: list[str]) -> dict[str, Any]:
    return {
        "anyOf": [{"enum": known}, {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": known}}],
    }


def _option(option: Option) -> dict[str, Any]:
    told: dict[str, Any] = {
        "description": option.doc.replace("`", ""),
        "default": list(option.default) if isinstance(option.default, tuple) else option.default,
    }
    bounds: dict[str, Any] = {"minimum": option.minimum}
    if option.maximum is not None:
        bounds["maximum"] = option.maximum
    match option.kind:
        case "duration":
            number = {"type": "number", **bounds}
            return {**told, "anyOf": [number, {"type": "string", "pattern": f"^{values.DURATION_PATTERN}$"}]}
        case "int":
            return {**told, "type": "integer", **bounds}
        case "number":
            return {**told, "type": "number", **bounds}
        case "bool":
            return {**told, "type": "boolean"}
        case "choice":
            return {**told, "enum": [str(word) for word in option.choices]}
        case "texts":
            item = {"enum": [str(word) for word in option.choices]} if option.choices else _text()
            return {**told, "type": "array", "items": item}
        case _:
            return {**told, **_text()}


def _text() -> dict[str, Any]:
    return {"type": "string", "maxLength": values.TEXT_CHARS_MAX}

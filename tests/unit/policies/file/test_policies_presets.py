"""Presets, the files that are written from them, and the schema that editors check them with."""

import json
from typing import Any

import jsonschema
import pytest
import yaml

from ftcore.errors import UsageError
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.chain import BUILT_IN, DEFAULT_ORDER
from ftcore.policies.file import presets
from ftcore.policies.file.config import default_chain, parse, preset
from ftcore.policies.file.reach import asked
from ftcore.policies.file.rules import SHARED, broken_rules, own_rules
from ftcore.policies.file.schema import schema
from ftcore.policies.file.writing import commented

NAMES = presets.names()
SCHEMA = schema()
VALIDATOR = jsonschema.Draft7Validator(SCHEMA)


def order(name: str) -> list[str]:
    return [entry.policy for entry in preset(name).chain]


def chain_options(name: str, policy: str) -> dict[str, Any]:
    return next(entry.options for entry in preset(name).chain if entry.policy == policy)


def test_the_presets_are_those_that_the_documentation_promises():
    """``default`` first, the others by name."""
    assert NAMES == ("default", "falcon", "mindio", "palm", "spot", "torchrun-like")


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_uses_what_there_is(name):
    """It is valid, all its policies exist, every class of faults finds its end, and nothing in it is required."""
    loaded = preset(name)
    assert set(order(name)) <= set(BUILT_IN)
    assert not any(entry.required for entry in loaded.chain)
    for cls in FaultClass:
        assert loaded.chain[asked(loaded.chain, str(cls))[-1]].policy == "stop"
    assert presets.doc(name).endswith(".")
    for entry in loaded.chain:
        assert (
            broken_rules(BUILT_IN[entry.policy].options, entry.options, list(entry.options)) == [] or name == "falcon"
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_written_preset_has_the_same_in_force(name):
    """What ``init`` prints reads back to the preset's chain; options with their default stand behind a ``#``."""
    written = parse(commented(name), "p").chain
    assert [(e.policy, e.options, e.faults) for e in written] == [
        (e.policy, e.options, e.faults) for e in preset(name).chain
    ]
    for entry in written:
        assert entry.required == (not BUILT_IN[entry.policy].needs)


@pytest.mark.parametrize("name", NAMES)
def test_every_line_behind_a_hash_may_be_set(name):
    """Taking the ``#`` from every option of a written preset gives a file with the same chain, or one named clash."""
    lines = []
    for line in commented(name).splitlines():
        key = line.strip("# ").partition(":")[0]
        lines.append(
            line.replace("# ", "", 1) if line.startswith("      # ") and f"{key}:" in line and key in KEYS else line
        )
    text = "\n".join(lines)
    try:
        assert [e.options for e in parse(text, "p").chain] == [e.options for e in preset(name).chain]
    except UsageError as error:
        assert name == "falcon"
        assert "no effect with back: latest" in str(error)


KEYS = {key for policy in BUILT_IN.values() for key in policy.options.__struct_fields__}


def test_default_is_the_chain_without_a_file():
    """One truth: ``DEFAULT_ORDER``."""
    assert preset("default").chain == default_chain().chain
    assert order("default") == list(DEFAULT_ORDER)


def test_mindio_asks_in_the_order_of_mindio():
    """UCE -> ARF -> TTP; TRE -> ARF; RSC after a TTP that saved."""
    names = order("mindio")
    for earlier, later in (
        ("step_retry", "hot_swap"),
        ("hot_swap", "dying_checkpoint"),
        ("recompute_step", "hot_swap"),
        ("dying_checkpoint", "pod_replacement"),
    ):
        assert names.index(earlier) < names.index(later)
    assert preset("mindio").declared.abilities == ()
    for said in ("all", "none", "[[0, 1]]"):
        parse(f"version: 1\npreset: mindio\njob: {{replicas: {said}}}\n", "p")


def test_palm_and_falcon_go_back_as_they_did():
    """About 100 steps and 200 to 500 batches; the latest checkpoint before it and a billion tokens."""
    palm, falcon = chain_options("palm", "rollback_and_skip"), chain_options("falcon", "rollback_and_skip")
    assert (palm["back"], palm["before"], palm["skip_unit"]) == ("steps", 100, "batches")
    assert 200 <= palm["skip"] <= 500
    for name in ("palm", "falcon"):
        assert order(name) == ["rollback_and_skip", *DEFAULT_ORDER]
    assert (falcon["back"], falcon["skip"], falcon["skip_unit"]) == ("latest", 10**9, "tokens")


@pytest.mark.parametrize("policy", BUILT_IN.values(), ids=lambda policy: policy.name)
def test_every_rule_speaks_of_options_that_there_are(policy):
    """A rule whose options were renamed would never speak again."""
    names = set(policy.options.__struct_fields__)
    assert all(any(set(rule.options) <= set(p.options.__struct_fields__) for p in BUILT_IN.values()) for rule in SHARED)
    for rule in (*own_rules(policy.options), *(rule for rule in SHARED if set(rule.options) <= names)):
        assert set(rule.options) <= names
        assert not rule.broken(policy.options())
        rule.text.format(**dict.fromkeys(names, "x"))


def test_the_schema_is_one():
    """It is valid itself, and plain JSON."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA


@pytest.mark.parametrize("name", NAMES)
def test_the_schema_takes_the_presets(name):
    """As they come, and as they are written out."""
    VALIDATOR.validate(yaml.safe_load(presets.text(name).replace("1e9", "1000000000")))
    VALIDATOR.validate(yaml.safe_load(commented(name).replace("1e9", "1000000000")))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "version: 2",
        "version: 1\nchains: []",
        "version: 1\npreset: mindo",
        "version: 1\npreset: palm\nchain: [stop]",
        "version: 1\nchain: []",
        "version: 1\nchain: [reboot]",
        "version: 1\nchain: [{process_restart: {max_restart: 1}}, stop]",
        "version: 1\nchain: [{process_restart: {max_restarts: many}}, stop]",
        "version: 1\nchain: [{process_restart: {max_restarts: 1001}}, stop]",
        "version: 1\nchain: [{process_restart: {grace: soon}}, stop]",
        "version: 1\nchain: [{process_restart: {faults: [hangs]}}, stop]",
        "version: 1\nchain: [{step_retry: {uce: 1}}, stop]",
        "version: 1\nchain: [{rollback_and_skip: {back: newest}}, stop]",
        "version: 1\njob: {replicas: some}",
        "version: 1\njob: {replicas: [[0]]}",
        "version: 1\njob: {abilities: [replace]}",
        "version: 1\nfaults: {rules: [{pattern: x}]}",
    ],
)
def test_what_the_schema_refuses_the_parser_refuses(text):
    """An editor and ftrun say the same."""
    assert not VALIDATOR.is_valid(yaml.safe_load(text))
    with pytest.raises(UsageError):
        parse(text, "p")

"""Whatever stands in a policy file, it is read or refused in one message."""

from typing import Any

import jsonschema
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ftcore.errors import UsageError
from ftcore.faults.taxonomy import FaultClass
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.file.config import KEYS, check, parse
from ftcore.policies.file.environment import POLICIES, apply_switches
from ftcore.policies.file.job_options import CHECKPOINTS, LEAST_BYTES
from ftcore.policies.file.schema import schema
from ftcore.policies.file.values import SIZES
from ftcore.policies.file.writing import shown
from ftcore.policies.file.yaml_nodes import Problems, plain, read_tree
from ftcore.policies.options import SIZE_MAX, Option, described

VALIDATOR = jsonschema.Draft7Validator(schema())

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["1h", "90s"])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def mostly(right: st.SearchStrategy[Any], wrong: st.SearchStrategy[Any] = anything) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda dice: right if dice else wrong)


def values(option: Option) -> st.SearchStrategy[Any]:
    """Values of an option as a file may have them: mostly right, now and then not."""
    top = option.maximum if option.maximum is not None else 10**6
    right: st.SearchStrategy[Any]
    match option.kind:
        case "int":
            right = st.integers(int(option.minimum), int(top))
        case "size":
            right = st.sampled_from(["200GiB", "1.5 TB", "500MiB", 1 << 30, 0])
        case "duration" | "number":
            right = st.floats(option.minimum, top, allow_nan=False)
        case "bool":
            right = st.booleans()
        case "choice":
            right = st.sampled_from(option.choices)
        case "texts":
            known = [str(word) for word in option.choices] or ["loss-spike", "env:CHAT"]
            right = st.lists(st.sampled_from(known), max_size=2)
        case _:
            right = st.text(max_size=5)
    return mostly(right)


classes = st.lists(st.sampled_from([str(cls) for cls in FaultClass]), min_size=1, max_size=3, unique=True)


@st.composite
def entries(draw: st.DrawFn) -> Any:
    name = draw(mostly(st.sampled_from([*BUILT_IN]), st.just("no_such_policy")))
    policy = BUILT_IN.get(name)
    if policy is None or draw(st.booleans()):
        return name
    options = {key: values(option) for key, option in described(policy.options).items()}
    common = {"faults": mostly(classes), "optional": st.booleans()}
    return {name: draw(st.fixed_dictionaries({}, optional={**options, **common}))}


checkpoints = {key: values(option) for key, option in CHECKPOINTS.items()}
groups = st.sampled_from([[[0, 1]], [[0, 2], [1, 3]]])
job = st.fixed_dictionaries(
    {},
    optional={
        "replicas": mostly(st.sampled_from(["all", "none"]) | groups),
        "abilities": mostly(st.lists(st.sampled_from(["save", "park", "retry"]), min_size=1, max_size=3, unique=True)),
        "checkpoint_every": mostly(st.integers(1, 50)),
        "checkpoints": mostly(st.fixed_dictionaries({}, optional=checkpoints)),
    },
)
rules = st.fixed_dictionaries({"rules": st.lists(mostly(st.just({"pattern": "x", "class": "hang"})), max_size=1)})
presets = mostly(st.sampled_from(["default", "mindio", "palm", "falcon", "spot", "torchrun-like"]))
changes = st.sampled_from([{"process_restart": {"max_restarts": 3}}, {"stop": {"grace": "2m"}}, {"alert": {}}])
files = st.fixed_dictionaries({"version": st.just(1)}, optional={"job": mostly(job), "faults": mostly(rules)}).flatmap(
    lambda head: st.one_of(
        st.fixed_dictionaries({}, optional={"preset": presets, "options": mostly(changes)}),
        st.fixed_dictionaries({"chain": mostly(st.lists(entries(), max_size=4).map(lambda chain: [*chain, "stop"]))}),
        st.fixed_dictionaries({"preset": presets, "chain": anything}),
    ).map(lambda rest: {**head, **rest})
)


def read(text: str) -> None:
    """Parse; the schema must take what the parser takes, and both ways of asking must agree."""
    checked = check(text, "p")
    try:
        loaded = parse(text, "p")
    except UsageError as error:
        assert checked.problems
        assert str(error).startswith("p")
        return
    assert checked.loaded == loaded
    assert loaded.chain[-1].policy == "stop"
    tree = read_tree(text, Problems("p"))
    assert tree is not None
    VALIDATOR.validate(plain(tree))


@settings(max_examples=300)
@given(files)
def test_files_of_the_right_shape_parse_or_are_refused(content: dict[str, Any]) -> None:
    """Any mapping generated from what the schema knows; what the parser takes, the schema takes."""
    read(yaml.safe_dump(content, allow_unicode=True))


@settings(max_examples=200)
@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=5), anything, max_size=4))
def test_files_of_any_shape_parse_or_are_refused(content: dict[str, Any]) -> None:
    """Any mapping at all."""
    read(yaml.safe_dump(content))


@settings(max_examples=300)
@given(st.text(max_size=60) | st.text("version: 1\nchain-[]{}&*!|>%@`?,#'\"\t ", max_size=60))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No text raises anything but the one error."""
    read(text)


@given(
    st.text(max_size=30)
    | st.lists(st.sampled_from([f"{name}:{on}" for name in POLICIES for on in (0, 1)])).map(",".join)
)
def test_any_switches_apply_or_are_refused(text: str) -> None:
    """And every class of faults still finds its end."""
    try:
        changed = apply_switches(parse("version: 1\njob: {replicas: all}\n", "p"), text)
    except UsageError as error:
        assert str(error).startswith("FTCORE_POLICIES: ")
        return
    assert changed.chain[-1].policy == "stop"


@given(
    st.integers(1 << 20, SIZE_MAX)
    | st.builds(lambda n, unit: n * unit, st.integers(1, 999), st.sampled_from(sorted(SIZES.values())))
)
def test_a_size_is_written_as_it_is_read(value: int) -> None:
    """Exactly."""
    value = max(value, LEAST_BYTES)
    text = f"version: 1\njob: {{checkpoints: {{memory: {shown(value, 'size')}}}}}\n"
    assert parse(text, "p").declared.checkpoints.memory == value


@given(st.floats(0, 1e9, allow_nan=False))
def test_a_duration_is_written_as_it_is_read(value: float) -> None:
    """To a millionth, in whatever unit."""
    text = f"version: 1\nchain:\n- stop: {{grace: {shown(round(value, 6), 'duration')}}}\n"
    assert abs(parse(text, "p").chain[0].options["grace"] - round(value, 6)) < 1e-5

"""Policies are asked for by what they do, never by name."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import ftcore
from ftcore.policies.chain import BUILT_IN
from ftcore.policies.traits import PROMISED, Trait, named, traits_of

ROOT = Path(ftcore.__file__).parent
SETS = ("policies/chain", "file/environment")
"""Modules of ``policies`` that say which policies there are: the chain, and MindIO's switches."""
MODULES = [
    *(path for path in sorted((ROOT / "policies").rglob("*.py")) if f"{path.parent.name}/{path.stem}" not in SETS),
    *sorted((ROOT / "engine").rglob("*.py")),
]
WORDS = {"alert", "grow", "shrink", "stop"}
"""Names that are words of requests and plans as well: there only a comparison with a policy's name counts."""


def names_in(path: Path) -> Iterator[str]:
    """The policies that a module names outside of its prose, other than its own."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and node.value in BUILT_IN.keys() - WORDS - {path.stem}:
            yield str(node.value)
        elif isinstance(node, ast.Compare) and "policy" in map(_last, (node.left, *node.comparators)):
            inside = [each for side in (node.left, *node.comparators) for each in ast.walk(side)]
            yield from (each.value for each in inside if isinstance(each, ast.Constant) and each.value in WORDS)
        elif isinstance(node, ast.keyword) and node.arg == "policy" and isinstance(node.value, ast.Constant):
            yield from (node.value.value,) if node.value.value else ()
        elif isinstance(node, ast.ImportFrom) and (node.module or "").rpartition(".")[2] in BUILT_IN:
            yield str(node.module)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_module_names_a_policy(path: Path) -> None:
    """What others must know of a policy is a trait that it declares."""
    assert list(names_in(path)) == []


@pytest.mark.parametrize("name", BUILT_IN)
def test_no_policy_reads_options_of_another(name: str) -> None:
    """But those that a trait promises. What several policies call the same is not looked at."""
    counted = Counter(option for policy in BUILT_IN.values() for option in policy.options.__struct_fields__)
    known = {*BUILT_IN[name].options.__struct_fields__, *(option for names in PROMISED.values() for option in names)}
    foreign = {option for option, count in counted.items() if count == 1} - known
    tree = ast.parse((ROOT / "policies" / "builtin" / f"{name}.py").read_text())
    assert foreign & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} == set()


def test_a_name_would_be_found(tmp_path: Path) -> None:
    """The test above sees names in constants, comparisons, arguments and imports."""
    path = tmp_path / "grow.py"
    path.write_text(
        "from ftcore.policies.builtin.stop import Stop\n"
        "a = 'hot_swap'\n"
        "b = entry.policy == 'stop' or entry.policy in ('alert', 'x')\n"
        "c = Rule(policy='shrink')\n"
        "d = wish == 'stop'\n"
    )
    assert sorted(names_in(path)) == ["alert", "ftcore.policies.builtin.stop", "hot_swap", "shrink", "stop"]


@pytest.mark.parametrize("module", ["ftcore.policies.targets", "ftcore.engine.orders", "ftcore.policies.builtin.grow"])
def test_traits_are_known_whoever_asks_first(module: str) -> None:
    """A process that imports no chain has the same answers as one that does."""
    code = f"import {module}; from ftcore.policies.traits import Trait, named; print(*named(Trait.RESTARTS))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "process_restart"


def test_every_trait_is_somebodys() -> None:
    """No trait without a policy, no promise and no budget without its option, no traits for a stranger."""
    assert all(named(trait) for trait in Trait)
    for name, policy in BUILT_IN.items():
        traits = traits_of(name)
        promised = {option for trait in traits.has for option in PROMISED.get(trait, ())}
        assert {traits.budget, *promised} - {""} <= {*policy.options.__struct_fields__}
    assert traits_of("acme_cool_down").has == frozenset()

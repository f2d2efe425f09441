"""Sizes of functions and modules, what an ``__init__.py`` may hold, unique class names; ruff holds the complexity."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "ftcore"
FUNCTION_LINES_MAX = 59
MODULE_LINES_MAX = 499

LAZY = {"__init__.py", "ports/__init__.py", "replay/__init__.py"}
"""``import ftcore`` and the start of ``ftctl`` are cheap: names are imported on first use, by ``__getattr__``."""


def trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}


def test_modules_are_short() -> None:
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name for name, count in lines.items() if count > MODULE_LINES_MAX} == set()


def test_functions_are_short() -> None:
    long = {
        (name, node.name)
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= FUNCTION_LINES_MAX
    }
    assert long == set()


def test_packages_only_import() -> None:
    """An ``__init__.py`` has a docstring, imports and constants: what does something has a module of its own."""
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    busy = {
        name
        for name, tree in trees().items()
        if name.endswith("__init__.py")
        and any(
            not isinstance(node, allowed) or (isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant))
            for node in tree.body
        )
    }
    assert busy == LAZY


def test_class_names_are_unique() -> None:
    """A class name means one thing in the whole product, so that a search for it finds one definition."""
    places = defaultdict(list)
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"ftcore/{name}:{node.lineno}")
    shared = [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]
    assert not shared, "several classes have the same name; rename all but one:\n" + "\n".join(shared)

"""The examples of the Python API: programs in ``examples/api``, shown on one page with an index of names."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs

FOLDER = Path(__file__).parents[1] / "examples" / "api"
ORDER = (
    "own_supervisor",
    "local_supervisor",
    "own_platform",
    "own_observer",
    "read_logs",
    "explain_a_log",
    "goodput_of_a_log",
    "own_loop",
    "saved_state",
    "damaged_memory",
    "each_sample_once",
    "shards_of_a_queue",
)
PUBLIC = Path(__file__).parents[1] / "tests/unit/house/public_api.txt"
INTRO = """\
Every public name of `ftcore`, `ftcore.data`, `ftcore.logs`, `ftcore.replay` and `ftcore.worker` in a program that runs.
The programs are in `examples/api`, and the tests run each of them."""


@attrs.frozen
class ApiExample:
    """A program.

    Args:
        title: the first line of its docstring, without the period.
        text: the rest of the docstring.
        code: the program without its docstring.
        names: the names of ftcore that it uses, as ``ftcore.replay.verify``.
    """

    title: str
    text: str
    code: str
    names: frozenset[str]


def examples() -> Iterator[ApiExample]:
    """All programs, in the order of the page."""
    for name in ORDER:
        source = (FOLDER / f"{name}.py").read_text()
        tree = ast.parse(source)
        title, _, text = (ast.get_docstring(tree) or "").partition("\n")
        code = "\n".join(source.splitlines()[tree.body[0].end_lineno :]).strip()
        yield ApiExample(title.rstrip("."), text.strip(), code, frozenset(names_used(tree)))


def names_used(tree: ast.Module) -> Iterator[str]:
    """Names of ftcore that a program uses, beyond importing them."""
    known: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {(each.asname or each.name): each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            known |= {(each.asname or each.name): f"{node.module}.{each.name}" for each in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            first, *rest = ast.unparse(node).split(".")
            name = ".".join((known.get(first, ""), *rest))
            if name.startswith("ftcore."):
                yield name


def page() -> str:
    """The page: the index of public names, then every program."""
    found = tuple(examples())
    lines = ["# Examples of the Python API", "", INTRO, "", "| name | examples |", "|---|---|"]
    for name in PUBLIC.read_text().split():
        links = [f"[{each.title}](#{_anchor(each.title)})" for each in found if name in each.names]
        lines.append(f"| `{name}` | {', '.join(links)} |")
    for each in found:
        lines += ["", f"## {each.title}", "", each.text, "", "```python", each.code, "```"]
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")

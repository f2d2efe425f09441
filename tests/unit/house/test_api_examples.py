"""Every public name has an example that uses it; ``test_docs.py`` runs the examples of the page."""

import ast
import sys
from pathlib import Path

import ftcore

sys.path.append(str(Path(ftcore.__file__).parents[1] / "docs"))
from api_examples import FOLDER, ORDER, examples, names_used

NAMES = Path(__file__).with_name("public_api.txt").read_text().split()
PAGE = Path(ftcore.__file__).parents[1] / "docs/reference/api/examples.md"


def test_every_public_name_has_an_example() -> None:
    """A new public name needs a program in ``examples/api`` that uses it; after that, ``python docs/generate.py``."""
    used = {name for each in examples() for name in each.names}
    assert [name for name in NAMES if name not in used] == []


def test_every_example_is_on_the_page_that_runs() -> None:
    """A file that is not in the order of the page would not run; one that asserts and prints nothing shows nothing."""
    assert sorted(ORDER) == sorted(path.stem for path in FOLDER.glob("*.py"))
    text = PAGE.read_text()
    assert all(f"```python\n{each.code}\n```" in text for each in examples())
    assert all("print(" in each.code for each in examples())


def test_an_import_alone_is_no_use() -> None:
    code = "import ftcore.worker as ft\nfrom ftcore import Agent, replay\nft.report(1)\nreplay.read([])"
    used = set(names_used(ast.parse(code)))
    assert used & {"ftcore.worker.report", "ftcore.replay.read", "ftcore.Agent"} == {
        "ftcore.worker.report",
        "ftcore.replay.read",
    }

"""What programs that use ftcore depend on changes only by a decision: parameters, defaults, fields, methods."""

import difflib
import sys
from pathlib import Path

import attrs

sys.path.append(str(Path(__file__).parent))
import signatures

COMMITTED = Path(__file__).with_name("public_signatures.txt")
RULE = (
    "the public surface has changed; docs/compatibility.md says which change needs which version. If it is meant: "
    "python tests/unit/house/signatures.py > tests/unit/house/public_signatures.txt"
)


def test_the_public_surface_is_as_committed() -> None:
    found = list(signatures.lines())
    changes = difflib.unified_diff(COMMITTED.read_text().splitlines(), found, "committed", "found", n=0, lineterm="")
    assert list(changes) == [], RULE


def test_every_committed_name_is_in_the_surface() -> None:
    """The list of names and that of signatures agree: what ``ftcore`` exports is on a page of the API."""
    values = {id(value) for _, value in signatures.public()}
    names = Path(__file__).with_name("public_api.txt").read_text().split()
    assert [name for name in names if name != "ftcore.__version__" and id(resolve(name)) not in values] == []


def resolve(name: str) -> object:
    module, _, last = name.rpartition(".")
    return getattr(sys.modules[module], last)


def test_a_removed_parameter_is_noticed() -> None:
    """Parameters, their defaults and kinds, fields and methods are part of the text."""

    @attrs.frozen(kw_only=True)
    class Before:
        node: str
        within_s: float = 1.0

        def leave(self, reason: str, *, lost: bool = False) -> None:
            """Leave."""

    @attrs.frozen(kw_only=True)
    class After:
        node: str

        def leave(self, reason: str) -> None:
            """Leave."""

    Before.__module__ = After.__module__ = "ftcore.made_up"
    before, after = (list(signatures.of_class("ftcore.Made", kind)) for kind in (Before, After))
    assert before == [
        "ftcore.Made: (*, node, within_s=1.0)",
        "    .leave: (reason, *, lost=False)",
    ]
    assert after == ["ftcore.Made: (*, node)", "    .leave: (reason)"]

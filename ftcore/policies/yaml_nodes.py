"""YAML as a tree that remembers its lines, of a size that nothing can blow up.

PyYAML's parser yields events; the tree is built here, without its composer and constructor, because a policy file needs
much less than YAML offers and a reader should see at a glance what is in force. House rules:

- anchors, aliases, merges and tags are refused: whoever reads the file at night must not chase references, and what
  cannot be referred to cannot be expanded a billion times;
- values are those of YAML 1.2's core schema, as editors check them: ``on``, ``yes`` and ``1:30`` are text, not truth
  and not a number of base 60;
- size and depth are bounded before any memory is spent on them;
- mistakes are collected in ``Problems``, not raised one by one.
"""

import difflib
import math
import re
from collections.abc import Iterable, Iterator
from typing import TypeAlias

import attrs
import yaml

from ftcore.errors import UsageError

BYTES_MAX = 256 << 10
"""Size of a policy file: its text and what is read from it must fit into one group of the log."""

DEPTH_MAX = 16
"""How deep lists and mappings may be nested; a policy file needs five levels."""

SHOWN_MAX = 10
"""Mistakes that are told at once."""

FOUND_CHARS_MAX = 60
"""Of a value that is quoted in a message."""

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,20}|[0-9]{1,20}(\.[0-9]{0,20})?)([eE][-+]?[0-9]{1,3})?")


@attrs.frozen(kw_only=True)
class Problem:
    """One mistake in a file.

    Args:
        line: where, from 1; 0: it is about the file as a whole.
        text: what was found and what is expected.
    """

    line: int
    text: str


class Problems:
    """The mistakes found in one file.

    Args:
        source: the file's name, for messages.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: dict[Problem, None] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(sorted(self._found, key=lambda problem: problem.line))

    def add(self, line: int, text: str) -> None:
        """Note a mistake; the same one at the same place is told once."""
        self._found[Problem(line=line, text=text)] = None

    def error(self, most: int = SHOWN_MAX) -> UsageError:
        """All of them as one message: a single line if there is one, else a list of the first ``most``."""
        found = list(self)
        if len(found) == 1:
            return UsageError(f"{self.source}{_at(found[0])}: {found[0].text}")
        lines = [f"  line {problem.line}: {problem.text}" for problem in found[:most]]
        if len(found) > most:
            lines.append(f"  and {len(found) - most} more")
        return UsageError(f"{self.source}: {len(found)} mistakes\n" + "\n".join(lines))


def _at(problem: Problem) -> str:
    return f", line {problem.line}" if problem.line else ""


@attrs.frozen(kw_only=True)
class Scalar:
    """A single value: None, a bool, an int, a finite float, or text."""

    line: int
    value: bool | int | float | str | None


@attrs.frozen(kw_only=True)
class Items:
    """A list."""

    line: int
    items: list["Node"]


@attrs.frozen(kw_only=True)
class Keys:
    """A mapping: by key, the key's line and the value."""

    line: int
    entries: dict[str, tuple[int, "Node"]]


Node: TypeAlias = Scalar | Items | Keys


def read_tree(text: str, problems: Problems) -> Node | None:
    """The tree of a YAML text.

    Args:
        text: the whole text; a byte order mark at its beginning is overlooked.
        problems: receives what is wrong.

    Returns:
        The root; None if the text is empty or cannot be read, which ``problems`` tells then.
    """
    text = text.removeprefix("\ufeff")
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > BYTES_MAX:
        problems.add(0, f"has {size} bytes; expected at most {BYTES_MAX}")
        return None
    try:
        return _Builder(problems).build(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problems.add(line, f"not YAML: the character U+{ord(text[error.position]):04X} cannot stand in it")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark is not None else 1
        what = error.problem or "it cannot be read"
        if "'\\t'" in what:
            what = "a tab; YAML is indented with spaces"
        problems.add(line, f"not YAML: {short(what, quoted=False)}")
    except (ValueError, OverflowError):  # PyYAML on a version or an escaped character beyond all bounds
        problems.add(0, "not YAML: it holds a number beyond all bounds")
    return None


def plain(node: Node) -> object:
    """The tree's values alone, as JSON has them."""
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Items):
        return [plain(item) for item in node.items]
    return {key: plain(value) for key, (_, value) in node.entries.items()}


def short(value: object, *, quoted: bool = True) -> str:
    """A value as messages show it: on one line, and not longer than people read."""
    if isinstance(value, str) and len(value) > FOUND_CHARS_MAX:
        value = value[:FOUND_CHARS_MAX] + "..."
    return repr(value) if quoted else str(value)


def found(node: Node) -> str:
    """What stands at a node, for ``found ...`` in a message."""
    if isinstance(node, Items):
        return "a list" if node.items else "an empty list"
    if isinstance(node, Keys):
        return "`key: value` lines" if node.entries else "an empty mapping"
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return "nothing" if node.value is None else short(node.value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: the nearest one that is, or all of them."""
    names = [str(name) for name in known]
    near = difflib.get_close_matches(word[:FOUND_CHARS_MAX], names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are: {', '.join(names)}"


class _Builder:
    """Builds the tree from the parser's events, without recursion."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._open: list[Items | Keys] = []
        self._keys: list[tuple[int, str] | None] = []
        self._root: Node | None = None

    def build(self, events: Iterator[yaml.Event]) -> Node | None:
        documents = 0
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark is not None else 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._fatal(line, "a second document begins; expected one")
                    return None
            elif isinstance(event, yaml.AliasEvent):
                self._fatal(line, f"the alias *{short(event.anchor, quoted=False)}: write out what it stands for")
                return None
            elif isinstance(event, yaml.NodeEvent):
                if not self._node(event, line):
                    return None
            elif isinstance(event, yaml.CollectionEndEvent):
                self._open.pop()
                self._keys.pop()
        return self._root

    def _fatal(self, line: int, text: str) -> bool:
        self._problems.add(line, text)
        return False

    def _node(self, event: yaml.NodeEvent, line: int) -> bool:
        """Take in the beginning of a node; whether it is worth to go on."""
        if event.anchor is not None:
            return self._fatal(
                line, f"the anchor &{short(event.anchor, quoted=False)}: write each value where it counts"
            )
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            return self._fatal(line, f"the tag {short(tag, quoted=False)}: expected a value without one")
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            if self._open and isinstance(self._open[-1], Keys) and self._keys[-1] is None:
                return self._key(event.value, line, self._open[-1])
            node = Scalar(line=line, value=_value(event))
        else:
            if len(self._open) >= DEPTH_MAX:
                return self._fatal(line, f"nested deeper than {DEPTH_MAX} levels")
            if self._open and isinstance(self._open[-1], Keys) and self._keys[-1] is None:
                return self._fatal(line, "a list or mapping as a key; expected a word")
            node = (
                Items(line=line, items=[])
                if isinstance(event, yaml.SequenceStartEvent)
                else Keys(line=line, entries={})
            )
        self._hang(node)
        if not isinstance(node, Scalar):
            self._open.append(node)
            self._keys.append(None)
        return True

    def _key(self, key: str, line: int, keys: Keys) -> bool:
        if key == "<<":
            return self._fatal(line, "a merge (<<): write the keys out")
        if key in keys.entries:
            self._problems.add(line, f"{short(key, quoted=False)} is set twice, first in line {keys.entries[key][0]}")
        self._keys[-1] = (line, key)
        return True

    def _hang(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if isinstance(parent, Items):
            parent.items.append(node)
            return
        key = self._keys[-1]
        assert key is not None
        parent.entries.setdefault(key[1], (key[0], node))
        self._keys[-1] = None


def _value(event: yaml.ScalarEvent) -> bool | int | float | str | None:
    text: str = event.value
    if event.style is not None or event.tag == "!":
        return text
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        value = float(text)
        return value if math.isfinite(value) else text
    return text

"""Parse YAML into a tree with line numbers and bounded size.

The tree is built from the events of PyYAML's parser, without its composer and constructor, because a policy file needs
only a small part of YAML:

- Anchors, aliases, merges and tags are refused. This keeps files readable and prevents exponential expansion.
- Scalars follow the core schema of YAML 1.2, as in editors: ``on``, ``yes`` and ``1:30`` are text.
- Size and depth are checked before memory is allocated.
- Errors are collected in ``Problems`` and reported together.
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
"""Maximum size of a policy file: its text and parsed content must fit into one group of the log."""

DEPTH_MAX = 16
"""Maximum nesting of lists and mappings; a policy file needs five levels."""

SHOWN_MAX = 10
"""Maximum number of errors in one message."""

FOUND_CHARS_MAX = 60
"""Maximum length of a quoted value in a message."""

_NULL = ("", "~", "null", "Null", "NULL")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]{1,20}|[0-9]{1,20}(\.[0-9]{0,20})?)([eE][-+]?[0-9]{1,3})?")


@attrs.frozen(kw_only=True)
class Problem:
    """One error in a file.

    Args:
        line: line number from 1; 0: the file as a whole.
        text: what was found and what is expected.
    """

    line: int
    text: str


class Problems:
    """The errors found in one file.

    Args:
        source: name of the file, for messages.
    """

    def __init__(self, source: str) -> None:
        self.source = source
        self._found: dict[Problem, None] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(sorted(self._found, key=lambda problem: problem.line))

    def add(self, line: int, text: str) -> None:
        """Add an error; duplicates are ignored."""
        self._found[Problem(line=line, text=text)] = None

    def error(self, most: int = SHOWN_MAX) -> UsageError:
        """All errors as one exception: a single line for one error, otherwise a list of the first ``most``."""
        found = list(self)
        if len(found) == 1:
            return UsageError(f"{self.source}{_at(found[0])}: {found[0].text}")
        lines = [f"  line {problem.line}: {problem.text}" for problem in found[:most]]
        if len(found) > most:
            lines.append(f"  and {len(found) - most} more")
        return UsageError(f"{self.source}: {len(found)} errors\n" + "\n".join(lines))


def _at(problem: Problem) -> str:
    return f", line {problem.line}" if problem.line else ""


@attrs.frozen(kw_only=True)
class ScalarNode:
    """A single value: None, a bool, an int, a finite float, or text."""

    line: int
    value: bool | int | float | str | None


@attrs.frozen(kw_only=True)
class SequenceNode:
    """A list."""

    line: int
    items: list["Node"]


@attrs.frozen(kw_only=True)
class MappingNode:
    """A mapping from keys to the key's line and the value."""

    line: int
    entries: dict[str, tuple[int, "Node"]]


Node: TypeAlias = ScalarNode | SequenceNode | MappingNode


def read_tree(text: str, problems: Problems) -> Node | None:
    """Parse a YAML text.

    Args:
        text: the whole text; a leading byte order mark is ignored.
        problems: receives the errors.

    Returns:
        The root; None if the text is empty or invalid.
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
        problems.add(line, f"not YAML: the character U+{ord(text[error.position]):04X} is not allowed")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark is not None else 1
        what = error.problem or "it cannot be read"
        if "'\\t'" in what:
            what = "a tab; YAML is indented with spaces"
        problems.add(line, f"not YAML: {short(what, quoted=False)}")
    except (ValueError, OverflowError):  # raised by PyYAML for an out-of-range version or escaped character
        problems.add(0, "not YAML: a number is out of range")
    return None


def plain(node: Node) -> object:
    """The values of a tree as plain JSON data, without line numbers."""
    if isinstance(node, ScalarNode):
        return node.value
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.items]
    return {key: plain(value) for key, (_, value) in node.entries.items()}


def short(value: object, *, quoted: bool = True) -> str:
    """A value for messages: on one line, cut to ``FOUND_CHARS_MAX`` characters."""
    if isinstance(value, str) and len(value) > FOUND_CHARS_MAX:
        value = value[:FOUND_CHARS_MAX] + "..."
    return repr(value) if quoted else str(value)


def found(node: Node) -> str:
    """A node's value as shown after ``found`` in messages."""
    if isinstance(node, SequenceNode):
        return "a list" if node.items else "an empty list"
    if isinstance(node, MappingNode):
        return "`key: value` lines" if node.entries else "an empty mapping"
    if isinstance(node.value, bool):
        return str(node.value).lower()
    return "nothing" if node.value is None else short(node.value)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the nearest known one, or all of them."""
    names = [str(name) for name in known]
    near = difflib.get_close_matches(word[:FOUND_CHARS_MAX], names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; expected one of: {', '.join(names)}"


class _Builder:
    """Builds the tree from the parser's events, without recursion."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._open: list[SequenceNode | MappingNode] = []
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
                self._fatal(line, f"alias *{short(event.anchor, quoted=False)} is not supported; write the value out")
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
        """Handle the first event of a node; returns whether to continue."""
        if event.anchor is not None:
            return self._fatal(
                line, f"anchor &{short(event.anchor, quoted=False)} is not supported; write the value out"
            )
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            return self._fatal(line, f"tag {short(tag, quoted=False)} is not supported; remove it")
        node: Node
        if isinstance(event, yaml.ScalarEvent):
            if self._open and isinstance(self._open[-1], MappingNode) and self._keys[-1] is None:
                return self._key(event.value, line, self._open[-1])
            node = ScalarNode(line=line, value=_value(event))
        else:
            if len(self._open) >= DEPTH_MAX:
                return self._fatal(line, f"nested deeper than {DEPTH_MAX} levels")
            if self._open and isinstance(self._open[-1], MappingNode) and self._keys[-1] is None:
                return self._fatal(line, "a list or mapping as a key; expected a word")
            node = (
                SequenceNode(line=line, items=[])
                if isinstance(event, yaml.SequenceStartEvent)
                else MappingNode(line=line, entries={})
            )
        self._attach(node)
        if not isinstance(node, ScalarNode):
            self._open.append(node)
            self._keys.append(None)
        return True

    def _key(self, key: str, line: int, keys: MappingNode) -> bool:
        if key == "<<":
            return self._fatal(line, "a merge (<<) is not supported; write the keys out")
        if key in keys.entries:
            self._problems.add(line, f"{short(key, quoted=False)} is set twice, first in line {keys.entries[key][0]}")
        self._keys[-1] = (line, key)
        return True

    def _attach(self, node: Node) -> None:
        if not self._open:
            self._root = node
            return
        parent = self._open[-1]
        if isinstance(parent, SequenceNode):
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

"""Prints the public surface of ftcore: names, parameters with their defaults, fields, methods, members.

    python tests/unit/house/signatures.py > tests/unit/house/public_signatures.txt

Public are the names on the pages of the Python API (``docs/reference/api``, comments ``api:``) and those of
``ftcore.worker``. Types are left out: their text depends on the version of Python.
"""

import enum
import importlib
import inspect
import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

ROOT = Path(__file__).parents[3]
API = re.compile(r"^<!-- api: (\S+)((?: \w+)*) -->$", re.MULTILINE)
LINE_MAX = 110
PLAIN = (int, float, str, bytes, bool, type(None))


def public() -> list[tuple[str, Any]]:
    """Every public name with its value, sorted."""
    listed = [("ftcore.worker", "")]
    for page in sorted((ROOT / "docs/reference/api").glob("*.md")):
        listed += API.findall(page.read_text())
    found: dict[str, Any] = {}
    for module, names in listed:
        loaded = importlib.import_module(module)
        for name in names.split() or getattr(loaded, "__all__", None) or defined(loaded):
            found[f"{module}.{name}"] = getattr(loaded, name)
    return sorted(found.items())


def defined(module: types.ModuleType) -> list[str]:
    """The classes and functions that a module without ``__all__`` defines."""
    kinds = (type, types.FunctionType)
    own = {name: value for name, value in vars(module).items() if isinstance(value, kinds) and name[0] != "_"}
    return [name for name, value in own.items() if value.__module__ == module.__name__]


def lines() -> Iterator[str]:
    """The surface as lines of text: each name, then its members, indented."""
    for name, value in public():
        if isinstance(value, type):
            yield from of_class(name, value)
        elif inspect.isroutine(value):
            yield from of_callable(name, value)
        else:
            yield f"{name} = {plain(value)}"


def of_class(name: str, kind: type) -> Iterator[str]:
    """A class: how it is made, and what it has."""
    if issubclass(kind, enum.Enum):
        yield f"{name}: {', '.join(f'{member.name} = {member.value!r}' for member in kind)}"
        return
    if getattr(kind, "_is_protocol", False):
        yield f"{name}: protocol"
    else:
        yield from of_callable(name, kind)
    for member in sorted(members(kind) - parameters(kind)):
        value = inspect.getattr_static(kind, member, None)
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if inspect.isfunction(value):
            yield from of_callable(f"    .{member}", value, bound=True)
        else:
            yield f"    .{member}"


def members(kind: type) -> set[str]:
    """Public attributes, methods and properties of a class, also inherited from classes of ftcore."""
    found: set[str] = set()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] == "ftcore":
            found |= {*vars(each), *inspect.get_annotations(each)}
    return {name for name in found if name[0] != "_"}


def parameters(kind: type) -> set[str]:
    """The parameters of a class; the fields of a record have the same names."""
    try:
        return set(inspect.signature(kind).parameters)
    except ValueError:
        return set()


def of_callable(name: str, value: Any, *, bound: bool = False) -> Iterator[str]:
    """Its parameters, on one line, or one line each."""
    try:
        found = list(inspect.signature(value).parameters.values())[1 if bound else 0 :]
    except ValueError:  # made by a base class in C
        found = []
    texts: list[str] = []
    keyword = False
    for each in found:
        if each.kind is each.KEYWORD_ONLY and not keyword:
            texts.append("*")
        keyword = keyword or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        default = "" if each.default is each.empty else f"={plain(each.default)}"
        texts.append(f"{star}{each.name}{default}")
    coroutine = "async " if inspect.iscoroutinefunction(value) else ""
    line = f"{name}: {coroutine}({', '.join(texts)})"
    if len(line) <= LINE_MAX:
        yield line
    else:
        indent = " " * (len(name) - len(name.lstrip()))
        yield f"{name}: {coroutine}("
        yield from (f"{indent}        {text}" for text in texts)
        yield f"{indent}    )"


def plain(value: Any) -> str:
    """A default or constant, if its text is the same everywhere; else ``...``."""
    if isinstance(value, enum.Enum) and value is not attrs.NOTHING:
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, PLAIN):
        return repr(value)
    if isinstance(value, tuple) and all(isinstance(each, PLAIN) for each in value):
        return repr(value)
    return "..."


if __name__ == "__main__":
    print("\n".join(lines()))

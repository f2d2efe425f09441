"""A restricted language of properties of a job's folded state, for ``ftctl bisect``.

    phase == "running" and training.step > 100
    len(membership.nodes) >= 2 and not any(node.phase == "lost" for node in membership.nodes)
    event.type != "worker.failed"

An expression is parsed with ``ast`` and evaluated by a walk over its tree; nothing is compiled or executed.

| allowed | meaning |
|---|---|
| fields of the state, ``event`` | names; fields of fields by dots, entries by ``["name"]`` or ``[0]`` |
| ``and or not``, ``== != < <= > >= in not in is``, ``+ - * /`` of numbers, literals, ``x if c else y`` | as in Python |
| ``len any all min max sum`` | of a container, or of ``f(x) for x in container if ...``, with one ``for`` |

A mapping is iterated by its *values*. A field of None is None, and an order comparison with None is false. Names that
begin with an underscore, methods, other calls and other syntax are refused. Length, depth and work are bounded.
"""

import ast
import difflib
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import attrs
import msgspec

from ftcore.errors import UsageError
from ftcore.events.envelope import Event
from ftcore.states.model import JobState

CHARS_MAX: Final = 2000
NODES_MAX: Final = 300
STEPS_MAX: Final = 200_000
"""Work of one evaluation, in visited nodes of the tree."""

_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}
_ORDER: Final = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_FUNCTIONS: Final[dict[str, Callable[[Iterable[Any]], Any]]] = {
    "len": lambda values: sum(1 for _ in values),
    "any": any,
    "all": all,
    "min": lambda values: min(values, default=None),
    "max": lambda values: max(values, default=None),
    "sum": sum,
}
_ALLOWED: Final = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.Compare, ast.BinOp, ast.IfExp,
    ast.Name, ast.Load, ast.Store, ast.Attribute, ast.Subscript, ast.Constant, ast.Tuple, ast.List, ast.Call,
    ast.GeneratorExp, ast.comprehension, ast.In, ast.NotIn, *_COMPARE, *_ARITHMETIC,
)  # fmt: skip


class StateExpression:
    """A parsed expression.

    Args:
        text: the expression.

    Attributes:
        text: the expression.
        of_event: whether it reads the event, so that it has a value of its own at every event.

    Raises:
        UsageError: it is not an expression of the language.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > CHARS_MAX:
            raise UsageError(f"the expression has {len(text)} characters; at most {CHARS_MAX} are accepted")
        try:
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply"
            raise UsageError(f"--expr {text!r}: {reason}; see ftctl bisect --help") from None
        _check(tree, text)
        self._body = tree.body
        self.of_event = any(isinstance(node, ast.Name) and node.id == "event" for node in ast.walk(tree))

    def value(self, state: JobState, event: Event) -> Any:
        """The value after an event.

        Raises:
            UsageError: a name or field does not exist, the types do not fit, or the evaluation takes too much work.
        """
        names: dict[str, Any] = {name: getattr(state, name) for name in _fields_of(state)}
        walk = _Walk({**names, "state": state, "event": event}, itertools.count(1))
        try:
            return walk.of(self._body)
        except (TypeError, ZeroDivisionError, OverflowError, RecursionError) as error:
            raise UsageError(f"--expr {self.text!r}: {error} (at event {event.seq})") from None


def _check(tree: ast.AST, text: str) -> None:
    nodes = list(ast.walk(tree))
    if len(nodes) > NODES_MAX:
        raise UsageError(f"--expr: the expression has {len(nodes)} parts; at most {NODES_MAX} are accepted")
    for node in nodes:
        problem = "" if isinstance(node, _ALLOWED) else f"{type(node).__name__} is not allowed"
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name.startswith("_"):
            problem = f"the name {name} is not allowed"
        if isinstance(node, ast.Call):
            called = node.func.id if isinstance(node.func, ast.Name) else ""
            if called not in _FUNCTIONS or len(node.args) != 1 or node.keywords:
                problem = f"only {', '.join(_FUNCTIONS)} of one container may be called"
        if isinstance(node, ast.GeneratorExp) and len(node.generators) != 1:
            problem = "one `for` is allowed"
        if isinstance(node, ast.comprehension) and (node.is_async or not isinstance(node.target, ast.Name)):
            problem = "`for` needs one name"
        if isinstance(node, ast.Constant) and not isinstance(node.value, str | int | float | bool | None):
            problem = f"{type(node.value).__name__} is not allowed"
        if problem:
            raise UsageError(f"--expr {text!r}: {problem}; see ftctl bisect --help")


def _fields_of(value: Any) -> tuple[str, ...]:
    if attrs.has(type(value)):
        return tuple(field.name for field in attrs.fields(type(value)) if not field.name.startswith("_"))
    if isinstance(value, msgspec.Struct):
        return tuple(name for name in value.__struct_fields__ if not name.startswith("_"))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return tuple(value._fields)
    return ()


class _Walk:
    def __init__(self, names: dict[str, Any], steps: Iterator[int]) -> None:
        self._names = names
        self._steps = steps

    def of(self, node: ast.AST) -> Any:
        """The value of a part."""
        if next(self._steps) > STEPS_MAX:
            raise UsageError(f"--expr: the evaluation takes more than {STEPS_MAX} steps")
        match node:
            case ast.Constant():
                return node.value
            case ast.Name():
                if node.id not in self._names:
                    raise UsageError(f"--expr: there is no {node.id!r}{_near(node.id, self._names)}")
                return self._names[node.id]
            case ast.Attribute():
                return _field(self.of(node.value), node.attr)
            case ast.Subscript():
                return _entry(self.of(node.value), self.of(node.slice))
            case ast.BoolOp():
                return self._bool(node)
            case ast.UnaryOp():
                value = self.of(node.operand)
                return not value if isinstance(node.op, ast.Not) else -value
            case ast.BinOp():
                return self._arithmetic(node)
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                return self.of(node.body) if self.of(node.test) else self.of(node.orelse)
            case ast.Tuple() | ast.List():
                return tuple(map(self.of, node.elts))
            case ast.Call(func=ast.Name(id=name)):
                return _FUNCTIONS[name](self._several(node.args[0]))
        raise UsageError(f"--expr: {type(node).__name__} is not allowed here")

    def _bool(self, node: ast.BoolOp) -> Any:
        value: Any = None
        for part in node.values:
            value = self.of(part)
            if bool(value) is isinstance(node.op, ast.Or):
                return value
        return value

    def _arithmetic(self, node: ast.BinOp) -> Any:
        left, right = self.of(node.left), self.of(node.right)
        if left is None or right is None:
            return None
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise TypeError("only numbers can be added, subtracted, multiplied and divided")
        return _ARITHMETIC[type(node.op)](left, right)

    def _compare(self, node: ast.Compare) -> bool:
        left = self.of(node.left)
        for kind, part in zip(node.ops, node.comparators, strict=True):
            right = self.of(part)
            if isinstance(kind, ast.In | ast.NotIn):
                holds = right is not None and left in right
                holds = holds is isinstance(kind, ast.In)
            elif isinstance(kind, _ORDER) and (left is None or right is None):
                holds = False
            else:
                holds = bool(_COMPARE[type(kind)](left, right))
            if not holds:
                return False
            left = right
        return True

    def _several(self, node: ast.AST) -> Iterator[Any]:
        if not isinstance(node, ast.GeneratorExp):
            yield from _values(self.of(node))
            return
        loop = node.generators[0]
        assert isinstance(loop.target, ast.Name)
        for value in _values(self.of(loop.iter)):
            inner = _Walk({**self._names, loop.target.id: value}, self._steps)
            if all(inner.of(condition) for condition in loop.ifs):
                yield inner.of(node.elt)


def _values(value: Any) -> Iterator[Any]:
    if value is None:
        return
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, str | tuple | list):
        yield from value
    else:
        raise TypeError(f"{type(value).__name__} is not a container")


def _field(value: Any, name: str) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return value.get(name)
    fields = _fields_of(value)
    if name not in fields:
        raise UsageError(f"--expr: {type(value).__name__} has no field {name!r}{_near(name, fields)}")
    return getattr(value, name)


def _entry(value: Any, key: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Mapping):
        return value.get(key)
    if isinstance(value, str | tuple | list) and isinstance(key, int):
        return value[key] if -len(value) <= key < len(value) else None
    raise TypeError(f"{type(value).__name__} has no entry {key!r}")


def _near(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are: {', '.join(names)}"

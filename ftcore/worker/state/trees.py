"""Takes tensors out of nested Python values, and puts them back.

What remains of a value is its *skeleton*: a copy of its dicts, lists and tuples that ``ftcore.checkpoint.values`` can
encode, with None in place of each tensor. A *leaf* says what belongs there:

| leaf | meaning |
|---|---|
| ``(path, "tensor", name)`` | the tensor with this name in the checkpoint |
| ``(path, "array", name)`` | the same, for a NumPy array |
| ``(path, "bytes", data)`` | a small vector of bytes: the state of a random number generator |
| ``(path, "small", (type, shape, data))`` | a small NumPy array |

House rules: small vectors of bytes and small arrays are values of their rank. Every other tensor belongs to the model,
so that ranks with the same tensor are replicas.
"""

import copy
import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

import torch

from ftcore.worker.state.slices import DeclaredSlice

SMALL_BYTES: Final = 16384
"""Largest vector of bytes, and largest array, that is a value of its rank."""

TreePath: TypeAlias = tuple[Any, ...]
Leaf: TypeAlias = tuple[TreePath, str, Any]


def text_of(path: TreePath) -> str:
    """Return a path as a part of a tensor's name."""
    return "/".join(map(str, path))


def split(value: Any) -> tuple[Any, list[Leaf], list[tuple[TreePath, Any]]]:
    """Take the tensors out of a value.

    Returns:
        The skeleton; the leaves without a tensor of their own; the path and the tensor, array or ``DeclaredSlice`` of
        all others.
    """
    leaves: list[Leaf] = []
    tensors: list[tuple[TreePath, Any]] = []

    def visit(item: Any, path: TreePath) -> Any:
        if isinstance(item, dict):
            return {key: visit(each, (*path, key)) for key, each in item.items()}
        if isinstance(item, list | tuple):
            found = [visit(each, (*path, number)) for number, each in enumerate(item)]
            return found if isinstance(item, list) else tuple(found)
        if isinstance(item, torch.Tensor):
            if is_byte_vector(item):
                leaves.append((path, "bytes", bytes_of(item)))
            else:
                tensors.append((path, item))
            return None
        if isinstance(item, DeclaredSlice):
            tensors.append((path, item))
            return None
        if is_array(item):
            if item.nbytes <= SMALL_BYTES:
                leaves.append((path, "small", (item.dtype.str, tuple(item.shape), item.tobytes())))
            else:
                tensors.append((path, item))
            return None
        return item

    return visit(value, ()), leaves, tensors


def is_byte_vector(tensor: Any) -> bool:
    """Whether a tensor is a value of its rank: such is the state of a generator."""
    return bool(
        type(tensor) is torch.Tensor
        and tensor.dtype == torch.uint8
        and tensor.dim() == 1
        and tensor.numel() <= SMALL_BYTES
    )


def bytes_of(tensor: Any) -> bytes:
    """Return the bytes of a vector of bytes."""
    found = tensor.detach().cpu().contiguous()
    return ctypes.string_at(found.data_ptr(), found.numel()) if found.numel() else b""


def byte_vector(data: bytes) -> Any:
    """Return a vector of these bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def is_array(value: Any) -> bool:
    """Whether a value is a NumPy array of numbers."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biufc"


def joined(skeleton: Any, leaves: list[Leaf], tensor_of: Callable[[str], Any]) -> Any:
    """Put the tensors back into a skeleton; dicts and lists are changed in place, tuples replaced.

    Args:
        skeleton: what ``split`` returned.
        leaves: all leaves.
        tensor_of: returns the tensor with a name.
    """
    for path, kind, data in leaves:
        skeleton = _put(skeleton, path, _content(kind, data, tensor_of))
    return skeleton


def _content(kind: str, data: Any, tensor_of: Callable[[str], Any]) -> Any:
    if kind == "bytes":
        return byte_vector(data)
    if kind == "small":
        import numpy

        dtype, shape, raw = data
        return numpy.frombuffer(raw, dtype=dtype).reshape(shape).copy()
    found = tensor_of(data)
    return found.numpy() if kind == "array" else found


def _put(value: Any, path: TreePath, content: Any) -> Any:
    if not path:
        return content
    if isinstance(value, tuple):
        items = list(value)
        items[path[0]] = _put(items[path[0]], path[1:], content)
        return tuple(items)
    value[path[0]] = _put(value[path[0]], path[1:], content)
    return value


def at_path(value: Any, path: TreePath) -> Any:
    """Return the item at a path; None: there is none."""
    try:
        for key in path:
            value = value[key]
    except (KeyError, IndexError, TypeError):
        return None
    return value


def same_types(value: Any, current: Any) -> Any:
    """Return a loaded value with the types of dicts and tuples that the current one has: a ``Counter``, a named tuple.

    Args:
        value: the loaded value.
        current: what is there now.
    """
    if isinstance(value, dict) and isinstance(current, dict):
        found = {key: same_types(item, current.get(key)) for key, item in value.items()}
        if type(current) is dict:
            return found
        made = copy.copy(current)
        made.clear()
        made.update(found)
        return made
    if isinstance(value, list) and isinstance(current, list):
        return [same_types(item, at_path(current, (number,))) for number, item in enumerate(value)]
    if isinstance(value, tuple) and isinstance(current, tuple):
        items = [same_types(item, at_path(current, (number,))) for number, item in enumerate(value)]
        make = getattr(type(current), "_make", None)
        return make(items) if make is not None else tuple(items)
    return value


def modules_in(value: Any) -> Iterator[TreePath]:
    """Paths of what cannot be part of a nested value, because it has to be registered under a name of its own."""
    if isinstance(value, torch.nn.Module | torch.optim.Optimizer):
        yield ()
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from ((key, *path) for path in modules_in(item))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            yield from ((number, *path) for path in modules_in(item))

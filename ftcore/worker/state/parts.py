"""Parts of a training process's state: one for each registered object.

A part is asked in this order at each step boundary: ``record`` for its Python values, then ``is_current``, and
``collect`` only if its tensor objects are others than before. For loading: ``targets``, then, when they are filled,
``restore``.

House rules: nothing here communicates or copies a tensor, except for the small values that ``trees`` describes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from ftcore.checkpoint.layout import Shape
from ftcore.errors import CheckpointError
from ftcore.worker.state import modules, trees
from ftcore.worker.state.held import HeldTensors
from ftcore.worker.state.layouts import FlatParameters, FlatRange, TensorBox, boxes_of, flat_parameters, is_dtensor
from ftcore.worker.state.slices import DeclaredSlice


class FoundTensor(NamedTuple):
    """A tensor of the state.

    Args:
        name: its name in the checkpoint.
        owner: the tensor; its version says whether it was changed.
        boxes: what this rank holds of it.
        early: forward or backward may change it, so it is copied at the step boundary.
        defining: replicas must have the same boxes of it; False if that follows from its parameter.
    """

    name: str
    owner: Any
    boxes: list[TensorBox]
    early: bool = False
    defining: bool = True


class StoredShape(NamedTuple):
    """Type and shape of a whole tensor in a checkpoint."""

    dtype: str
    size: Shape


class LoadTarget(NamedTuple):
    """A tensor to be filled.

    Args:
        name: its name in the checkpoint.
        boxes: the memory to fill.
    """

    name: str
    boxes: list[TensorBox]


class StatePart(Protocol):
    """One registered object."""

    name: str

    def record(self) -> dict[str, Any]:
        """Return its Python values, as a value that ``ftcore.checkpoint.values`` can encode."""

    def is_current(self) -> bool:
        """Whether its tensors are the objects that ``collect`` returned."""

    def collect(self) -> Iterable[FoundTensor]:
        """Return its tensors.

        Raises:
            ValueError: one of them cannot be saved.
        """

    def targets(self, record: Mapping[str, Any], stored: Mapping[str, StoredShape]) -> Iterable[LoadTarget]:
        """Return what has to be filled; makes tensors that do not exist yet.

        Args:
            record: its Python values in the checkpoint.
            stored: the tensors of the checkpoint.

        Raises:
            CheckpointError: the checkpoint does not fit to the object.
        """

    def restore(self, record: Mapping[str, Any]) -> None:
        """Set the Python values, after the targets were filled."""


class ModulePart:
    """Parameters and persistent buffers of a module.

    Args:
        name: the name under which it is registered.
        module: the module.
    """

    def __init__(self, name: str, module: Any) -> None:
        self.name = name
        self.module = module
        self.flat = FlatParameters({}, {}, [])
        self.names: dict[int, str] = {}
        """Names of the parameters in the module, by identity."""
        self._held = HeldTensors((), ())

    def record(self) -> dict[str, Any]:
        """See ``StatePart``: a module's own Python values are its extra state, parts of their own."""
        return {"kind": "module"}

    def is_current(self) -> bool:
        """See ``StatePart``."""
        return self._held.is_current() and self.flat.is_current()

    def collect(self) -> Iterator[FoundTensor]:
        """See ``StatePart``."""
        modules.reshard(self.module)
        self.flat = flat_parameters(self.module)
        holders = (
            held
            for each in self.module.modules()
            for held in (each._modules, each._buffers, each._parameters)
            if held is not each._parameters or id(each) not in self.flat.owned
        )
        places: list[tuple[dict[str, Any], str, Any]] = []
        self.names = {}
        for each in modules.walk(self.module, self.flat.owned):
            if each.kind == "extra":
                continue
            name, tensor = f"{self.name}/{each.name}", each.tensor
            if each.kind == "parameter":
                self.names.setdefault(id(tensor), each.name)
            flat = self.flat.ranges.get(id(tensor))
            if flat is None:
                held = each.module._parameters if each.kind == "parameter" else each.module._buffers
                places.append((held, each.key, tensor))
            boxes = boxes_of(tensor if flat is None else flat.data, name, flat) if flat is None or flat.length else []
            yield FoundTensor(name, tensor, boxes, early=each.kind == "buffer")
        self._held = HeldTensors(holders, places)

    def extras(self) -> Iterator["ValuePart"]:
        """The extra states of its modules, each as a part of its own."""
        for each in modules.walk(self.module, {}):
            if each.kind == "extra":
                module = each.module
                yield ValuePart(f"{self.name}/{each.name}", module.get_extra_state, module.set_extra_state)

    def targets(self, record: Mapping[str, Any], stored: Mapping[str, StoredShape]) -> Iterator[LoadTarget]:
        """See ``StatePart``."""
        for found in self.collect():
            yield LoadTarget(found.name, found.boxes)

    def restore(self, record: Mapping[str, Any]) -> None:
        """See ``StatePart``: nothing remains to be done."""

    def flat_of(self, param: Any) -> FlatRange | None:
        """The flat range of a parameter; None: it has none."""
        return self.flat.ranges.get(id(param))


class ValuePart:
    """Nested values with tensors: what an object's ``state_dict`` returns, or a registered dict or list.

    Args:
        name: the name under which it is registered.
        get: returns the value.
        put: sets it.
    """

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self.name = name
        self._get, self._put = get, put
        self._value: Any = None
        self._found: list[tuple[str, Any]] = []
        self._collected: list[tuple[Any, ...]] | None = None
        self._made: dict[str, Any] = {}

    def record(self) -> dict[str, Any]:
        """See ``StatePart``."""
        self._value = self._get()
        for path in trees.modules_in(self._value):
            where = f"{self.name}/{trees.text_of(path)}"
            raise ValueError(f"{where} cannot be saved: register a module or an optimizer under a name of its own")
        tree, leaves, tensors = trees.split(self._value)
        self._found = []
        taken: set[str] = set()
        for path, tensor in tensors:
            name = f"{self.name}/{trees.text_of(path)}"
            while name in taken:
                name += "'"
            taken.add(name)
            self._found.append((name, tensor))
            leaves.append((path, "array" if trees.is_array(tensor) else "tensor", name))
        return {"kind": "values", "tree": tree, "leaves": leaves}

    def is_current(self) -> bool:
        """See ``StatePart``: an object may return other aliases of the same memory each time."""
        return self._collected == [_identity(name, tensor) for name, tensor in self._found]

    def collect(self) -> Iterator[FoundTensor]:
        """See ``StatePart``."""
        self._collected = [_identity(name, tensor) for name, tensor in self._found]
        for name, tensor in self._found:
            found = torch.from_numpy(tensor) if trees.is_array(tensor) else tensor
            yield FoundTensor(name, found, boxes_of(found, name), early=trees.is_array(tensor))

    def targets(self, record: Mapping[str, Any], stored: Mapping[str, StoredShape]) -> Iterator[LoadTarget]:
        """See ``StatePart``."""
        self._value = self._get()
        self._made = {}
        for path, kind, name in record["leaves"]:
            if kind in ("tensor", "array"):
                if name not in stored:
                    raise CheckpointError(f"the checkpoint has no tensor {name}")
                current = trees.at_path(self._value, path)
                self._made[name] = made = _to_fill(current, stored[name])
                yield LoadTarget(name, boxes_of(made, name))

    def restore(self, record: Mapping[str, Any]) -> None:
        """See ``StatePart``."""
        value = trees.joined(record["tree"], record["leaves"], self._made.__getitem__)
        self._put(trees.same_types(value, self._value))
        self._made, self._value = {}, None


def _identity(name: str, tensor: Any) -> tuple[Any, ...]:
    """Equal for two tensor objects with the same memory."""
    if isinstance(tensor, DeclaredSlice):
        return (tensor.size, tensor.offset, *_identity(name, tensor.tensor))
    if is_dtensor(tensor):
        return (name, id(tensor))
    if trees.is_array(tensor):
        return (name, tensor.ctypes.data, tensor.shape, tensor.strides, tensor.dtype.str)
    if tensor.layout != torch.strided:
        return (name, id(tensor))
    return (name, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def _to_fill(current: Any, stored: StoredShape) -> Any:
    """The tensor to load into: the current one if it has the shape and type, else a new one."""
    if isinstance(current, DeclaredSlice) or (current is not None and is_dtensor(current)):
        return current
    dtype = getattr(torch, stored.dtype)
    if isinstance(current, torch.Tensor):
        if tuple(current.shape) == stored.size and current.dtype == dtype:
            return current
        return torch.empty(stored.size, dtype=dtype, device=current.device)
    return torch.empty(stored.size, dtype=dtype)


def assign(target: Any, value: Any) -> None:
    """Make a dict or list equal to another one in place, and those inside it, so that references stay valid."""
    if isinstance(target, dict):
        kept = {key: target[key] for key, item in value.items() if _is_same_kind(target.get(key), item)}
        target.clear()
        target.update(value)
        for key, item in kept.items():
            assign(item, value[key])
            target[key] = item
    else:
        kept = {n: target[n] for n, item in enumerate(value) if n < len(target) and _is_same_kind(target[n], item)}
        target[:] = value
        for number, item in kept.items():
            assign(item, value[number])
            target[number] = item


def _is_same_kind(current: Any, value: Any) -> bool:
    return type(current) is type(value) and isinstance(value, dict | list)

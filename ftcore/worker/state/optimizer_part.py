"""The state of an optimizer, named by the parameters of the registered modules.

Tensors are ``NAME/state/PARAMETER/KEY``, as in ``get_optimizer_state_dict``. State that is not tensors alone (L-BFGS),
and the hyperparameters of the parameter groups, are Python values. A parameter that no registered module has is
``GROUP.NUMBER``: its number in its group.

House rules: state is loaded with the exact type it was saved with, although ``Optimizer.load_state_dict`` casts it to
the type of the parameter. A state tensor of its parameter's shape is split as its parameter is.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from ftcore.checkpoint.layout import ALIGN, ITEM_BYTES
from ftcore.errors import CheckpointError
from ftcore.worker.state import trees
from ftcore.worker.state.held import are_values_of, values_of
from ftcore.worker.state.layouts import FlatRange, TensorBox, boxes_of, is_dtensor
from ftcore.worker.state.parts import FoundTensor, LoadTarget, StoredShape

_SHARDED_BY_ITSELF = "ZeroRedundancyOptimizer"


class NamedParameter(NamedTuple):
    """A parameter of an optimizer.

    Args:
        name: its name in its module.
        param: the parameter.
        flat: its flat range, if FSDP1 has split it.
        number: its number among all parameters of the optimizer.
    """

    name: str
    param: Any
    flat: FlatRange | None
    number: int


_PLAIN = frozenset((int, float, bool, str, type(None)))


def _are_plain(items: Iterable[Any]) -> bool:
    """Whether all are immutable Python values, so that equal ones are the same."""
    return all(
        type(item) in _PLAIN or (type(item) is tuple and all(type(each) in _PLAIN for each in item)) for item in items
    )


class OptimizerPart:
    """An optimizer.

    Args:
        name: the name under which it is registered.
        optimizer: the optimizer.
        name_of: returns name and flat range of a parameter of a registered module; None: no module has it.

    Raises:
        ValueError: it splits its state by itself.
    """

    def __init__(
        self, name: str, optimizer: Any, name_of: Callable[[Any], tuple[str, FlatRange | None] | None]
    ) -> None:
        if any(kind.__name__ == _SHARDED_BY_ITSELF for kind in type(optimizer).__mro__):
            raise ValueError(f"{name} cannot be saved: {_SHARDED_BY_ITSELF} is not supported; use fully_shard (FSDP2)")
        self.name = name
        self.optimizer = optimizer
        self._name_of = name_of
        self._states: list[dict[str, Any]] = []
        self._of_parameters, self._held = values_of(()), values_of(())
        self._count = -1
        self._mixed: dict[str, NamedParameter] = {}
        self._values: list[tuple[trees.TreePath, str, Any]] = []
        self._collected: list[int] = []
        self._global: list[str] = []
        self._record: dict[str, Any] = {}
        self._items: list[Any] | None = None
        """What the parameter groups had when the record was made; None: it is made each time."""
        self._made: dict[int, dict[str, Any]] = {}
        self._loaded: dict[str, Any] = {}

    def parameters(self) -> Iterator[NamedParameter]:
        """All parameters, in the order of the optimizer."""
        number = 0
        for group_number, group in enumerate(self.optimizer.param_groups):
            for place, param in enumerate(group["params"]):
                name, flat = self._name_of(param) or (f"{group_number}.{place}", None)
                yield NamedParameter(name, param, flat, number)
                number += 1

    # -- saving

    def record(self) -> dict[str, Any]:
        """See ``StatePart``."""
        optimizer = self.optimizer
        is_plain = not self._mixed and not self._global and len(optimizer.state) == self._count
        if is_plain and self._items is not None and are_values_of(optimizer.param_groups, self._items):
            return self._record
        groups = [{key: item for key, item in group.items() if key != "params"} for group in optimizer.param_groups]
        if is_plain and all(_are_plain(group.values()) for group in groups):
            self._items, self._values = values_of(optimizer.param_groups), []
            self._record = {"kind": "optimizer", "tree": {"param_groups": groups, "state": {}}, "leaves": []}
            return self._record
        self._items = None
        value: dict[str, Any] = {
            "param_groups": groups,
            "state": {name: optimizer.state.get(each.param) for name, each in self._mixed.items()},
        }
        if len(optimizer.state) != self._count:  # state that belongs to no parameter
            self._global = [key for key in optimizer.state if isinstance(key, str)]
        for key in self._global:
            value["state"][key] = optimizer.state[key]
        tree, leaves, tensors = trees.split(value)
        self._values = [(path, f"{self.name}/{trees.text_of(path)}", tensor) for path, tensor in tensors]
        leaves += [(path, "tensor", name) for path, name, _ in self._values]
        self._record = {"kind": "optimizer", "tree": tree, "leaves": leaves}
        return self._record

    def is_current(self) -> bool:
        """See ``StatePart``."""
        return (
            len(self.optimizer.state) == self._count
            and are_values_of((self.optimizer.state,), self._of_parameters)
            and [id(tensor) for _, _, tensor in self._values] == self._collected
            and are_values_of(self._states, self._held)
        )

    def collect(self) -> Iterator[FoundTensor]:
        """See ``StatePart``."""
        state_of = self.optimizer.state
        self._states, self._mixed, self._count = [], {}, len(state_of)
        self._of_parameters = values_of((state_of,))
        for each in self.parameters():
            state = state_of.get(each.param)
            if not state:
                continue
            if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
                self._mixed[each.name] = each
                continue
            self._states.append(state)
            for key, value in state.items():
                name = f"{self.name}/state/{each.name}/{key}"
                yield FoundTensor(name, value, _boxes_like(each, value, name), defining=False)
        self._held = values_of(self._states)
        self.record()  # again: it depends on which state is mixed
        self._collected = [id(tensor) for _, _, tensor in self._values]
        for path, name, tensor in self._values:
            owner = self._mixed.get(path[1]) if path[0] == "state" else None
            boxes = boxes_of(tensor, name) if owner is None else _boxes_like(owner, tensor, name)
            yield FoundTensor(name, tensor, boxes, early=owner is None, defining=False)

    # -- loading

    def targets(self, record: Mapping[str, Any], stored: Mapping[str, StoredShape]) -> Iterator[LoadTarget]:
        """See ``StatePart``."""
        groups = record["tree"]["param_groups"]
        if len(groups) != len(self.optimizer.param_groups):
            count = len(self.optimizer.param_groups)
            raise CheckpointError(f"{self.name} has {count} parameter groups, that of the checkpoint {len(groups)}")
        mixed = {name for _, kind, name in record["leaves"] if kind == "tensor"}
        prefix = f"{self.name}/state/"
        keys: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for name in stored:
            if name.startswith(prefix) and name not in mixed:
                param, _, key = name.removeprefix(prefix).partition("/")
                keys[param].append((key, name))
        self._made, self._loaded = {}, {}
        for each in self.parameters():
            for key, name in keys.get(each.name) or keys.get(str(each.number)) or ():
                if each.flat is not None and not each.flat.length:
                    continue
                made, boxes = self._to_fill(each, key, name, stored[name])
                self._made.setdefault(each.number, {})[key] = made
                yield LoadTarget(name, boxes)
        for path, kind, name in record["leaves"]:
            if kind == "tensor":
                self._loaded[name] = made = _new(stored[name], self._device_at(path))
                yield LoadTarget(name, boxes_of(made, name))

    def _device_at(self, path: trees.TreePath) -> Any:
        """The device of a tensor among the Python values: that of the current one, else of the parameter."""
        current = trees.at_path({"param_groups": self.optimizer.param_groups}, path)
        if isinstance(current, torch.Tensor):
            return current.device
        params = {each.name: each.param for each in self.parameters()} if path[0] == "state" else {}
        return params[path[1]].device if path[1] in params else "cpu"

    def _to_fill(self, each: NamedParameter, key: str, name: str, stored: StoredShape) -> tuple[Any, list[TensorBox]]:
        """The tensor for a state of a parameter, and its boxes."""
        param = each.param
        size = each.flat.size if each.flat is not None else tuple(param.shape)
        current = self.optimizer.state.get(param, {}).get(key)
        dtype = getattr(torch, stored.dtype)
        if key == "step" or size != stored.size:
            group = next(g for g in self.optimizer.param_groups if any(p is param for p in g["params"]))
            on_device = key != "step" or group.get("capturable") or group.get("fused")
            made = _new(stored, param.device if on_device else "cpu")
            return made, boxes_of(made, name)
        if isinstance(current, torch.Tensor) and current.dtype == dtype and current.shape == param.shape:
            made = current
        elif is_dtensor(param):
            local = torch.empty_like(param._local_tensor, dtype=dtype)
            made = type(param).from_local(
                local, param.device_mesh, param.placements, run_check=False, shape=param.shape, stride=param.stride()
            )
        elif each.flat is not None:
            made = torch.empty(each.flat.length, dtype=dtype, device=each.flat.data.device)
        else:
            made = torch.empty_like(param, dtype=dtype)
        return made, _boxes_like(each, made, name)

    def restore(self, record: Mapping[str, Any]) -> None:
        """See ``StatePart``."""
        optimizer = self.optimizer
        tree = trees.joined(record["tree"], record["leaves"], self._loaded.__getitem__)
        named = tree.get("state", {})
        state: dict[Any, Any] = dict(self._made)
        state |= {each.number: named.pop(each.name) for each in self.parameters() if each.name in named}
        state |= named
        numbers = iter(range(sum(len(group["params"]) for group in optimizer.param_groups)))
        groups = [
            {**{k: v for k, v in loaded.items() if k != "params"}, "params": [next(numbers) for _ in group["params"]]}
            for loaded, group in zip(tree["param_groups"], optimizer.param_groups, strict=True)
        ]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        for each in self.parameters():
            if each.number in self._made:
                optimizer.state[each.param].update(self._made[each.number])  # it may have cast them
        self._made, self._loaded, self._count = {}, {}, -1


def _new(stored: StoredShape, device: Any) -> Any:
    return torch.empty(stored.size, dtype=getattr(torch, stored.dtype), device=device)


def _boxes_like(each: NamedParameter, value: Any, where: str) -> list[TensorBox]:
    """Boxes of a state tensor, split as its parameter."""
    param, flat = each.param, each.flat
    if is_dtensor(value):
        return boxes_of(value, where)
    if flat is not None and value.dim() == 1 and value.numel() == flat.length:
        return boxes_of(value, where, flat)
    if is_dtensor(param) and value.shape == param._local_tensor.shape != param.shape:
        found = boxes_of(param, where)
        if len(found) == 1:
            (box,) = found
            return [TensorBox(box.size, box.offset, box.shape, value.detach())]
    return boxes_of(value, where)


def expected_bytes(optimizer: Any) -> int:
    """Bytes of state that an optimizer will have on this rank after its first step, to request memory before it.

    Its step is computed without data, once for each shape; where that is impossible, two tensors for each parameter are
    assumed.
    """
    total = 0
    for group in optimizer.param_groups:
        shapes: dict[tuple[Any, Any], int] = defaultdict(int)
        for param in group["params"]:
            local = param._local_tensor if is_dtensor(param) else param
            shapes[tuple(local.shape), local.dtype] += local.requires_grad or param.requires_grad
        for (shape, dtype), count in shapes.items():
            param = torch.empty(shape, dtype=dtype, device="meta")
            total += count * _state_bytes(optimizer, group, param) if count else 0
    return total


def _state_bytes(optimizer: Any, group: dict[str, Any], param: Any) -> int:
    try:
        param.grad = torch.empty_like(param)
        fake = copy.copy(optimizer)
        fake.state = defaultdict(dict)
        plain = {key: False for key in ("foreach", "fused", "capturable") if key in group}
        fake.param_groups = [{**group, **plain, "params": [param]}]
        with torch.no_grad():
            inspect.unwrap(type(optimizer).step)(fake)
        values = [value for state in fake.state.values() for value in state.values()]
        found = [value for value in values if isinstance(value, torch.Tensor)]
        return sum(int(value.nbytes) + ALIGN for value in found)
    except Exception:  # any optimizer of the script
        return 2 * int(param.numel()) * max(int(param.element_size()), ITEM_BYTES["float32"]) + 4 * ALIGN

"""Where the data of a tensor lies in the whole tensor: the *boxes* that a rank holds.

| tensor | boxes |
|---|---|
| plain | one, the whole tensor |
| ``DTensor`` on any mesh | one; several if a strided placement is not contiguous; none if the local part is empty |
| parameter of FSDP1 (``use_orig_params``), and its optimizer state | up to ``2 n - 1`` for n dimensions: a flat range |
| ``DeclaredSlice`` | one |

House rules: a box is a view, never a copy. No collective. Private attributes of torch are read in this module alone.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import torch

from ftcore.checkpoint.layout import ITEM_BYTES, Shape
from ftcore.worker.state.slices import DeclaredSlice

PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
"""Types without a layout of their own."""


class TensorBox(NamedTuple):
    """A part of a tensor that this rank holds.

    Args:
        size: the shape of the whole tensor.
        offset: where the box begins.
        shape: its shape.
        data: a view of its data, of this shape.
    """

    size: Shape
    offset: Shape
    shape: Shape
    data: Any


class FlatRange(NamedTuple):
    """The part of a flattened parameter that this rank holds (FSDP1).

    Args:
        size: the shape of the parameter.
        start: the first element.
        length: the number of elements; 0: none.
        data: the elements in the rank's flat parameter; None if there are none.
    """

    size: Shape
    start: int
    length: int
    data: Any


def dtype_name(dtype: Any, where: str) -> str:
    """Return torch's name of a dtype.

    Raises:
        ValueError: checkpoints cannot have this dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise ValueError(f"{where} cannot be saved: its dtype is {name}; expected one of {', '.join(ITEM_BYTES)}")
    return name


def boxes_of(tensor: Any, where: str, flat: FlatRange | None = None) -> list[TensorBox]:
    """Return the boxes of a tensor.

    Args:
        tensor: a tensor, ``DTensor`` or ``DeclaredSlice``.
        where: its name, for errors.
        flat: its range, for a parameter of FSDP1 and state of its shape.

    Raises:
        ValueError: a tensor of this kind cannot be saved.
    """
    if isinstance(tensor, DeclaredSlice):
        inner = _plain(tensor.tensor, where)
        return [TensorBox(tensor.size, tensor.offset, tuple(inner.shape), inner)] if inner.numel() else []
    if flat is not None:
        return list(_flat_boxes(flat, _plain(tensor, where))) if flat.length else []
    if type(tensor) not in PLAIN and is_dtensor(tensor):
        return _dtensor_boxes(tensor, where)
    inner = _plain(tensor, where)
    shape = tuple(inner.shape)
    return [TensorBox(shape, (0,) * len(shape), shape, inner)]


def is_dtensor(tensor: Any) -> bool:
    """Whether it is a ``DTensor``; does not import ``torch.distributed.tensor``."""
    return hasattr(tensor, "_local_tensor") and hasattr(tensor, "placements")


def write(target: Any, source: Any) -> None:
    """Copy data into a tensor of the same shape; one whose elements share memory (``expand``) is written once."""
    for dimension, stride in enumerate(target.stride()):
        if not stride and target.size(dimension) > 1:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)


def version_of(tensor: Any) -> int:
    """Return a number that grows whenever the tensor is changed in place; that of its data if it wraps another one."""
    if isinstance(tensor, DeclaredSlice):
        tensor = tensor.tensor
    try:
        if type(tensor) in PLAIN or not is_dtensor(tensor):
            return int(tensor._version)
        return int(tensor._version) + int(tensor._local_tensor._version)
    except RuntimeError:  # a tensor of inference mode has no version
        return 0


def _plain(tensor: Any, where: str) -> Any:
    """An alias of a plain tensor: it keeps the memory, whatever becomes of the tensor."""
    if tensor.device.type == "meta":
        raise ValueError(f"{where} has no data: it is on the meta device; call `model.to_empty(device=...)` first")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"{where} cannot be saved: its layout is {tensor.layout}; convert it to a dense tensor")
    if type(tensor) not in PLAIN and hasattr(type(tensor), "__tensor_flatten__"):
        raise ValueError(f"{where} cannot be saved: it is a {type(tensor).__name__}; expected a tensor or a DTensor")
    dtype_name(tensor.dtype, where)
    return tensor.detach()


def _dtensor_boxes(tensor: Any, where: str) -> list[TensorBox]:
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements, size = tensor.device_mesh, tensor.placements, tuple(tensor.shape)
    if mesh.get_coordinate() is None:
        return []
    if any(placement.is_partial() for placement in placements):
        raise ValueError(f"{where} cannot be saved: it is a DTensor with a partial placement; reduce it first")
    local = _plain(tensor._local_tensor, where)
    if any(hasattr(placement, "split_factor") for placement in placements):
        return _strided_boxes(size, mesh, placements, local, where)
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, mesh, placements)
    _check_local(where, shape, local)
    if not prod(shape) and prod(size):
        return []
    return [TensorBox(size, tuple(map(int, offset)), tuple(map(int, shape)), local)]


def _check_local(where: str, shape: Sequence[int], local: Any) -> None:
    if tuple(local.shape) != tuple(shape):
        raise ValueError(
            f"{where} cannot be saved: its local part has shape {tuple(local.shape)}, its placement says {tuple(shape)}"
        )


def _strided_boxes(size: Shape, mesh: Any, placements: Any, local: Any, where: str) -> list[TensorBox]:
    """Boxes of a tensor that was split in another order than that of its mesh (FSDP2 over tensor parallelism)."""
    runs = [_runs(_local_indices(count, number, mesh, placements)) for number, count in enumerate(size)]
    _check_local(where, [sum(count for _, _, count in found) for found in runs], local)
    boxes = [((), (), local)]
    for number, found in enumerate(runs):
        boxes = [
            ((*offset, begin), (*shape, count), data.narrow(number, at, count))  # type: ignore[misc]
            for offset, shape, data in boxes
            for at, begin, count in found
        ]
    return [TensorBox(size, offset, shape, data) for offset, shape, data in boxes if data.numel()]


def _local_indices(count: int, dimension: int, mesh: Any, placements: Any) -> list[int]:
    """The indices of one dimension that this rank holds, in the order of its local part."""
    coordinate = mesh.get_coordinate()
    indices = torch.arange(count)
    for number, placement in enumerate(placements):
        if getattr(placement, "dim", None) != dimension:
            continue
        factor = getattr(placement, "split_factor", None)
        along = type(placement)(0) if factor is None else type(placement)(0, split_factor=factor)
        parts, _ = along._split_tensor(indices, mesh.size(number), with_padding=False, contiguous=False)
        indices = parts[coordinate[number]]
    found: list[int] = indices.tolist()
    return found


def _runs(indices: list[int]) -> list[tuple[int, int, int]]:
    """Runs of consecutive indices: position in the list, first index, length."""
    found: list[tuple[int, int, int]] = []
    for at, index in enumerate(indices):
        if found and found[-1][1] + found[-1][2] == index:
            found[-1] = (found[-1][0], found[-1][1], found[-1][2] + 1)
        else:
            found.append((at, index, 1))
    return found


def _flat_boxes(flat: FlatRange, data: Any) -> Iterator[TensorBox]:
    """Boxes of a range of a flattened tensor, in the order of the range."""
    data, at, ends = data.reshape(-1), flat.start, flat.start + flat.length
    while at < ends:
        offset, shape = _next_box(flat.size, at, ends)
        count = prod(shape)
        begin = at - flat.start
        yield TensorBox(flat.size, offset, shape, data[begin : begin + count].view(shape))
        at += count


def _next_box(size: Shape, at: int, ends: int) -> tuple[Shape, Shape]:
    """The largest box of a tensor that begins at a flat index and ends before another one: offset and shape."""
    units = [prod(size[number + 1 :]) for number in range(len(size))]
    offset = tuple(at // unit % count for unit, count in zip(units, size, strict=True))
    for number, unit in enumerate(units):
        fit = min((ends - at) // unit, size[number] - offset[number])
        if fit and not any(offset[number + 1 :]):
            return offset, (*(1 for _ in range(number)), fit, *size[number + 1 :])
    return offset, ()


class FlatParameters(NamedTuple):
    """The parameters of FSDP1 below a module.

    Args:
        ranges: their flat ranges, by the identity of the parameter.
        owned: the parameters by the identity of their module, then by key: between forward and backward, FSDP1 replaces
            them in the module.
        shards: the flat parameters, and the address of their data.
    """

    ranges: dict[int, FlatRange]
    owned: dict[int, dict[str, Any]]
    shards: list[tuple[Any, int]]

    def is_current(self) -> bool:
        """Whether the data is still at the same place."""
        return all(_local_shard(flat_param).data_ptr() == address for flat_param, address in self.shards)


def _local_shard(flat_param: Any) -> Any:
    """The data of a flat parameter on this rank; before its first forward, it is the parameter's own."""
    return getattr(flat_param, "_local_shard", flat_param)


def flat_parameters(module: Any) -> FlatParameters:
    """Return the parameters of FSDP1 below a module.

    Raises:
        ValueError: FSDP1 without ``use_orig_params``.
    """
    found = FlatParameters({}, {}, [])
    for each in module.modules():
        handle = getattr(each, "_handle", None) if hasattr(each, "_fsdp_wrapped_module") else None
        if handle is None:
            continue
        if not handle._use_orig_params:
            raise ValueError(
                "FSDP (FullyShardedDataParallel) is supported with use_orig_params=True; or use fully_shard (FSDP2)"
            )
        if handle.uses_sharded_strategy:
            _add_handle(found, handle.flat_param)
    return found


def _add_handle(found: FlatParameters, flat_param: Any) -> None:
    shard = _local_shard(flat_param).detach()
    found.shards.append((flat_param, shard.data_ptr()))
    by_place: dict[tuple[int, str], FlatRange] = {}
    for param, info, shape, place in zip(
        flat_param._params, flat_param._shard_param_infos, flat_param._shapes, flat_param._param_infos, strict=True
    ):
        size = tuple(shape)
        if info.in_shard:
            begin, count = info.offset_in_shard, info.numel_in_shard
            made = FlatRange(size, info.intra_param_start_idx, count, shard[begin : begin + count])
        else:
            made = FlatRange(size, 0, 0, None)
        found.ranges[id(param)] = by_place[id(place.module), place.param_name] = made
        found.owned.setdefault(id(place.module), {})[place.param_name] = param
    by_prime = dict(
        zip(((id(p.module), p.param_name) for p in flat_param._param_infos), flat_param._params, strict=True)
    )
    for param, place in zip(flat_param._shared_params, flat_param._shared_param_infos, strict=True):
        prime = id(place.prim_module), place.prim_param_name
        found.ranges[id(param)] = by_place[prime]
        found.owned.setdefault(id(place.module), {})[place.param_name] = by_prime[prime]

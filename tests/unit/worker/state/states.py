"""Reads what ranks wrote: whole tensors, from the slices of all ranks."""

from pathlib import Path
from typing import Any

import torch


def loaded(out: Path, rank: int, when: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(out / f"{rank}.{when}", weights_only=False)
    return found


def whole(out: Path, when: str, prefix: str = "") -> dict[str, torch.Tensor]:
    """Whole tensors by name; equal slices of several ranks must be equal to the last bit."""
    made: dict[str, torch.Tensor] = {}
    filled: dict[str, torch.Tensor] = {}
    for rank in range(len(list(out.glob(f"*.{when}")))):
        for (name, size, offset), data in loaded(out, rank, when)["pieces"]:
            if not name.startswith(prefix):
                continue
            tensor = made.setdefault(name, torch.zeros(size, dtype=data.dtype))
            mask = filled.setdefault(name, torch.zeros(size, dtype=torch.bool))
            part = tuple(slice(begin, begin + count) for begin, count in zip(offset, data.shape, strict=True))
            known = mask[part]
            assert not known.any() or torch.equal(tensor[part][known], data[known]), name
            tensor[part] = data
            mask[part] = True
    assert all(mask.all() for mask in filled.values()), [name for name, mask in filled.items() if not mask.all()]
    return made


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def equal(one: Any, other: Any) -> bool:
    """Whether nested values are equal, to the last bit; the order of a dict's keys does not matter."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)

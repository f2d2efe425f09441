"""Whether the tensors of a module or an optimizer are still the same objects at the same places.

This is asked at each step boundary, of thousands of tensors in a large model. So there is no loop in Python: ``map``
with functions of C takes two thirds of its time.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from operator import is_
from typing import Any, Final

import torch

from ftcore.worker.state.layouts import is_dtensor

_address_of: Any = torch.Tensor.data_ptr
_get: Any = dict.get
_END: Final = (object(),)


def values_of(holders: Iterable[dict[Any, Any]]) -> list[Any]:
    """Return the values of dicts, for ``are_values_of``."""
    return [*chain.from_iterable(map(dict.values, holders)), *_END]


def are_values_of(holders: Iterable[dict[Any, Any]], expected: list[Any]) -> bool:
    """Whether dicts have the same objects as values, in the same order, as when ``values_of`` was called."""
    return all(map(is_, chain(chain.from_iterable(map(dict.values, holders)), _END), expected))


class HeldTensors:
    """Tensors with their places in the dicts of modules.

    Args:
        holders: dicts in which nothing may be added or removed.
        places: a dict, a key, and the tensor that is there. Its memory stays where it is, but for a distributed tensor.
    """

    def __init__(self, holders: Iterable[dict[str, Any]], places: Sequence[tuple[dict[str, Any], str, Any]]) -> None:
        self._holders = list(holders)
        self._sizes = list(map(len, self._holders))
        self._dicts, self._keys = [held for held, _, _ in places], [key for _, key, _ in places]
        self._tensors = [tensor for _, _, tensor in places]
        self._local = [each for each in self._tensors if not is_dtensor(each) and each.data_ptr()]
        self._addresses = list(map(_address_of, self._local))

    def is_current(self) -> bool:
        """Whether all of that still holds."""
        return (
            list(map(len, self._holders)) == self._sizes
            and all(map(is_, map(_get, self._dicts, self._keys), self._tensors))
            and list(map(_address_of, self._local)) == self._addresses
        )

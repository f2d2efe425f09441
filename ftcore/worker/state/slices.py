"""Declares a tensor of one rank as a slice of a larger one; imported without torch."""

from typing import Any


class DeclaredSlice:
    """A tensor of this rank that is a slice of a larger tensor, for state that a script has split by hand.

    Put it in place of the tensor into a registered dict, or into what a registered object's ``state_dict`` returns.
    Ranks with the same slices are replicas of each other. Loading fills the tensor in place, from whatever ranks saved
    its parts.

    Args:
        tensor: the tensor of this rank.
        size: the shape of the whole tensor.
        offset: where the slice begins, by dimension.

    Raises:
        ValueError: the slice is not inside the whole tensor.
    """

    def __init__(self, tensor: Any, *, size: tuple[int, ...], offset: tuple[int, ...]) -> None:
        self.tensor = tensor
        self.size = tuple(map(int, size))
        self.offset = tuple(map(int, offset))
        shape = tuple(tensor.shape)
        ends = [begin + count for begin, count in zip(self.offset, shape, strict=False)]
        if not len(self.size) == len(self.offset) == len(shape) or any(
            begin < 0 or end > whole for begin, end, whole in zip(self.offset, ends, self.size, strict=True)
        ):
            raise ValueError(f"a slice of shape {shape} at {self.offset} is not inside a tensor of shape {self.size}")

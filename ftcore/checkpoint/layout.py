"""The layout of a checkpoint: which rank holds which slice of which tensor.

A *piece* is a slice of one tensor: a box in the tensor's global shape. A *shard* is what one rank stages: its pieces,
and its Python values. Ranks that hold the same pieces form a *replica group*; a checkpoint needs one shard of each
group. A tensor that is not split is one piece that covers its global shape.

House rules: names, shapes and offsets are those of the whole model, never of a world size, so any number of ranks can
load a checkpoint. Python values are JSON (``values``): loading never executes code.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Final, TypeAlias, TypeVar

import msgspec

Shape: TypeAlias = tuple[int, ...]

_Item = TypeVar("_Item")

ITEM_BYTES: Final = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes of an element by dtype, under torch's names."""

ALIGN: Final = 64
"""Alignment of a piece's data in staging memory, in bytes."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """A slice of one tensor.

    Args:
        name: the tensor's name in the checkpoint, for example ``model/layers.0.weight``.
        dtype: a key of ``ITEM_BYTES``.
        size: the tensor's global shape.
        offset: where the slice begins, by dimension.
        shape: the shape of the slice.
        at: where its data begins in the shard's data, in bytes.
    """

    name: str
    dtype: str
    size: Shape
    offset: Shape
    shape: Shape
    at: int = 0

    @property
    def bytes(self) -> int:
        """Size of its data in bytes; the data is contiguous, in C order."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def whole(self) -> bool:
        """Whether the slice is the whole tensor."""
        return self.shape == self.size


class ShardIndex(msgspec.Struct, frozen=True, kw_only=True):
    """What a shard holds.

    Args:
        job: the job's name.
        log: the identity of the job's log.
        round: the round in which it was staged.
        step: the number of the last completed step, counted from the start of the training.
        rank: the global rank that staged it.
        ranks: the number of ranks of that round.
        group: the replica group of the rank, from 0.
        groups: the number of replica groups.
        pieces: its pieces, in order of their data.
        values: the rank's Python values, as ``values.encode`` wrote them.
        tensors: whether it has the state of its replica group, which may be without a tensor. Other ranks of the
            group stage only their Python values.
    """

    job: str
    log: str
    round: int
    step: int
    rank: int
    ranks: int
    group: int
    groups: int
    pieces: tuple[Piece, ...]
    values: str = "{}"
    tensors: bool = True


def placed(pieces: Iterable[Piece]) -> tuple[tuple[Piece, ...], int]:
    """Place the data of pieces one after the other, each aligned to ``ALIGN``.

    Returns:
        The pieces with their place, and the number of bytes of all data.
    """
    found, at = [], 0
    for piece in pieces:
        found.append(msgspec.structs.replace(piece, at=at))
        at = aligned(at + piece.bytes)
    return tuple(found), at


def aligned(at: int, unit: int = ALIGN) -> int:
    """Round up to a multiple of ``unit``."""
    return -(-at // unit) * unit


class Overlap(msgspec.Struct, frozen=True, array_like=True):
    """The common box of two pieces of one tensor.

    Args:
        source: where it begins in the first piece, by dimension.
        target: where it begins in the second piece.
        shape: its shape.
    """

    source: Shape
    target: Shape
    shape: Shape


def overlap(source: Piece, target: Piece) -> Overlap | None:
    """Return the common box of two pieces of one tensor; None: they have no element in common.

    Pieces of a tensor without dimensions have their only element in common.
    """
    begins = tuple(map(max, source.offset, target.offset))
    ends = tuple(
        min(a + n, b + m) for a, n, b, m in zip(source.offset, source.shape, target.offset, target.shape, strict=True)
    )
    if any(end <= begin for begin, end in zip(begins, ends, strict=True)):
        return None
    return Overlap(
        tuple(begin - a for begin, a in zip(begins, source.offset, strict=True)),
        tuple(begin - b for begin, b in zip(begins, target.offset, strict=True)),
        tuple(end - begin for begin, end in zip(begins, ends, strict=True)),
    )


def missing(wanted: Sequence[Piece], held: Iterable[Piece]) -> tuple[str, ...]:
    """Names of the wanted pieces that the held pieces do not cover, each once and in order.

    The held pieces of one tensor must not overlap partly: they are equal, or have no element in common.
    """
    boxes: dict[tuple[str, Shape], dict[tuple[Shape, Shape], Piece]] = {}
    for piece in held:
        boxes.setdefault((piece.name, piece.size), {})[piece.offset, piece.shape] = piece
    gaps: dict[str, None] = {}
    for piece in wanted:
        found = boxes.get((piece.name, piece.size))
        common = (overlap(each, piece) for each in found.values()) if found else ()
        if found is None or sum(prod(box.shape) for box in common if box is not None) < prod(piece.shape):
            gaps[piece.name] = None
    return tuple(gaps)


def grouped(items: Iterable[_Item], size_of: Callable[[_Item], int], limit: int) -> Iterator[list[_Item]]:
    """Yield items in groups of at most ``limit`` bytes, in their order; a larger one is a group of its own."""
    group: list[_Item] = []
    size = 0
    for item in items:
        if group and size + size_of(item) > limit:
            yield group
            group, size = [], 0
        group.append(item)
        size += size_of(item)
    if group:
        yield group

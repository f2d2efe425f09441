"""Overlap and coverage of pieces, compared with NumPy's indexing."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ftcore.checkpoint.layout import ALIGN, Piece, Shape, missing, overlap, placed
from ftcore.checkpoint.manifest import TensorSlice, overlapping

sizes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


@st.composite
def boxes(draw: st.DrawFn, size: Shape, name: str = "w") -> Piece:
    """A slice of a tensor of this size; it may be empty."""
    ranges = [sorted((draw(st.integers(0, count)), draw(st.integers(0, count)))) for count in size]
    return Piece(name, "float32", size, tuple(a for a, _ in ranges), tuple(b - a for a, b in ranges))


@st.composite
def tilings(draw: st.DrawFn, size: Shape, name: str = "w") -> list[Piece]:
    """Slices that cover a tensor once: it is cut at random, again and again."""
    found = [Piece(name, "float32", size, (0,) * len(size), size)]
    for _ in range(draw(st.integers(0, 6)) if size else 0):
        piece = found.pop(draw(st.integers(0, len(found) - 1)))
        dim = draw(st.integers(0, len(size) - 1))
        cut = draw(st.integers(0, piece.shape[dim]))
        for begin, count in ((0, cut), (cut, piece.shape[dim] - cut)):
            offset = tuple(at + begin * (number == dim) for number, at in enumerate(piece.offset))
            shape = tuple(count if number == dim else old for number, old in enumerate(piece.shape))
            found.append(Piece(name, "float32", size, offset, shape))
    return found


def region(offset: Shape, shape: Shape) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + count) for begin, count in zip(offset, shape, strict=True))


def covered(size: Shape, pieces: list[Piece]) -> np.ndarray:
    """How many of the pieces have each element."""
    count = np.zeros(size, dtype=int)
    for piece in pieces:
        count[region(piece.offset, piece.shape)] += 1
    return count


two_boxes = sizes.flatmap(lambda size: st.tuples(boxes(size), boxes(size)))


@given(two_boxes)
def test_overlap_is_what_both_have(both: tuple[Piece, Piece]) -> None:
    """Copied from one piece into the other, exactly the common elements arrive, each at its place."""
    source, target = both
    whole = np.arange(prod(source.size)).reshape(source.size)
    common = (covered(source.size, [source]) > 0) & (covered(source.size, [target]) > 0)
    found = overlap(source, target)
    assert (found is not None) == common.any()
    made = np.full(target.shape, -1)
    if found is not None:
        held = whole[region(source.offset, source.shape)]
        made[region(found.target, found.shape)] = held[region(found.source, found.shape)]
    expected = np.where(common, whole, -1)[region(target.offset, target.shape)]
    assert np.array_equal(made, expected)


@given(sizes.flatmap(lambda size: st.tuples(tilings(size), boxes(size), st.data())))
def test_missing_is_what_no_piece_has(given_: tuple[list[Piece], Piece, st.DataObject]) -> None:
    """Of slices that do not overlap, with any of them gone and any of them held twice."""
    tiles, wanted, data = given_
    held = [tile for tile in tiles if data.draw(st.booleans())]
    held += data.draw(st.lists(st.sampled_from(held), max_size=3)) if held else []
    lacks = (covered(wanted.size, held)[region(wanted.offset, wanted.shape)] == 0).any()
    assert missing([wanted, wanted], held) == (("w",) if lacks or not held else ())


@given(sizes, sizes)
def test_a_tensor_of_another_size_or_name_covers_nothing(size: Shape, other: Shape) -> None:
    """Whatever it has; also if there is nothing to cover, and beside a tensor of the right size."""
    wanted = Piece("w", "float32", size, (0,) * len(size), size)
    changed = Piece("w", "float32", other, (0,) * len(other), other)
    renamed = Piece("v", "float32", size, (0,) * len(size), size)
    assert missing([wanted], [changed, renamed]) == (() if size == other else ("w",))
    assert missing([wanted], [wanted, changed, renamed]) == ()


@given(st.lists(sizes.flatmap(boxes)))
def test_placed_pieces_are_apart_and_aligned(pieces: list[Piece]) -> None:
    """In their order, each at a multiple of ``ALIGN``, all within the total."""
    found, total = placed(pieces)
    ends = 0
    for before, piece in zip(pieces, found, strict=True):
        assert (piece.name, piece.offset, piece.shape) == (before.name, before.offset, before.shape)
        assert piece.at % ALIGN == 0 and piece.at >= ends
        ends = piece.at + piece.bytes
    assert ends <= total


def slices(pieces: list[Piece]) -> list[TensorSlice]:
    return [TensorSlice(0, piece.offset, piece.shape, 0, 0) for piece in pieces if prod(piece.shape)]


@given(sizes.flatmap(lambda size: st.lists(boxes(size), max_size=5)))
def test_a_commit_finds_every_overlap(pieces: list[Piece]) -> None:
    """Of any slices, of which two have an element in common."""
    size = pieces[0].size if pieces else ()
    assert overlapping(slices(pieces)) == bool((covered(size, [p for p in pieces if prod(p.shape)]) > 1).any())


@given(sizes.flatmap(tilings))
def test_a_commit_accepts_every_tiling(pieces: list[Piece]) -> None:
    """However the tensor is cut."""
    assert not overlapping(slices(pieces))

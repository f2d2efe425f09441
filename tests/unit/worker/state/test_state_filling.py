"""Memory is filled from the slices that overlap it, by one thread or by several."""

from typing import Any

import pytest
import torch

from ftcore.checkpoint.layout import Piece
from ftcore.worker.state import filling
from ftcore.worker.state.layouts import TensorBox
from ftcore.worker.state.parts import LoadTarget

ROWS, COLUMNS = 3000, 1000


class Slices:
    """Two slices of one tensor, and one of a second one that nothing needs."""

    def __init__(self, whole: Any) -> None:
        self._data = {0: whole[:1700].contiguous(), 1700: whole[1700:].contiguous()}
        size = (ROWS, COLUMNS)
        found = [Piece("w", "float32", size, (at, 0), tuple(part.shape)) for at, part in self._data.items()]
        self.ranks, self.pieces, self.asked = (
            2,
            {"w": found, "other": [Piece("other", "uint8", (1,), (0,), (1,))]},
            [""],
        )

    def read(self, piece: Piece) -> memoryview:
        self.asked.append(f"{piece.name}{piece.offset[0]}")
        return memoryview(self._data[piece.offset[0]].numpy()).cast("B")

    def values(self, rank: int) -> str | None:
        return None

    def any_values(self) -> str | None:
        return None

    def close(self) -> None:
        pass


def box(data: Any, offset: tuple[int, int]) -> TensorBox:
    return TensorBox((ROWS, COLUMNS), offset, tuple(data.shape), data)


@pytest.mark.parametrize("threads", [1, 3])
def test_slices_are_copied_to_where_they_belong(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """A whole tensor, a box across both slices in columns of another one, and a tensor of another type."""
    monkeypatch.setattr(filling, "_threads", lambda: threads)
    whole = torch.arange(ROWS * COLUMNS, dtype=torch.float32).reshape(ROWS, COLUMNS)
    equal, wide, half = torch.zeros_like(whole), torch.zeros(ROWS, 2 * COLUMNS), torch.zeros(ROWS, COLUMNS).half()
    columns = wide[100:2900, 7 : COLUMNS + 2]
    boxes = [box(equal, (0, 0)), box(columns, (100, 5)), box(half, (0, 0))]
    slices = Slices(whole)
    filling.fill([LoadTarget("w", boxes[:2]), LoadTarget("w", boxes[2:])], slices)
    assert slices.asked == ["", "w0", "w1700"]
    assert torch.equal(equal, whole)
    assert torch.equal(half, whole.half())
    assert torch.equal(columns, whole[100:2900, 5:])
    columns.zero_()
    assert not wide.any()

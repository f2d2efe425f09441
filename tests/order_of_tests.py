"""The order in which several processes of pytest-xdist run the tests."""

from collections import deque
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def dealt(slow: Sequence[T], quick: Sequence[T], processes: int) -> list[T]:
    """Order for pytest-xdist's ``worksteal``, which gives every process an equal run of the list: each gets its share
    of the slow ones first; the quick ones stay in their order, beside those that share their fixtures."""
    left, total, order = deque(quick), len(slow) + len(quick), []
    for number in range(processes):
        mine = list(slow[number::processes])
        share = (total - len(order)) // (processes - number)
        order += mine + [left.popleft() for _ in range(min(max(share - len(mine), 0), len(left)))]
    return [*order, *left]

"""The order in which pytest-xdist's processes get the tests: long ones first, and as many to each."""

import pytest
from order_of_tests import dealt


def shares(order: list[str], processes: int) -> list[list[str]]:
    """As ``worksteal`` deals: to each an equal run of what is left."""
    found, left = [], order
    for number in range(processes):
        size = len(left) // (processes - number)
        found.append(left[:size])
        left = left[size:]
    return found


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize(("slow", "quick"), [(0, 5), (7, 100), (8, 3), (3, 0), (0, 0)])
def test_every_process_begins_with_its_share_of_the_slow_ones(slow: int, quick: int, processes: int) -> None:
    """No test is lost or doubled; the shares of slow tests differ by one at most, and come first."""
    slows, quicks = [f"s{n}" for n in range(slow)], [f"q{n}" for n in range(quick)]
    order = dealt(slows, quicks, processes)
    assert sorted(order) == sorted(slows + quicks)
    assert [name for name in order if name in quicks] == quicks
    if quick > slow * processes:
        for number, share in enumerate(shares(order, processes)):
            mine = slows[number::processes]
            assert share[: len(mine)] == mine
            assert not set(share[len(mine) :]) & set(slows)

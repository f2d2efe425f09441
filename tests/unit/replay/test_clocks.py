"""Clocks of nodes that disagree with the log's."""

import msgspec
import pytest

from ftcore.events.envelope import Event
from ftcore.ids import SECOND
from ftcore.replay import read
from ftcore.replay.clocks import ClockBounds, NodeClock
from ftcore.testing.driver import JobDriver


def events(ahead_s: float, *, since: int = 0) -> list[Event]:
    """A job of two nodes; from an event on, the clock of node1 is ahead."""
    driver = JobDriver(nodes=2, tick_s=0.1)
    driver.start()
    driver.make_steps(3)
    driver.fail("node0")
    driver.settle()
    return [
        msgspec.structs.replace(event, at=msgspec.structs.replace(event.at, wall=event.at.wall + int(ahead_s * SECOND)))
        if event.at is not None and event.source == "node1" and event.seq > since
        else event
        for event in driver.events
    ]


def clocks(found: list[Event]) -> list[NodeClock]:
    bounds = ClockBounds()
    read(found, bounds)
    return bounds.clocks()


@pytest.mark.parametrize("ahead_s", [3.0, -3.0, 3600.0])
def test_bounds_contain_the_truth(ahead_s: float) -> None:
    (clock,) = clocks(events(ahead_s))
    assert clock.node == "node1"
    assert clock.ahead_max_s is not None
    assert ahead_s - 1 < clock.ahead_min_s <= ahead_s <= clock.ahead_max_s < ahead_s + 1


def test_clocks_that_agree_are_not_reported() -> None:
    assert clocks(events(0.0)) == []
    assert clocks(events(0.3)) == []


def test_a_clock_that_is_set_while_a_master_leads_gives_no_bounds() -> None:
    """The fact before and the answer after it are of two clocks."""
    found = events(-20.0, since=max(event.seq for event in events(0.0)) // 2)
    assert clocks(found) == []

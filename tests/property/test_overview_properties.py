"""A reading that continues from an overview gives what a reading from the start gives, for every reader in it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from test_reading_properties import LOGS, SCENES, play

from ftcore.events.envelope import Event
from ftcore.ids import seconds
from ftcore.logs.archive import read_events
from ftcore.replay.causality import CausalTree
from ftcore.replay.failures import failure_json
from ftcore.replay.overview import JobOverview, OverviewLabel, pack_overview, restore_overview
from ftcore.states.model import to_json
from ftcore.testing.driver import JobDriver


def label(seq: int) -> OverviewLabel:
    return OverviewLabel(code="this", seq=seq, digest="of the log")


def hopped(overview: JobOverview) -> JobOverview:
    """The overview, stored and restored."""
    stored = pack_overview(overview, label(overview.state.seq))
    assert stored is not None
    restored = restore_overview(stored, label(overview.state.seq))
    assert restored is not None
    return restored


def results(overview: JobOverview, events: list[Event]) -> dict[str, Any]:
    """All that commands show of it; trees are made of the events in their ranges."""
    incidents = overview.ledger.explainer.incidents()
    return {
        "state": to_json(overview.state),
        "incidents": [each.to_json() for each in incidents],
        "exact": incidents,
        "goodput": overview.ledger.report().to_json(2.5),
        "spans": overview.ledger.report().spans,
        "clocks": overview.clocks.clocks(),
        "failures": [failure_json(each, "demo") for each in incidents],
        "trees": [tree_in_range(overview, each.id, events) for each in incidents],
    }


def tree_in_range(overview: JobOverview, incident: str, events: list[Event]) -> list[Any]:
    span = overview.ranges.of(incident)
    assert span is not None
    tree = CausalTree(incident)
    for event in events[span.first - 1 : span.last]:
        tree.feed(event)
    return [(node.event, node.parent, node.alike) for node in tree.nodes()]


def whole_trees(events: list[Event], incidents: list[str]) -> list[Any]:
    """The trees made of the whole log."""
    trees = [CausalTree(incident) for incident in incidents]
    for event in events:
        for tree in trees:
            tree.feed(event)
    return [[(node.event, node.parent, node.alike) for node in tree.nodes()] for tree in trees]


def agree(events: list[Event], every: int) -> None:
    """Compare a reading from the start with one that is stored and restored again and again."""
    whole, hopping = JobOverview(), JobOverview()
    for event in events:
        whole.feed(event)
        hopping.feed(event)
        if event.seq % every == 0:
            hopping = hopped(hopping)
        if event.incident is not None and every == 1:
            assert hopping.ledger.explainer.incidents() == whole.ledger.explainer.incidents(), event.seq
    expected, found = results(whole, events), results(hopping, events)
    for name, value in expected.items():
        assert found[name] == value, name
    assert expected["trees"] == whole_trees(events, [each.id for each in expected["exact"]])


@pytest.mark.parametrize("path", LOGS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_golden_log_may_be_continued_after_any_event(path: Path) -> None:
    """Each event is fed to a restored overview."""
    agree(list(read_events(path)), 1)


@settings(max_examples=25, deadline=None)
@given(scenes=SCENES)
def test_any_job_may_be_continued(scenes: list[tuple[str, int, float]]) -> None:
    """Samples that go on, repeat or go back, around saves, faults and pauses; stored after every seventh event."""
    driver = JobDriver(nodes=2, slots=2, tick_s=0.5)
    driver.start()
    for what, count, tick_s in scenes:
        driver.tick = seconds(tick_s)
        if not driver.ended:
            play(driver, what, count)
    agree(driver.events, 7)

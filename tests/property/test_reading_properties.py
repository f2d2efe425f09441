"""Shortcuts of reading give what the general way gives: of the ledger, of the explainer, and of the fold."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ftcore.events.checkpoint import CheckpointCommitted
from ftcore.events.envelope import Event
from ftcore.events.job import JobProgressed
from ftcore.ids import seconds
from ftcore.logs.archive import read_events
from ftcore.replay import explain, goodput
from ftcore.replay.goodput import GoodputLedger
from ftcore.replay.report.places import Places
from ftcore.sim.responder import stepped
from ftcore.states.fold import fold
from ftcore.states.model import JobState, to_json
from ftcore.testing.driver import JobDriver

LOGS = sorted((Path(__file__).parents[1] / "golden" / "logs").glob("*/*.ftlog"))


class _Never:
    """No payload is an instance of it."""


class Slow(GoodputLedger):
    """A ledger without shortcuts."""

    def feed(self, event: Event) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(goodput, "JobProgressed", _Never)
            patch.setattr(explain, "JobProgressed", _Never)
            super().feed(event)


class Counting(GoodputLedger):
    """A ledger that counts its shortcuts."""

    short = 0

    def _sampled(self, event: Event, data: JobProgressed) -> None:
        self.short += 1
        super()._sampled(event, data)


def knows_nodes(places: Places, state: JobState) -> bool:
    """Whether the timeline of a report knows the nodes as the folded state does."""
    members, world = state.membership, state.rounds.world
    listed = set() if world is None else {member.node for member in world.members}
    return (
        {node: (lane.incarnation, lane.alive) for node, lane in places._lanes.items()}
        == {name: (node.incarnation, node.alive) for name, node in members.nodes.items()}
        and places._quarantined == set(members.quarantined)
        and (world is None or places._listed == (world.round, listed))
    )


def agree(events: list[Event]) -> int:
    """Compare all results after each event that ends something, and at the end; returns the number of shortcuts."""
    fast, slow, places = Counting(), Slow(), Places()
    for event in events:
        fast.feed(event)
        slow.feed(event)
        assert fast._row.spans == slow._row.spans, event.seq
        assert fast._best == slow._best
        if type(event.data) in Places.READS:
            places.feed(event)
        assert knows_nodes(places, fast.state), event.seq
        if event.type in ("incident.resolved", "incident.exhausted", "job.finished") or event is events[-1]:
            assert fast.report().to_json() == slow.report().to_json()
            assert fast.explainer.incidents() == slow.explainer.incidents()
            assert to_json(fast.state) == to_json(slow.state)
    return fast.short


def test_golden_logs_are_booked_and_explained_alike() -> None:
    """Some of them have samples in undisturbed training."""
    assert sum(agree(list(read_events(path))) for path in LOGS) > 0


def test_a_fold_without_changes_has_the_same_state() -> None:
    """The states are equal after every event of a golden log."""
    for path in LOGS:
        kept, dropped = JobState(), JobState()
        for event in read_events(path):
            fold(kept, event)
            assert fold(dropped, event, keep_changes=False) == []
            assert to_json(kept) == to_json(dropped), (path, event.seq)


STEPS = {"samples": 1, "more": 3, "same": 0, "back": -1, "old": 1}
"""Samples: how many steps each is beyond the one before; ``old`` ones are of the round before."""

COMMANDS = ("pause", "resume")
NODES = ("join", "lose", "silence", "admit", "drain")

SCENES = st.lists(
    st.tuples(
        st.sampled_from((*STEPS, "samples", "samples", "commit", "fail", "relative", "spike", *COMMANDS, *NODES)),
        st.integers(0, 5),
        st.sampled_from((0.0, 0.5, 3.0)),
    ),
    max_size=25,
)
"""What happens, how often or where, and the seconds between two facts."""


@settings(max_examples=40, deadline=None)
@given(scenes=SCENES)
@example(scenes=[("samples", 3, 3.0), ("commit", 4, 0.0), ("samples", 3, 3.0)])
@example(scenes=[("samples", 5, 3.0), ("back", 3, 3.0), ("fail", 0, 3.0), ("more", 5, 3.0)])
def test_any_job_is_booked_and_explained_alike(scenes: list[tuple[str, int, float]]) -> None:
    """Samples that go on, repeat or go back, of older rounds, around saves, faults and pauses."""
    driver = JobDriver(nodes=2, slots=2, tick_s=0.5)
    driver.start()
    for what, count, tick_s in scenes:
        driver.tick = seconds(tick_s)
        if not driver.ended:
            play(driver, what, count)
    agree(driver.events)


def play(driver: JobDriver, what: str, count: int) -> None:
    """Let one thing happen, if it can."""
    newest, world = driver.state.rounds.newest, driver.state.rounds.world
    if what in STEPS:
        for _ in range(count + 1):
            driver.step = max(0, driver.step + STEPS[what])
            round_ = newest - 1 if what == "old" else newest
            driver.own(JobProgressed(round=round_, step=driver.step, loss=2.0))
    elif what in COMMANDS:
        driver.command(what)
        driver.settle()
    elif what == "join":
        driver.join(f"node{count}")
        driver.settle()
    elif what in NODES:
        if f"node{count}" not in driver.state.membership.nodes:
            return
        if what in ("lose", "silence"):
            getattr(driver, what)(f"node{count}")
        else:
            driver.command(what, f"node{count}")
        driver.settle()
    elif world is None or driver.state.phase != "running":
        return
    elif what == "commit":
        driver.own(CheckpointCommitted(round=world.round, step=driver.step, seconds=count / 4))
    elif what == "relative":
        for node in driver.state.membership.alive():
            driver.say(node.node, msgspec.structs.replace(stepped(node, driver.step), absolute=False))
    elif what == "spike":
        driver.observe(world.members[0].node, "loss-spike")
        driver.settle()
    else:
        driver.fail(world.members[count % len(world.members)].node, exitcode=-9, message="RuntimeError: lost")
        driver.settle()

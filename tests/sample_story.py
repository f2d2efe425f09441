"""A job whose rounds report positions in their data, for the tests of its ledger."""

from typing import Any

from ftcore.events.checkpoint import DataPositioned
from ftcore.events.job import JobProgressed
from ftcore.replay.samples import SampleLedger
from ftcore.testing.driver import JobDriver

SIZE, BATCH = 100, 10


class Story:
    """A job of one node whose rounds report positions and steps."""

    def __init__(self) -> None:
        self.job = JobDriver(nodes=1)
        self.job.start()

    @property
    def round(self) -> int:
        world = self.job.state.rounds.world
        assert world is not None
        return int(world.round)

    def positioned(self, step: int, position: int, *skipped: tuple[int, int], **other: Any) -> int:
        """Rank 0 reports its position; returns the event."""
        about = {"batch": BATCH, "size": SIZE, "seed": 1, "shuffle": True} | other
        node = self.job.state.membership.nodes["node0"]
        place = {"node": "node0", "incarnation": node.incarnation, "round": self.round}
        return self.job.say("node0", DataPositioned(**place, step=step, position=position, skipped=skipped, **about))[
            0
        ].seq

    def progressed(self, step: int) -> None:
        self.job.step = step
        self.job.own(JobProgressed(round=self.round, step=step, loss=1.0))

    def again(self) -> None:
        """A worker fails, and the next round begins."""
        self.job.fail("node0")
        self.job.settle(step=False)

    @property
    def ledger(self) -> SampleLedger:
        made = SampleLedger()
        for event in self.job.events:
            made.feed(event)
        return made

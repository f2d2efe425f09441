"""Paces: from pages to heartbeats, from heartbeats to a straggler's name."""

from ftcore.engine.stragglers import AGAIN_WINDOWS, NodePaces, Pace, PagePace
from ftcore.events.worker import FaultObserved
from ftcore.faults.detectors.straggler import PERSIST
from ftcore.ports import Progress
from ftcore.testing.driver import JobDriver


def page(paced: int, own_s: float, whole_s: float) -> Progress:
    return Progress(steps=9, step=9, absolute=True, mono=1, loss=None, paced=paced, own_s=own_s, whole_s=whole_s)


def test_a_heartbeat_tells_the_slowest_rank_since_the_last() -> None:
    """Averages over new steps alone; a process that began anew begins at nothing; no page tells nothing."""
    paces = PagePace()
    assert paces.since_last(()) is None and paces.since_last((None, page(0, 0.0, 0.0))) is None
    assert paces.since_last((page(2, 0.2, 2.0), page(4, 2.0, 4.0))) == Pace(0.5, 1.0)
    assert paces.since_last((page(2, 0.2, 2.0), page(4, 2.0, 4.0))) is None
    assert paces.since_last((page(4, 2.2, 4.0), page(5, 2.1, 5.0))) == Pace(1.0, 1.0)
    assert paces.since_last((page(1, 0.5, 0.6), None)) == Pace(0.5, 0.6)


class Job:
    """Nodes that tell their pace in each window."""

    def __init__(self, nodes: int = 3) -> None:
        self.job = JobDriver(nodes)
        self.job.start()
        self.paces = NodePaces(5.0)
        self.now = 0.0
        assert not self.paces.look(self.job.state, self.now)

    def window(self, *own_s: float, whole_s: float = 0.1) -> list[FaultObserved]:
        world = self.job.state.world
        assert world is not None
        for place, own in enumerate(own_s):
            for _ in range(3):
                self.paces.heard(f"node{place}", world.round, Pace(own, whole_s))
        self.now += 5.0
        return self.paces.look(self.job.state, self.now)


def test_a_slow_node_is_named_once_and_again_later() -> None:
    """After the detector's windows, with what its eviction would win; then only now and then."""
    job = Job()
    told = [fact for _ in range(PERSIST - 1) for fact in job.window(0.01, 0.06, 0.01)]
    assert not told
    (fact,) = job.window(0.01, 0.06, 0.01)
    assert (fact.node, fact.kind, fact.source) == ("node1", "straggler", "detector")
    assert fact.values == {"value": 0.1, "usual": 0.05} and "node1 keeps the others waiting" in fact.message
    later = [fact for _ in range(AGAIN_WINDOWS) for fact in job.window(0.01, 0.06, 0.01)]
    assert [again.node for again in later] == ["node1"]


def test_what_costs_nothing_is_no_straggler() -> None:
    """Twice the own work of the others, but a hundredth of the step; or everybody's step is as slow."""
    job = Job()
    assert not [fact for _ in range(60) for fact in job.window(0.001, 0.002, 0.001)]
    assert not [fact for _ in range(60) for fact in job.window(0.05, 0.05, 0.05)]


def test_nothing_is_said_without_every_member() -> None:
    """A node that does not measure, an open incident, or a world of one: no comparison; slow steps are waited for."""
    job = Job()
    assert not [fact for _ in range(60) for fact in job.window(0.01, 0.06)]
    for _ in range(60):
        told = job.window(0.01, 0.06, *(() if job.now % 10 else (0.01,)))
        if told:
            break
    else:
        raise AssertionError("a node that tells its pace in every second window was never compared")
    alone = Job(1)
    assert not [fact for _ in range(60) for fact in alone.window(0.06)]
    busy = Job()
    busy.job.lose("node2")
    assert not [fact for _ in range(60) for fact in busy.window(0.01, 0.06, 0.01)]

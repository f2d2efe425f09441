"""Paces: from pages to heartbeats, from heartbeats to a straggler's name."""

from ftcore.cli.ctl_lines import summary
from ftcore.engine.stragglers import AGAIN_WINDOWS, NodePaces, Pace, PagePace
from ftcore.events.incident import IncidentOpened
from ftcore.events.policy import AlertRaised
from ftcore.events.worker import FaultObserved
from ftcore.faults.detectors.straggler import PERSIST
from ftcore.policies.file.config import parse
from ftcore.ports import Progress
from ftcore.replay import verify
from ftcore.states.revisions import BY_DETAIL
from ftcore.testing.driver import JobDriver


def page(paced: int, own_s: float, whole_s: float) -> Progress:
    return Progress(steps=9, step=9, absolute=True, mono=1, loss=None, paced=paced, own_s=own_s, whole_s=whole_s)


def test_a_heartbeat_has_the_pace_of_the_slowest_rank() -> None:
    """Averages over new steps only; a new process starts from zero; without pages there is no pace."""
    paces = PagePace()
    assert paces.since_last(()) is None and paces.since_last((None, page(0, 0.0, 0.0))) is None
    assert paces.since_last((page(2, 0.2, 2.0), page(4, 2.0, 4.0))) == Pace(0.5, 1.0)
    assert paces.since_last((page(2, 0.2, 2.0), page(4, 2.0, 4.0))) is None
    assert paces.since_last((page(4, 2.2, 4.0), page(5, 2.1, 5.0))) == Pace(1.0, 1.0)
    assert paces.since_last((page(1, 0.5, 0.6), None)) == Pace(0.5, 0.6)


class Job:
    """Nodes that report their pace in each window."""

    def __init__(self, nodes: int = 3) -> None:
        self.job = JobDriver(nodes)
        self.job.start()
        self.paces = NodePaces(5.0)
        self.now = 0.0
        assert not self.paces.look(self.job.state, self.now)

    def window(self, *own_s: float, whole_s: float = 0.1) -> list[FaultObserved]:
        world = self.job.state.rounds.world
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
    assert fact.values == {"value": 0.1, "usual": 0.05} and "node1 slows down the others" in fact.message
    later = [fact for _ in range(AGAIN_WINDOWS) for fact in job.window(0.01, 0.06, 0.01)]
    assert [again.node for again in later] == ["node1"]


def test_what_costs_nothing_is_no_straggler() -> None:
    """Twice the own work of the others, but a hundredth of the step; or all nodes are equally slow."""
    job = Job()
    assert not [fact for _ in range(60) for fact in job.window(0.001, 0.002, 0.001)]
    assert not [fact for _ in range(60) for fact in job.window(0.05, 0.05, 0.05)]


def test_nothing_is_said_without_every_member() -> None:
    """No comparison with a node without measurements, an open incident, or a single node; slow steps are awaited."""
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


ALERTS = parse("{version: 1, chain: [alert: {to: [env:CHAT]}, evict_straggler, process_restart, stop]}", "p.yaml")


def alerted(decides: int) -> AlertRaised:
    """The alert about a slow node, by a master of this revision of the rules."""
    driver = JobDriver(3, policy=ALERTS, decides=decides)
    driver.start()
    driver.make_steps(10)
    driver.observe("node1", "straggler", message="node1 slows down the others", values={"value": 0.1, "usual": 0.05})
    assert verify(driver.events).ok
    opened = [event for event in driver.events if isinstance(event.data, IncidentOpened)]
    assert "slow node: " in summary(opened[0])
    return next(event.data for event in driver.events if isinstance(event.data, AlertRaised))


def test_the_alert_about_a_slow_node_describes_and_advises_a_slow_node() -> None:
    """Not a hang: nobody has to read stacks. Logs of earlier masters verify with their own text."""
    alert = alerted(BY_DETAIL)
    assert alert.title == "job: slow node"
    assert alert.text.splitlines()[0].endswith("node1 slows down the others (slow node)")
    assert "advice: compare the slow node's clocks" in alert.text and "hang" not in alert.text
    earlier = alerted(BY_DETAIL - 1)
    assert earlier.title == "job: hang" and "advice: read the stacks" in earlier.text

"""Paces: from pages to heartbeats, from heartbeats to a straggler's name."""

from collections.abc import Sequence

import attrs
import pytest

from ftcore.cli.ctl_lines import summary
from ftcore.engine.stragglers import AGAIN_S, Pace, PagePace, RankBlocks, StragglerWatch
from ftcore.events.incident import IncidentOpened
from ftcore.events.policy import AlertRaised, PolicyConsidered
from ftcore.events.worker import FaultObserved
from ftcore.faults.detectors.slow_rank import PERSIST, WINDOW
from ftcore.policies.file.config import parse
from ftcore.ports import Progress
from ftcore.replay import verify
from ftcore.shm.phases import PhaseBlock
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


def test_a_heartbeat_has_each_block_once() -> None:
    """By rank, in microseconds; those that were overwritten are missed; a new process counts from 1."""
    paces = PagePace()

    def sent(*numbers: int) -> list[int]:
        blocks = tuple(PhaseBlock(n, 10, False, 9_000, 8_000, (1_000,) * 6) for n in numbers)
        found = paces.new_blocks((None, attrs.evolve(page(1, 0.0, 0.0), blocks=blocks, role="stage 0")))
        assert all((each.local_rank, each.role, each.declared) == (1, "stage 0", False) for each in found)
        assert all(block[1:] == (0, 9, 8, 1, 1, 1, 1, 1, 1) for each in found for block in each.blocks)
        return [block[0] for each in found for block in each.blocks]

    assert [sent(1), sent(1), sent(1, 2, 3), sent(6, 7), sent(), sent(1)] == [[1], [], [2, 3], [6, 7], [], [1]]


class Job:
    """Nodes of two ranks each that report a block per rank at a time."""

    def __init__(self, nodes: int = 3, policy: str = "", roles: Sequence[str] = (), declared: bool = False) -> None:
        self.job = JobDriver(nodes, slots=2, **({"policy": parse(policy, "p.yaml")} if policy else {}))
        self.job.start()
        self.watch = StragglerWatch(0.0)
        self.roles, self.declared = roles or ["" for _ in range(2 * nodes)], declared
        self.now, self.number = 0.0, 0
        assert not self.watch.look(self.job.state, self.now)

    def block(self, own_s: Sequence[float], whole_s: float = 0.1, backward: float = 0.5) -> list[FaultObserved]:
        """One block of each rank; the part of own time in the backward pass, the rest in the forward pass."""
        world = self.job.state.rounds.world
        assert world is not None
        self.number += 1
        for rank, own in enumerate(own_s):
            us = int(own * 1e6)
            back = int(us * backward)
            phases = (0, us - back, back, 0, 0, int(whole_s * 1e6) - us)
            blocks = ((self.number, 0, int(whole_s * 1e6), us, *phases),)
            ranks = RankBlocks(rank % 2, self.roles[rank], self.declared, blocks)
            self.watch.heard(f"node{rank // 2}", world.round, [ranks], 10 * self.number, True)
        self.now += 5.0
        return self.watch.look(self.job.state, self.now)


def test_a_slow_rank_is_named_once_and_again_later() -> None:
    """With its node, its phase, and what its eviction would win; again every ten minutes."""
    job = Job()
    own = [0.01, 0.011, 0.01, 0.06, 0.01, 0.01]
    assert not [fact for _ in range(PERSIST - 1) for fact in job.block(own, backward=0.9)]
    (fact,) = job.block(own, backward=0.9)
    assert (fact.node, fact.rank, fact.phase) == ("node1", 3, "backward")
    assert (fact.kind, fact.source) == ("straggler", "detector")
    assert (fact.values["value"], fact.values["usual"]) == (0.1, 0.05)
    assert fact.message == (
        "slow in backward (54 ms, on its peers 9 ms): its own work takes 60 ms of a step, 10 ms on its peers; the step "
        "takes 100 ms with it and 50 ms without"
    )
    assert (fact.step, fact.absolute, fact.values["since"]) == (10 * PERSIST, True, 10.0)
    assert job.watch.slow("node1") == "rank 3: backward" and job.watch.slow("node0") == ""
    later = [fact for _ in range(int(AGAIN_S / 5)) for fact in job.block(own)]
    assert [again.rank for again in later] == [3]
    calm = [fact for _ in range(WINDOW) for fact in job.block([0.01] * 6)]
    assert not calm and job.watch.slow("node1") == ""


def test_slow_ranks_of_one_node_are_one_report() -> None:
    """The slowest one is named; the node is the one to evict."""
    job = Job()
    facts = [fact for _ in range(WINDOW) for fact in job.block([0.01, 0.01, 0.05, 0.06, 0.01, 0.01])]
    assert [(fact.node, fact.rank) for fact in facts] == [("node1", 3)]
    assert facts[0].message.endswith("without; 1 other rank of node1 slow as well")


def test_what_costs_nothing_is_no_straggler() -> None:
    """Twice the own work of the others, but a hundredth of the step; or all ranks are equally slow."""
    job = Job()
    assert not [fact for _ in range(60) for fact in job.block([0.001, 0.002, 0.001, 0.001, 0.001, 0.001])]
    assert not [fact for _ in range(60) for fact in job.block([0.05] * 6)]


def test_nothing_is_said_without_every_member() -> None:
    """No comparison with a rank without measurements, an open incident, or a single rank."""
    job = Job()
    assert not [fact for _ in range(60) for fact in job.block([0.01, 0.01, 0.01, 0.06, 0.01])]
    busy = Job()
    busy.job.lose("node2")
    assert not [fact for _ in range(60) for fact in busy.block([0.01, 0.01, 0.01, 0.06, 0.01, 0.01])]


def test_blocks_of_the_same_steps_are_compared() -> None:
    """An agent that read late has missed blocks: the others wait for it, and theirs of other steps are left out."""
    job = Job(1)
    world = job.job.state.rounds.world
    assert world is not None

    def heard(rank: int, *numbers: int) -> None:
        blocks = tuple((number, 0, 100_000, 1_000 * number, 0, 0, 1_000 * number, 0, 0, 0) for number in numbers)
        job.watch.heard("node0", world.round, [RankBlocks(rank, "", False, blocks)], None, False)

    for first in range(1, 200, 4):
        heard(0, first, first + 1, first + 2, first + 3)
        heard(1, first + 2, first + 3)
        job.now += 1.0
        assert not job.watch.look(job.job.state, job.now), "compared with a block of other steps"


STAGES = [0.02, 0.04, 0.02, 0.04, 0.022, 0.04]
"""Own work of a pipeline's two stages with three replicas; rank 4 is slow among those of its stage."""


@pytest.mark.parametrize("by", ["shapes", "declared", "file"])
def test_ranks_are_compared_with_those_of_their_role(by: str) -> None:
    """By the parameters' shapes, the script's word, or the policy file's layout."""
    roles = ["a", "b"] * 3 if by != "file" else [""] * 6
    policy = "{version: 1, job: {replicas: {data_parallel: 3, optimizer_shard: 1}}}" if by == "file" else ""
    job = Job(3, policy, roles, declared=by == "declared")
    (fact,) = [fact for _ in range(WINDOW) for fact in job.block(STAGES)]
    assert (fact.node, fact.rank) == ("node2", 4)
    assert fact.values["own_usual"] == pytest.approx(0.02)


def test_a_stage_without_replicas_is_compared_with_its_own_beginning() -> None:
    """Also its phases are."""
    job = Job(1, roles=["a", "b"])
    assert not [fact for _ in range(WINDOW + 5) for fact in job.block([0.04, 0.08])]
    facts = [fact for _ in range(WINDOW) for fact in job.block([0.04, 0.1], backward=0.6)]
    assert [(fact.rank, fact.phase) for fact in facts] == [(1, "backward")]


def test_a_slowdown_of_the_whole_job_is_reported() -> None:
    """With the pace before and after; no rank is blamed, and not while one is slow."""
    job = Job()
    assert not [fact for _ in range(80) for fact in job.block([0.05] * 6)]
    (fact,) = [fact for _ in range(60) for fact in job.block([0.055] * 6, whole_s=0.1064)]
    assert (fact.kind, fact.rank, fact.phase) == ("slowdown", -1, "")
    assert fact.values == {"before": 0.1, "after": 0.1064}
    assert "a step takes 106 ms, it took 100 ms before (6 % less work per second)" in fact.message
    slow = Job()
    assert not [fact for _ in range(80) for fact in slow.block([0.05] * 6)]
    facts = [fact for _ in range(100) for fact in slow.block([0.05] * 5 + [0.08], whole_s=0.13)]
    assert [fact.kind for fact in facts] == ["straggler"]


def test_a_slowdown_is_a_warning_that_evicts_nothing() -> None:
    """Nobody is to be replaced for it; it is recorded, alerted and dropped."""
    driver = JobDriver(3, policy=ALERTS)
    driver.start()
    driver.make_steps(10)
    driver.observe("node0", "slowdown", message="all ranks are slower", values={"before": 0.1, "after": 0.12})
    assert verify(driver.events).ok
    (opened,) = [event for event in driver.events if isinstance(event.data, IncidentOpened)]
    assert opened.data.kind == "warning" and "slow job: " in summary(opened)
    alert = next(event.data for event in driver.events if isinstance(event.data, AlertRaised))
    assert alert.title == "job: slow job" and "compare what changed" in alert.text
    taken = [event.data for event in driver.events if isinstance(event.data, PolicyConsidered)]
    assert not [each for each in taken if each.verdict == "take" and each.policy != "alert"]


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

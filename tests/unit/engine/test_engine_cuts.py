"""Nodes that cannot reach each other: from heartbeats to the world without one of them."""

from ftcore.engine.standstill import LOOK_S, StandstillWatch
from ftcore.events.health import HealthJudged
from ftcore.events.job import JobSpec
from ftcore.events.policy import PolicyConsidered
from ftcore.events.worker import RankState, WorkersStood, WorkersWentOn
from ftcore.faults.cuts import Net, Unanswered
from ftcore.policies.file.config import parse
from ftcore.replay import verify
from ftcore.testing.driver import JobDriver

HEAD = "node0 and node1 cannot reach each other"


class Job(JobDriver):
    """Nodes of one rank each, all in a collective; two of them cannot reach each other."""

    def __init__(self, nodes: int, least: int = 1, *, spare: bool = False, health: str = "never") -> None:
        policy = parse(f"version: 1\njob: {{health: {health}}}\n", "policy.yaml")
        spec = JobSpec(argv=("t.py",), nodes_min=least, nodes_max=nodes)
        super().__init__(spec=spec, policy=policy, abilities=["check"])
        self.submit()
        for number in range(nodes + spare):
            self.join(f"node{number}")
        self.settle()
        self.cut = {frozenset(("node0", "node1"))}
        self.watch = StandstillWatch(spec.timing)
        self.looked = 100.0

    def stand(self, *pairs: tuple[int, int], silent_s: float = 15.0) -> WorkersStood | None:
        """All ranks wait, and nodes tell in heartbeats from whom they get no answer."""
        self.looked += LOOK_S
        assert self.state.rounds.world is not None
        for member in self.state.rounds.world.members:
            waits = RankState(ranks=(member.base_rank,), op="all_reduce", waits="lock", still_s=20.0, silent_s=20.0)
            own = int(member.node.removeprefix("node"))
            told = [
                Unanswered(
                    address=f"10.0.0.{peer}", connections=2, silent_s=silent_s, retries=6, ranks=(member.base_rank,)
                )
                for one, peer in pairs
                if one == own
            ]
            net = Net(addresses=(f"10.0.0.{own}",), unanswered=tuple(told))
            self.watch.heard(member.node, self.state.rounds.newest, (waits,), self.looked, net)
        found = self.watch.look(self.state, self.looked)
        assert not isinstance(found, WorkersWentOn)
        return found

    def hang(self, *pairs: tuple[int, int]) -> None:
        fact = self.stand(*pairs)
        assert isinstance(fact, WorkersStood)
        self.own(fact)

    def recover(self, *, step: bool = True) -> None:
        """Until a round runs, or the job has ended."""
        self.settle(step=step)
        while self.state.phase not in ("running", "failed") and self.wait():
            self.settle(step=step)

    def world(self) -> list[str]:
        assert self.state.rounds.world is not None
        return [member.node for member in self.state.rounds.world.members]

    def taken(self) -> list[str]:
        verdicts = [event.data for event in self.events if isinstance(event.data, PolicyConsidered)]
        return [verdict.policy for verdict in verdicts if verdict.verdict == "take"]


def test_without_checks_the_later_node_leaves() -> None:
    """A report of one side suffices; the incident names the pair, the leaving node is quarantined; replay agrees."""
    job = Job(3)
    assert job.stand((1, 0), silent_s=14.0) is None
    job.hang((1, 0))
    known = job.state.incident
    assert known is not None
    assert (known.fault.cls, known.fault.detail) == ("nccl-remote-error", "link-cut")
    assert known.fault.nodes == ("node1", "node0") and known.fault.summary.startswith(f"{HEAD}: no answer for 15 s")
    job.recover()
    assert job.state.phase == "running" and job.world() == ["node0", "node2"]
    assert job.taken() == ["shrink"] and list(job.state.membership.quarantined) == ["node1"]
    assert verify(job.events).ok


def test_the_node_that_most_others_cannot_reach_leaves() -> None:
    """Although it is the first."""
    job = Job(4)
    job.hang((0, 1), (2, 0), (0, 3))
    job.recover()
    assert job.world() == ["node1", "node2", "node3"]


def test_a_spare_takes_its_place() -> None:
    """And the world stays as large."""
    job = Job(2, 2, spare=True)
    job.hang((0, 1), (1, 0))
    job.recover()
    assert job.state.phase == "running" and job.world() == ["node0", "node2"]


def test_where_no_node_can_be_spared_a_restart_is_tried() -> None:
    """Again and again until the budget is spent: the link may come back. Reasons say what is wrong and would help."""
    job = Job(2, 2)
    job.hang((0, 1))
    job.recover(step=False)
    verdicts = [event.data for event in job.events if isinstance(event.data, PolicyConsidered)]
    assert (verdicts[-1].policy, verdicts[-1].verdict) == ("process_restart", "take")
    assert "node1 is at fault and stays" in verdicts[-1].reason and "spare" in verdicts[-1].reason
    assert job.world() == ["node0", "node1"]
    while job.state.phase == "running":
        job.hang((1, 0))
        job.recover(step=False)
    assert job.taken() == ["process_restart"] * 20 + ["stop"] and job.state.phase == "failed"
    reason = job.state.reason()
    assert HEAD in reason and "check the network path between the two nodes" in reason
    assert verify(job.events).ok


def test_a_check_of_three_finds_the_link() -> None:
    """The store of the check is on the third node; each of the two exchanges data with it, so the link is at fault."""
    job = Job(3, health="suspect")
    job.hang((0, 1), (1, 0))
    job.recover()
    judged = [event.data for event in job.events if isinstance(event.data, HealthJudged)][-1]
    assert [set(link.nodes) for link in judged.links] == [{"node0", "node1"}] and not judged.ill
    assert job.taken() == ["process_restart", "shrink"] and job.world() == ["node0", "node2"]
    summaries = [event.data.fault.summary for event in job.events if event.type == "incident.rediagnosed"]
    assert summaries == [f"{HEAD}: each reaches other nodes: the link is at fault; node1 is to leave"]
    hosts = [
        event.data.nodes for event in job.events if event.type == "action.ordered" and "open_store" in event.data.effect
    ]
    assert hosts[-1] == ("node2",)
    assert verify(job.events).ok


def test_a_check_may_find_that_the_other_one_is_broken() -> None:
    """The first of the two reaches no node: it is faulty, and the later one stays."""
    job = Job(4, health="suspect")
    job.cut, job.health = set(), {"node0": "unreachable"}
    job.hang((0, 1))
    job.recover()
    assert job.world() == ["node1", "node2", "node3"] and list(job.state.membership.quarantined) == ["node0"]
    assert verify(job.events).ok


def test_a_check_of_two_nodes_is_inconclusive() -> None:
    """Then the later one leaves, with that as the reason."""
    job = Job(2, health="suspect")
    job.hang((0, 1))
    job.recover()
    summaries = [event.data.fault.summary for event in job.events if event.type == "incident.rediagnosed"]
    assert summaries == [f"{HEAD}: the check cannot tell which one is at fault; node1 is to leave"]
    assert job.world() == ["node0"]


def test_a_restored_link_costs_no_node() -> None:
    """The check passes: the workers start again where they were."""
    job = Job(2, health="suspect")
    job.cut = set()
    job.hang((0, 1))
    job.recover()
    assert job.state.phase == "running" and job.world() == ["node0", "node1"]
    assert job.taken() == ["process_restart"] and verify(job.events).ok


def test_a_node_that_is_lost_is_that_and_nothing_else() -> None:
    """A node without any connection is declared lost; reports of others about it open no further incident."""
    job = Job(3)
    fact = job.stand((0, 1))
    job.lose("node1")
    assert fact is not None
    job.own(fact)
    job.recover()
    assert [event.data.fault.cls for event in job.events if event.type == "incident.opened"] == ["node-lost"]
    assert not [event for event in job.events if event.type == "standstill.judged"]

"""Standing still: from heartbeats to a fact, and from the fact to a decision."""

from ftcore.engine.standstill import LOOK_S, StandstillWatch
from ftcore.events.policy import ChainEntry, PolicyLoaded
from ftcore.events.worker import RankState, StandstillJudged, WorkersStood, WorkersWentOn
from ftcore.policies.file.config import parse
from ftcore.replay import verify
from ftcore.testing.driver import JobDriver


class Job:
    """Nodes of one rank whose heartbeats report the state of their ranks."""

    def __init__(self, policy: PolicyLoaded | None = None) -> None:
        self.job = JobDriver(2, policy=policy)
        self.job.start()
        world = self.job.state.rounds.world
        assert world is not None
        self.size = world.size
        self.watch = StandstillWatch(self.job.spec.timing)
        self.now = 100.0

    def look(self) -> WorkersStood | WorkersWentOn | None:
        self.now += LOOK_S
        return self.watch.look(self.job.state, self.now)

    def beat(self, **stands: tuple[RankState, ...] | None) -> WorkersStood | WorkersWentOn | None:
        for node, told in stands.items():
            self.watch.heard(node, self.job.state.rounds.newest, told, self.now + LOOK_S)
        return self.look()

    def stands(self, *ranks: int, **what: object) -> tuple[RankState, ...]:
        given: dict[str, object] = {"silent_s": 90.0, "overdue": True}
        return (RankState(ranks=ranks, count=len(ranks), **(given | what)),)  # type: ignore[arg-type]


def test_a_hang_is_recorded_decided_and_recovered_from() -> None:
    """One fact of all ranks; the decision names rank, node and place; the log is decided again the same way."""
    job = Job()
    slots = job.size // 2
    ranks = tuple(range(slots))
    peers = (RankState(ranks=ranks, count=slots, op="all_reduce", held_s=20.0, still_s=20.0, silent_s=30.0),)
    asleep = (
        RankState(
            ranks=tuple(rank + slots for rank in ranks),
            count=slots,
            place="t.py:5 (load)",
            waits="sleep",
            ends_s=1e6,
            still_s=20.0,
            silent_s=30.0,
        ),
    )
    assert job.beat(node0=peers) is None
    fact = job.beat(node0=None, node1=asleep)
    assert isinstance(fact, WorkersStood)
    assert job.beat(node0=None, node1=asleep) is None, "told twice"
    job.job.own(fact)
    known = job.job.state.incident
    assert known is not None and known.kind == "fault"
    assert (known.fault.cls, known.fault.detail, known.fault.nodes, known.fault.ranks) == (
        "hang",
        "absent",
        ("node1",),
        (slots,),
    )
    assert "t.py:5 (load), all others wait in all_reduce" in known.fault.summary
    job.job.settle()
    assert job.job.state.phase == "running" and job.job.state.rounds.newest == 2
    assert verify(job.job.events).ok


def test_an_alert_stops_no_worker_and_ends_with_the_next_step() -> None:
    """Status has it meanwhile; the gap raises the ceiling to come, and the log is decided again the same way."""
    job = Job()
    ranks = tuple(range(job.size))
    fact = job.beat(node0=job.stands(*ranks, state="runs"), node1=())
    assert isinstance(fact, WorkersStood)
    job.job.own(fact)
    assert job.job.state.incident is None
    assert job.job.state.training.standstill is not None and job.job.state.training.standstill.cause == "silent"
    job.now += 200.0
    over = job.beat(node0=(), node1=None)
    assert over == WorkersWentOn(round=1, gap_s=90.0 + 200.0 + LOOK_S)
    job.job.own(over)
    assert job.job.state.training.standstill is None and job.job.state.training.longest_gap_s == 291.0
    assert job.look() is None
    later = job.beat(node0=job.stands(*ranks, silent_s=1900.0, state="runs"))
    assert isinstance(later, WorkersStood)
    job.job.own(later)
    assert job.job.state.incident is None, "20 times the gap is more than the default ceiling"
    assert verify(job.job.events).ok


def test_the_ceiling_is_doubled_once_it_was_reached() -> None:
    """It may have been healthy, and only slower than ever: the next time has twice the patience."""
    job = Job()
    ranks = tuple(range(job.size))
    for silent_s, hangs in ((1801.0, True), (1801.0, False), (3601.0, True)):
        fact = job.beat(node0=job.stands(*ranks, silent_s=silent_s, state="runs"))
        assert isinstance(fact, WorkersStood)
        (judged,) = [event.data for event in job.job.own(fact) if isinstance(event.data, StandstillJudged)]
        assert (judged.verdict == "hang") is hangs
        job.job.settle()
        job.beat(node0=(), node1=())
    assert job.job.state.training.ceilings == 2
    assert verify(job.job.events).ok


def test_a_node_that_is_silent_is_not_known() -> None:
    """What it said before its lease ran out does not count."""
    job = Job()
    job.watch.heard("node1", 1, job.stands(0, state="stopped", still_s=9.0), job.now)
    job.now += job.job.spec.timing.node_lease_s
    job.watch.heard("node0", 1, job.stands(1, overdue=False), job.now)
    assert job.look() is None
    assert isinstance(job.beat(node1=job.stands(0, state="stopped", still_s=9.0)), WorkersStood)


def test_no_standstill_is_reported_of_a_job_that_does_not_train() -> None:
    """Paused, or in a recovery already."""
    job = Job()
    job.job.fail("node0")
    assert job.beat(node1=job.stands(0, state="stopped", still_s=9.0)) is None
    job.job.own(WorkersStood(round=1, stands=job.stands(0, state="stopped", still_s=9.0)))
    assert not [event for event in job.job.events if event.type == "standstill.judged"]


def test_a_new_round_resets_the_reports() -> None:
    """Reports about an older round are dropped; early reports about the new one are kept."""
    job = Job()
    stopped = job.stands(0, state="stopped", still_s=9.0)
    job.watch.heard("node0", 2, stopped, job.now + LOOK_S)
    assert job.look() is None
    job.job.fail("node0")
    job.job.settle()
    job.watch.heard("node0", 2, None, job.now + LOOK_S)
    assert isinstance(job.look(), WorkersStood)
    job.watch.heard("node0", 1, stopped, job.now + LOOK_S)
    assert job.look() is None


def test_the_file_with_the_stacks_is_named() -> None:
    """That of a rank to blame, else of any: by the decision, the status and the alert."""
    job = Job()
    tells = ChainEntry(policy="alert", options={"to": ["x"], "on": [], "severity": "warning"})
    job.job.state.policy.chain = (tells, *job.job.state.policy.chain)
    fact = job.beat(node0=job.stands(*range(job.size), state="runs", stacks="/logs/rank_0/stacks.txt"))
    assert isinstance(fact, WorkersStood)
    told = {event.type: event.data for event in job.job.own(fact)}
    assert told["standstill.judged"].stacks == "/logs/rank_0/stacks.txt"
    assert "stacks: /logs/rank_0/stacks.txt" in told["alert.raised"].text
    standstill = job.job.state.training.standstill
    assert standstill is not None and standstill.stacks == "/logs/rank_0/stacks.txt"


def test_a_standstill_raises_one_alert() -> None:
    """By the entry ``alert`` of the chain, if it has a target and covers hangs."""
    for options, expected in (({"to": ["x"], "on": []}, 1), ({"to": ["x"], "on": ["gpu-hw"]}, 0), ({"to": []}, 0)):
        job = Job()
        tells = ChainEntry(policy="alert", options={"severity": "warning", **options})
        job.job.state.policy.chain = (tells, *job.job.state.policy.chain)
        for cause in ("runs", "traced"):
            fact = job.beat(node0=job.stands(*range(job.size), state=cause))
            job.now += 100.0
            if fact is not None:
                job.job.own(fact)
        told = [event.data for event in job.job.events if event.type == "alert.raised"]
        assert len(told) == expected
        assert all("no step for 90 s" in word.text for word in told)


def test_what_is_recorded_late_has_to_be_so_still() -> None:
    """While the log is unavailable, workers may continue or hang; earlier findings are assessed again."""
    job = Job()
    ranks = tuple(range(job.size))
    stopped = job.stands(*ranks, state="stopped", still_s=9.0)
    fact = job.beat(node0=stopped)
    assert isinstance(fact, WorkersStood)
    assert job.watch.holds(job.job.state, fact, job.now)
    job.watch.heard("node0", 1, job.stands(*ranks, state="runs"), job.now)
    assert not job.watch.holds(job.job.state, fact, job.now), "it is an alert only"
    later = job.look()
    assert isinstance(later, WorkersStood) and later.stands[0].state == "runs"
    job.watch.heard("node0", 1, (), job.now)
    assert not job.watch.holds(job.job.state, later, job.now), "they have gone on"
    assert job.look() is None
    assert isinstance(job.beat(node0=stopped), WorkersStood)


def test_the_policy_files_limits_and_ceiling_are_used() -> None:
    """From the folded policy, so that the log is decided again the same way."""
    text = "version: 1\njob:\n  hangs: {evaluation: 90s, ceiling: 200s}\n"
    job = Job(parse(text, "policy.yaml"))
    ranks = tuple(range(job.size))
    job.beat(node0=job.stands(*ranks, state="runs", section="evaluation", section_s=89.0), node1=())
    fact = job.beat(node0=job.stands(*ranks, state="runs", section="evaluation", section_s=90.0), node1=())
    assert isinstance(fact, WorkersStood)
    job.job.own(fact)
    known = job.job.state.incident
    assert known is not None and (known.fault.cls, known.fault.detail) == ("hang", "limit")
    assert "evaluation for 90 s, limit 90 s" in known.fault.summary
    job.job.settle()
    job.beat(node0=(), node1=())
    fact = job.beat(node0=job.stands(*ranks, state="runs", silent_s=200.0), node1=())
    assert isinstance(fact, WorkersStood)
    events = job.job.own(fact)
    assert [event.data.cause for event in events if isinstance(event.data, StandstillJudged)] == ["ceiling"]
    assert verify(job.job.events).ok

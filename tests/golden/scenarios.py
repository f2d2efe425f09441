"""Histories whose logs are kept; each makes a job and returns its driver."""

from collections.abc import Callable
from typing import Any

from ftcore.events.job import JobProgressed, JobSpec
from ftcore.events.queue import QueueMark, QueueOpened, QueueReported, QueueSpec, ReaderReport
from ftcore.events.worker import Cut, FaultObserved, RankState, WorkersStood
from ftcore.events.world import StoreFailed
from ftcore.ids import Term
from ftcore.policies.file.config import parse
from ftcore.testing.driver import JobDriver

SCENARIOS: dict[str, Callable[[], JobDriver]] = {}


def _scenario(make: Callable[[], JobDriver]) -> Callable[[], JobDriver]:
    SCENARIOS[make.__name__] = make
    return make


@_scenario
def finish() -> JobDriver:
    driver = JobDriver(nodes=2, slots=2)
    driver.start()
    for step in range(10, 50, 10):
        driver.step = step
        driver.own(JobProgressed(round=1, step=step, loss=1.0 / step))
    driver.finish()
    driver.settle()
    return driver


@_scenario
def kill_raise_segfault_lose() -> JobDriver:
    driver = JobDriver(nodes=2, slots=2, tick_s=0.01)
    driver.start()
    driver.make_steps(10)
    driver.fail("node1", message="RuntimeError: Connection closed by peer [127.0.0.1]:52710")
    driver.fail("node0", exitcode=-9, local_rank=1)
    driver.settle()
    driver.make_steps(5)
    driver.fail("node0", message="ValueError: bad batch", tail="loading\nValueError: bad batch\n")
    driver.settle()
    driver.make_steps(5)
    driver.fail("node1", exitcode=-11)
    driver.settle()
    driver.lose("node1")
    driver.settle()
    driver.join("node1")
    driver.settle()
    driver.finish()
    driver.settle()
    return driver


@_scenario
def same_error_twice() -> JobDriver:
    driver = JobDriver(nodes=1)
    driver.start()
    for _ in range(2):
        driver.step = 7
        driver.fail("node0", message="ValueError: batch 1234 is bad")
        driver.settle(step=False)
        driver.make_steps(0)
    return driver


@_scenario
def budget_spent() -> JobDriver:
    driver = JobDriver(policy=parse("version: 1\nchain: [{process_restart: {max_restarts: 2}}, stop]\n", "p.yaml"))
    driver.start()
    for _ in range(3):
        driver.fail("node0", exitcode=-9)
        driver.settle(step=False)
        while driver.state.phase in ("recovering", "forming") and driver.wait():
            driver.settle(step=False)
    return driver


@_scenario
def shrunk_and_failed_over() -> JobDriver:
    spec = JobSpec(argv=("train.py", "--lr", "1e-3"), nodes_min=1, nodes_max=3, node_unit=1)
    waits = parse("version: 1\nchain: [{process_restart: {patience: 30s}}, shrink, grow, stop]\n", "p.yaml")
    driver = JobDriver(slots=4, spec=spec, policy=waits)
    driver.start()
    driver.lose("node2")
    driver.settle()
    driver.term = Term(2)
    driver.own(driver.policy)
    driver.wait()
    driver.settle()
    driver.say(
        "node0", StoreFailed(node="node0", incarnation="node0-1", round=2, effect="", error="its process was killed")
    )
    driver.settle()
    return driver


@_scenario
def stopped_and_started_again() -> JobDriver:
    driver = JobDriver(nodes=2)
    driver.start()
    driver.silence("node1")
    driver.stop()
    driver.settle()
    driver.wait()
    driver.settle()
    driver.start()
    return driver


def _stand_apart(driver: JobDriver) -> None:
    """All ranks wait for each other, and two nodes get no answer from each other."""
    world = driver.state.rounds.world
    assert world is not None
    stands = tuple(
        RankState(
            ranks=(member.base_rank,),
            place="train.py:9 (main)",
            op="all_reduce",
            waits="lock",
            still_s=20.0,
            held_s=20.0,
            silent_s=20.0,
            overdue=True,
            stack="wait (train.py:9)",
        )
        for member in world.members
    )
    one, other = world.members[0], world.members[1]
    cuts = tuple(
        Cut(node=here.node, peer=there.node, connections=2, silent_s=15.5, retries=6, ranks=(here.base_rank,))
        for here, there in ((one, other), (other, one))
    )
    driver.own(WorkersStood(round=driver.state.rounds.newest, stands=stands, cuts=cuts))


@_scenario
def link_cut_twice() -> JobDriver:
    """Three nodes go on without one of the pair; the two that are left are both needed and start again."""
    driver = JobDriver(nodes=3, spec=JobSpec(argv=("train.py",), nodes_min=2, nodes_max=3))
    driver.start()
    driver.make_steps(5)
    _stand_apart(driver)
    driver.settle()
    while driver.state.phase == "recovering" and driver.wait():
        driver.settle()
    driver.make_steps(5)
    _stand_apart(driver)
    driver.settle()
    driver.finish()
    driver.settle()
    return driver


@_scenario
def data_queue() -> JobDriver:
    """Two readers of a queue of two epochs; one is killed, then a rank reports late, then the data ends."""
    driver = JobDriver(nodes=2)
    driver.start()
    spec = QueueSpec(shards=10, epochs=2, samples=95, size=10, seed=7, shuffle=True)

    def say(node: str, kind: type, round_: int, **fields: object) -> None:
        life = driver.state.membership.nodes[node].incarnation
        driver.say(node, kind(node=node, incarnation=life, round=round_, queue="train", **fields))

    def report(rank: int, round_: int, want: int, *marks: tuple[int, int, int], closed: bool = False) -> None:
        told = tuple(QueueMark(step=step, done=done, offset=offset, rate=6) for step, done, offset in marks)
        reader = ReaderReport(rank=rank, want=want, marks=told, closed=closed)
        say(f"node{rank}", QueueReported, round_, readers=(reader,))

    for rank in (0, 1):
        say(f"node{rank}", QueueOpened, 1, spec=spec, step=0, ranks=(rank,))
        report(rank, 1, 4)
    report(0, 1, 6, (3, 1, 8))
    report(1, 1, 6, (3, 1, 8))
    driver.step = 5
    driver.commit(2)
    report(0, 1, 6, (5, 3, 0), closed=True)
    report(1, 1, 6, (4, 2, 4), closed=True)
    driver.fail("node1", exitcode=-9)
    driver.settle(step=False)
    for rank in (0, 1):
        say(f"node{rank}", QueueOpened, 2, spec=spec, step=4, ranks=(rank,))
    report(1, 1, 6, (5, 3, 0))
    want = [0, 0]
    for step in range(5, 60):
        for rank in (0, 1):
            live = driver.state.queues["train"].live.readers[rank]
            want[rank] += not live.over
            report(rank, 2, want[rank], (step, live.leased, 0))
    driver.step = 59
    driver.make_steps(1)


def _observed(driver: JobDriver, node: str, kind: str, **more: Any) -> None:
    """A finding of the master's detectors."""
    found = driver.state.membership.nodes[node]
    driver.own(
        FaultObserved(
            node=node, incarnation=found.incarnation, round=found.round, source="detector", kind=kind,
            step=driver.step, absolute=True, **more,
        )
    )  # fmt: skip


@_scenario
def slow_rank_and_slow_job() -> JobDriver:
    """A rank slower by 4 % is kept; the whole job becomes slower; a rank slower by half is evicted with its node."""
    driver = JobDriver(nodes=3, slots=2, spec=JobSpec(argv=("train.py",), nodes_min=2, nodes_max=2))
    driver.start()
    driver.join("node2")
    for value, rank in ((0.104, 3), (0.0, -1), (0.15, 3)):
        driver.make_steps(200)
        if rank < 0:
            values = {"before": 0.1, "after": 0.11}
            _observed(driver, "node0", "slowdown", message="all ranks are slower", values=values)
        else:
            message = "slow in backward: its own work takes more than that of its peers"
            values = {"value": value, "usual": 0.1, "since": float(driver.step - 190)}
            _observed(driver, "node1", "straggler", rank=rank, phase="backward", message=message, values=values)
        driver.settle()
    driver.make_steps(5)
    driver.finish()
    driver.settle()
    return driver


@_scenario
def processes_that_stay() -> JobDriver:
    """A failed collective and damaged memory are retried in place, a dead rank is swapped, an odd step repeated."""
    chain = "[recompute_step, step_retry, hot_swap, dying_checkpoint, process_restart, stop]"
    policy = parse(f"version: 1\nchain: {chain}\n", "policy.yaml")
    driver = JobDriver(nodes=2, slots=2, policy=policy, abilities=("retry", "park"))
    driver.start()
    driver.make_steps(5)
    driver.observe("node1", "collective", local_rank=1, message="Connection closed by peer")
    driver.observe("node0", "collective", message="Connection reset by peer")
    driver.settle()
    driver.make_steps(5)
    driver.observe("node0", "uce", message="MemoryDamaged: a parameter")
    driver.settle()
    driver.make_steps(5)
    driver.fail("node1", exitcode=-9)
    driver.settle()
    driver.make_steps(5)
    at = float(driver.step + 1)
    driver.observe("node0", "norm", message="norm: 45.7", values={"norm": 45.7, "at": at, "limit": 3.0})
    driver.settle(step=False)
    again = {"norm": 45.71, "at": at, "limit": 3.0, "again": 1.0}
    driver.observe("node0", "norm", message="norm: 45.71 again", values=again)
    driver.settle()
    driver.make_steps(5)
    driver.finish()
    driver.settle()
    return driver

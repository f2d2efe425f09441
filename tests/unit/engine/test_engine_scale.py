"""Thousands of nodes: what the engine does for one of them costs the same however many others there are.

Operations are counted, not seconds: the interpreter's own, deterministic on any machine. What is done in C (sorting, a
copy of a tuple) is not seen, and is cheap enough.
"""

import functools
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest

from ftcore.commands import CheckHealth
from ftcore.engine.health import FINDINGS_MAX, ILL_MAX
from ftcore.engine.orders import orders_of, slice_of
from ftcore.events.codec import encode
from ftcore.events.job import JobSpec
from ftcore.policies.file.config import parse
from ftcore.policies.health import FAILED, PASSED, STAGES_MAX, TOGETHER_MAX, judge, next_groups, pair
from ftcore.ports import GROUP_BYTES_MAX
from ftcore.states.health import Stage, StageFinding
from ftcore.testing.driver import JobDriver

GROWTH = 1.2
"""Operations per node may grow by this much from N to 4 N: sorting grows a little, a loop over all nodes a lot."""

CHAIN = "version: 1\nchain:\n  - shrink\n  - process_restart\n  - grow\n  - stop\n"


def operations(work: Callable[[], None]) -> int:
    """How many operations of Python the work takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class Crowd(JobDriver):
    """A job of many nodes, which obey in waves: asking each for its orders alone would be no driver for thousands."""

    def __init__(self, nodes: int, abilities: Sequence[str] = ()) -> None:
        spec = JobSpec(argv=("train.py",), nodes_min=nodes // 2, nodes_max=nodes)
        super().__init__(spec=spec, policy=parse(CHAIN, "test"), abilities=abilities)

    def calm(self) -> None:
        """Until the job runs and no incident is open."""
        self.settle()
        while self.state.phase != "running" or self.state.incident is not None:
            assert self.wait()
            self.settle()

    def _obey_once(self) -> bool:
        moved = False
        for action in list(self.state.orders.open.values()):
            for node, order in orders_of(self.state, action).items():
                if node not in self._silent:
                    self.obey(node, order)
                    moved = True
        return moved


def first_world(crowd: Crowd) -> None:
    crowd.submit()
    for number in range(crowd.spec.nodes_max):
        crowd.join(f"node{number}")
    crowd.calm()


def new_round(crowd: Crowd) -> None:
    crowd.fail("node3", exitcode=-9)
    crowd.calm()


def half_is_lost(crowd: Crowd) -> None:
    for number in range(crowd.spec.nodes_max // 2):
        crowd.lose(f"node{2 * number}")
    crowd.calm()


def half_comes_back(crowd: Crowd) -> None:
    for number in range(crowd.spec.nodes_max // 2):
        crowd.join(f"node{2 * number}")
    crowd.calm()


def all_are_told_again(crowd: Crowd) -> None:
    """As a new master does for every node that connects."""
    assert crowd.state.rounds.world is not None
    for member in crowd.state.rounds.world.members:
        slice_of(crowd.state, member.node)


def all_leave(crowd: Crowd) -> None:
    crowd.stop()
    crowd.settle()
    assert crowd.ended


PHASES = (first_world, new_round, half_is_lost, half_comes_back, all_are_told_again, all_leave)


@pytest.fixture(scope="module")
def costs() -> dict[str, tuple[float, float]]:
    """Operations per node of each phase, among 100 and among 400 nodes."""
    found: dict[str, list[float]] = {phase.__name__: [] for phase in PHASES}
    for nodes in (100, 400):
        crowd = Crowd(nodes)
        for phase in PHASES:
            found[phase.__name__].append(operations(functools.partial(phase, crowd)) / nodes)
    return {name: (few, many) for name, (few, many) in found.items()}


@pytest.mark.parametrize("name", [phase.__name__ for phase in PHASES])
def test_cost_of_a_node_does_not_grow(costs: dict[str, tuple[float, float]], name: str) -> None:
    """Four times the nodes cost four times the operations, in each part of a job's life."""
    few, many = costs[name]
    assert many < GROWTH * few, f"{few:.0f} operations a node among 100, {many:.0f} among 400"


class Name(str):
    """A name whose comparisons are operations too: a scan of a list would be done in C otherwise, and not be seen."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other)


def health_check(nodes: int, bad_of_eight: int) -> float:
    """Operations per node of a health check, from the first pairs to the verdict."""
    names = [Name(f"node{number}") for number in range(nodes)]
    bad = {name for number, name in enumerate(names) if number % 8 < bad_of_eight}

    def check() -> None:
        stages: list[Stage] = []
        groups = pair(names)
        while groups:
            readings = {}
            for group in groups:
                failed = any(name in bad for name in group)
                for name in group:
                    readings[name] = StageFinding(
                        exchange=FAILED if failed else PASSED, detail="no data" if failed else ""
                    )
            stages.append(Stage(groups=groups, readings=readings))
            groups = next_groups(stages)
        assert len(stages) == STAGES_MAX or bad_of_eight < 8
        judge(stages)

    return operations(check) / nodes


@pytest.mark.parametrize("bad_of_eight", [1, 5, 8])
def test_cost_of_a_node_in_a_health_check_does_not_grow(bad_of_eight: int) -> None:
    """Few bad nodes, many, or failure of every exchange: four times the nodes, four times the cost."""
    few, many = health_check(100, bad_of_eight), health_check(400, bad_of_eight)
    assert many < GROWTH * few, f"{few:.0f} operations a node among 100, {many:.0f} among 400"


def largest_of(crowd: Crowd) -> int:
    """Bytes of the largest group."""
    return max(sum(map(len, map(encode, group))) for group in crowd.groups)


def test_groups_of_ten_thousand_nodes_fit() -> None:
    """The largest group of a job of 10,000 nodes with the longest names there are is one that a log takes."""
    nodes, name = 10_000, "n" * 33  # incarnations repeat it here: together as long as 63 letters and a real incarnation
    crowd = Crowd(nodes)
    crowd.submit()
    for number in range(nodes):
        crowd.join(f"{name}{number:05}")
    crowd.calm()
    crowd.fail(f"{name}00003", exitcode=-9)
    crowd.calm()
    largest = largest_of(crowd)
    assert nodes * len(name) < largest <= GROUP_BYTES_MAX
    ordered = [event.data for event in crowd.events if event.type == "action.ordered"]
    assert len(ordered) < 10, "one order addresses all nodes"


def test_health_checks_of_ten_thousand_nodes_fit() -> None:
    """The orders of a check, a verdict with as many faulty nodes as are named beside a world, and that world fit."""
    nodes, name = 10_000, "n" * 33
    crowd = Crowd(nodes, abilities=["check"])
    crowd.health = {f"{name}{number:05}": "unreachable" for number in range(nodes - ILL_MAX, nodes)}
    crowd.submit()
    for number in range(nodes):
        crowd.join(f"{name}{number:05}")
    crowd.calm()
    checks = [event.data for event in crowd.events if event.type == "action.ordered" and not event.data.nodes]
    assert [len(data.command.groups) for data in checks if isinstance(data.command, CheckHealth)] == [nodes // 2] * 3
    assert len(crowd.state.membership.quarantined) == ILL_MAX
    assert nodes * len(name) < largest_of(crowd) <= GROUP_BYTES_MAX


def test_a_verdict_on_every_switch_of_ten_thousand_nodes_fits_beside_their_world(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Findings about bad switches and slow nodes fit into the group together with the largest world."""
    nodes, name = 10_000, "n" * 58
    crowd = Crowd(nodes, abilities=["check"])
    monkeypatch.setattr(crowd, "_incarnation", lambda node: f"{int(node[-5:]):015}")  # as long as real ones
    names = [f"{name}{number:05}" for number in range(nodes)]
    crowd.health = dict.fromkeys(names, "apart") | dict.fromkeys(names[-ILL_MAX:], "slow")
    crowd.submit()
    for number, node in enumerate(names):
        crowd.join(node, slots=8, labels={"switch": f"{number // TOGETHER_MAX:063}"})
    crowd.calm()
    [group] = [group for group in crowd.groups if any(event.type == "health.judged" for event in group)]
    verdict = next(event.data for event in group if event.type == "health.judged")
    assert len(verdict.apart) == FINDINGS_MAX and len(verdict.ill) == ILL_MAX
    assert {len(each.nodes) + each.others for each in verdict.apart} == {TOGETHER_MAX}
    assert group[-1].type == "action.ordered" and largest_of(crowd) <= GROUP_BYTES_MAX

"""Collectives among the nodes of one switch, after the pairs, through the production engine."""

from typing import Any

import msgspec
import pytest

from ftcore.commands import CheckHealth
from ftcore.engine.health import FAULTY_MAX, ILL_MAX, REASON_CHARS_MAX
from ftcore.events.action import ActionOrdered
from ftcore.events.envelope import At, Event, EventId, Fact
from ftcore.events.health import HealthJudged
from ftcore.events.job import JobSpec
from ftcore.events.node import HealthChecked
from ftcore.ids import seconds
from ftcore.testing.driver import JobDriver


def job(nodes: int, order_by: str = "") -> JobDriver:
    spec = JobSpec(argv=("t.py",), nodes_min=nodes, nodes_max=nodes, order_by=order_by)
    driver = JobDriver(spec=spec, abilities=["check"])
    driver.submit()
    return driver


class Skewed(JobDriver):
    """A job whose node n1 has a clock that is off, and is checked for 20 s; its answer may be long under way."""

    off_s = 0
    late_s = 0

    def say(self, node: str, data: Any) -> list[Event]:
        if node != "n1" or not isinstance(data, HealthChecked):
            return super().say(node, data)
        self.now += seconds(20)
        wall = self.now + seconds(self.off_s)
        self.now += seconds(self.late_s)
        fact = Fact(
            id=EventId(node, data.incarnation, 99),
            data=msgspec.structs.replace(data, took_s=20.0),
            at=At(wall=wall, mono=self.now, boot="boot"),
        )
        return self._turn(fact)


@pytest.mark.parametrize(
    ("off_s", "late_s", "told"),
    [
        (0, 0, ()),
        (0, 600, ()),
        (4, 600, ()),
        (-60, 0, ("clock: n1 is 60 s behind",)),
        (-60, 600, ("clock: n1 is 60 s behind",)),
        (60, 0, ("clock: n1 is 60 s ahead",)),
        (900, 600, ("clock: n1 is 300 s ahead",)),
    ],
)
def test_a_clock_is_off_only_if_it_shows_a_time_outside_of_its_check(
    off_s: int, late_s: int, told: tuple[str, ...]
) -> None:
    """An answer that came late (its agent was cut off) makes no right clock wrong."""
    driver = Skewed(spec=JobSpec(argv=("t.py",), nodes_min=2, nodes_max=2), abilities=["check"])
    driver.off_s, driver.late_s = off_s, late_s
    driver.submit()
    driver.join("n0")
    driver.join("n1")
    driver.settle()
    assert judged(driver).differing == told


def checks(driver: JobDriver) -> list[CheckHealth]:
    ordered = [event.data.command for event in driver.events if isinstance(event.data, ActionOrdered)]
    return [command for command in ordered if isinstance(command, CheckHealth)]


def judged(driver: JobDriver) -> HealthJudged:
    return next(event.data for event in driver.events if isinstance(event.data, HealthJudged))


@pytest.mark.parametrize(("label", "order_by"), [("switch", ""), ("rack", "rack")])
def test_the_nodes_of_each_switch_are_tried_once(label: str, order_by: str) -> None:
    """After the pairs, the healthy nodes of each switch run an all-reduce; then the job starts."""
    driver = job(7, order_by)
    driver.health = {"n6": "unreachable"}
    for number in range(7):
        driver.join(f"n{number}", labels={label: f"s{number // 3}"})
    driver.settle()
    *pairs, last = checks(driver)
    assert len(pairs) == 2 and {command.label for command in pairs} == {""}
    assert (last.label, last.stage) == (label, 3)
    assert last.groups == (("n0", "n1", "n2"), ("n3", "n4", "n5")) and last.store
    assert (judged(driver).apart, judged(driver).unmade) == ((), "")
    assert [each.node for each in judged(driver).ill] == ["n6"]


def test_a_switch_that_fails_where_its_pairs_passed() -> None:
    """It is reported with its label, and its nodes train: no node is rejected."""
    driver = job(6)
    driver.health = {"n1": "apart"}
    for number in range(6):
        driver.join(f"n{number}", labels={"switch": f"s{number // 3}"})
    driver.settle()
    [apart] = judged(driver).apart
    assert (apart.label, apart.nodes, judged(driver).ill) == ("switch=s0", ("n0", "n1", "n2"), ())
    assert driver.state.phase == "running" and {node.health for node in driver.state.membership.nodes.values()} == {
        "healthy"
    }


@pytest.mark.parametrize(
    ("labels", "why"),
    [
        ([{}, {}, {}, {}], "no node has the label switch"),
        ([{"switch": "a"}, {"switch": "a"}, {"switch": "b"}, {}], "fewer than 3 healthy nodes"),
    ],
)
def test_why_no_switch_was_tried(labels: list[dict[str, str]], why: str) -> None:
    """Without labels, or with too few nodes per switch, the reason is recorded and no collective is run."""
    driver = job(4)
    for number, own in enumerate(labels):
        driver.join(f"n{number}", labels=own)
    driver.settle()
    assert len(checks(driver)) == 1
    assert why in judged(driver).unmade and driver.state.phase == "running"


def test_faulty_nodes_are_named_some_at_a_time_until_none_is_left() -> None:
    """A verdict on hundreds of nodes is bounded; those that it does not name are checked again, and none trains."""
    bad = FAULTY_MAX + ILL_MAX
    spec = JobSpec(argv=("t.py",), nodes_min=4, nodes_max=bad + 40)
    driver = JobDriver(spec=spec, abilities=["check"])
    driver.submit()
    driver.health = {f"n{number}": "failed" for number in range(bad)}
    for number in range(spec.nodes_max):
        driver.join(f"n{number}")
    while driver.state.phase != "running":
        driver.settle()
        assert driver.state.phase == "running" or driver.wait()
    first, second, *rest = [event.data for event in driver.events if isinstance(event.data, HealthJudged)]
    assert (len(first.ill), len(first.again), len(second.ill), second.again, rest) == (FAULTY_MAX, 64, 64, (), [])
    assert first.note == "64 more nodes are faulty and will be checked again"
    assert set(driver.state.membership.quarantined) == set(driver.health)
    assert driver.state.rounds.world is not None
    assert not {member.node for member in driver.state.rounds.world.members} & set(driver.health)


def test_what_is_said_of_a_faulty_node_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check may say much; the verdict and the quarantine keep its beginning."""
    driver = job(4)
    driver.health = {"n0": "faulty"}
    say = driver.say

    def saying_much(node: str, data: Any) -> Any:
        return say(
            node, msgspec.structs.replace(data, detail="x" * 100_000) if isinstance(data, HealthChecked) else data
        )

    monkeypatch.setattr(driver, "say", saying_much)
    for number in range(4):
        driver.join(f"n{number}")
    driver.settle()
    [ill] = judged(driver).ill
    assert len(ill.reason) == REASON_CHARS_MAX
    assert driver.state.membership.quarantined["n0"] == f"failed its health check: {ill.reason}"

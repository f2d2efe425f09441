"""Pairing and verdict of health checks: every set of faulty nodes up to twelve nodes, every link, every slow node."""

from collections.abc import Callable, Collection
from itertools import chain, combinations

import attrs
import pytest

from ftcore.policies.health import (
    FAILED,
    FAULTY,
    PASSED,
    SLOW,
    STAGES_MAX,
    TOGETHER_MAX,
    UNAVAILABLE,
    UNKNOWN,
    HealthAssessment,
    judge,
    label_groups,
    next_groups,
    pair,
)
from ftcore.states.health import Stage, StageFinding

Measure = Callable[[str, str], StageFinding]


def names(count: int) -> list[str]:
    return [f"n{i}" for i in range(1, count + 1)]


def run_stage(
    groups: Collection[tuple[str, ...]], everybody: Collection[str], bad: set[str], links: set[frozenset[str]]
) -> Stage:
    readings = {node: StageFinding() for node in everybody}
    for group in groups:
        broken = bool(bad & set(group)) or any(frozenset(two) in links for two in combinations(group, 2))
        for node in group:
            readings[node] = StageFinding(exchange=FAILED if broken else PASSED, detail="no data" if broken else "")
    return Stage(groups=tuple(groups), readings=readings)


def check(
    nodes: list[str], bad: set[str], links: set[frozenset[str]] | None = None
) -> tuple[list[Stage], HealthAssessment]:
    stages = [run_stage(pair(nodes), nodes, bad, links or set())]
    while groups := next_groups(stages):
        assert len(set(chain(*groups))) == len([*chain(*groups)]), "a node is in one group at a time"
        stages.append(run_stage(groups, [*chain(*groups)], bad, links or set()))
    assert len(stages) <= STAGES_MAX
    return stages, judge(stages)


def ill(found: HealthAssessment, verdict: str) -> set[str]:
    return {each.node for each in found.ill if each.verdict == verdict}


def test_the_example_of_the_manual() -> None:
    """{1,2} {3,4} {5,6} with 5-6 failing becomes {1,2} {3,5} {4,6}; 4-6 fails as well: 6 is out, 5 is cleared."""
    stages, found = check(names(6), {"n6"})
    assert [stage.groups for stage in stages] == [
        (("n1", "n2"), ("n3", "n4"), ("n5", "n6")),
        (("n1", "n2"), ("n3", "n5"), ("n4", "n6")),
    ]
    assert [(each.node, each.verdict) for each in found.ill] == [("n6", FAULTY)]
    assert "n5, n4" in found.ill[0].reason
    assert found.links == () and found.note == ""


@pytest.mark.parametrize("count", range(2, 13))
def test_any_set_of_faulty_nodes(count: int) -> None:
    """Whatever fails: no good node is given up, and every bad one is found where two good ones ever met."""
    nodes = names(count)
    for size in range(count + 1):
        for bad in map(set, combinations(nodes, size)):
            stages, found = check(nodes, bad)
            out = ill(found, FAULTY)
            assert out <= bad, (bad, stages)
            met = any(group for stage in stages for group in stage.groups if not bad & set(group))
            if met:
                assert out | ill(found, UNKNOWN) >= bad, (bad, stages)
            if met and 2 * size < count:
                assert out == bad, (bad, stages)
                assert not ill(found, UNKNOWN)
            if 2 * size < count:
                assert met, (bad, stages)
            if not met and size:
                assert not out
                assert found.note
            assert not found.links


@pytest.mark.parametrize("count", range(2, 13))
def test_any_one_link(count: int) -> None:
    """A bad link between two good nodes costs neither of them; it is named where both met somebody else."""
    nodes = names(count)
    for two in combinations(nodes, 2):
        stages, found = check(nodes, set(), {frozenset(two)})
        assert not ill(found, FAULTY)
        hit = any(set(two) <= set(group) for stage in stages for group in stage.groups)
        links = [set(link.nodes) for link in found.links]
        assert not hit or count < 3 or any(set(two) <= link for link in links)
        assert count != 3 or links == [set(two)]


@pytest.mark.parametrize("count", range(4, 11))
def test_any_faulty_nodes_beside_a_bad_link(count: int) -> None:
    """Even where a suspect meets its cleared partner over a bad link, it is tried with another one first."""
    nodes = names(count)
    for size in range(1, (count + 1) // 2 - 1):
        for bad in map(set, combinations(nodes, size)):
            for two in combinations([node for node in nodes if node not in bad], 2):
                _, found = check(nodes, bad, {frozenset(two)})
                assert ill(found, FAULTY) <= bad, (bad, two)


def timed(groups: Collection[tuple[str, ...]], everybody: Collection[str], slow: set[str], how: str) -> Stage:
    readings = {}
    of = {node: group for group in groups for node in group}
    for place, node in enumerate(everybody):
        hit = bool(slow & set(of.get(node, ())))
        readings[node] = StageFinding(
            exchange=PASSED if node in of else "",
            device_s=(3.0 if how == "device" and node in slow else 1.0) + 0.01 * (place % 3),
            exchange_s=(3.0 if how == "exchange" and hit else 1.0) if node in of else 0.0,
            link_s=(0.8 if how == "link" and hit else 0.2) if node in of else 0.0,
        )
    return Stage(groups=tuple(groups), readings=readings)


@pytest.mark.parametrize("how", ["device", "exchange", "link"])
@pytest.mark.parametrize("count", range(6, 13))
def test_any_slow_node(count: int, how: str) -> None:
    """One node that is slow by itself, in exchanges, or on TCP alone, is slow in both stages; nobody else is."""
    nodes = names(count)
    for slow in nodes:
        stages = [timed(pair(nodes), nodes, {slow}, how)]
        while groups := next_groups(stages):
            stages.append(timed(groups, [*chain(*groups)], {slow}, how))
        found = judge(stages)
        assert ill(found, SLOW) == {slow}, stages
        assert not ill(found, FAULTY)


def test_a_link_that_is_as_fast_as_processors_allow() -> None:
    """TCP over memory differs by what else runs: a twentieth of a second for a gigabyte is nobody's fault."""
    nodes = names(8)
    stages = [timed(pair(nodes), nodes, set(), "link"), timed(pair(nodes), nodes, set(), "link")]
    for stage in stages:
        for node in nodes:
            stage.readings[node] = attrs.evolve(stage.readings[node], link_s=0.06 if node in ("n1", "n2") else 0.02)
    assert judge(stages).ill == () and next_groups(stages[:1]) == ()


def test_slow_once_is_noise() -> None:
    """Who is slow in one stage alone is not slow."""
    nodes = names(8)
    first = timed(pair(nodes), nodes, {"n3"}, "device")
    groups = next_groups([first])
    second = timed(groups, [*chain(*groups)], set(), "device")
    assert judge([first, second]).ill == ()


def test_slow_and_failed_is_one_place() -> None:
    """A node that is slow and failed in its group as well is tried in one group, not in two at once."""
    nodes = names(12)
    first = run_stage(pair(nodes), nodes, {"n3"}, set())
    for node in nodes:
        first.readings[node] = attrs.evolve(first.readings[node], device_s=3.0 if node == "n3" else 1.0)
    groups = next_groups([first])
    assert [node for group in groups for node in group].count("n3") == 1


def by_itself(**verdicts: str) -> Stage:
    readings = {node: StageFinding(verdict=verdict, detail="device 0: NaN") for node, verdict in verdicts.items()}
    return Stage(groups=(), readings=readings)


def test_wrong_values_need_no_second_stage() -> None:
    """A node that computes wrong values is faulty by its own word; its partner is cleared if data passed."""
    stage = Stage(
        groups=(("a", "b"),),
        readings={
            "a": StageFinding(verdict=FAULTY, detail="device 3: NaN", exchange=PASSED),
            "b": StageFinding(exchange=PASSED),
        },
    )
    assert next_groups([stage]) == ()
    assert [(each.node, each.verdict, each.reason) for each in judge([stage]).ill] == [("a", FAULTY, "device 3: NaN")]
    assert judge([by_itself(a=FAULTY)]).ill[0].verdict == FAULTY


def test_where_everybody_fails_the_check_is_at_fault() -> None:
    """Nobody is given up if all compute wrong values, all crash, or nobody could be checked; and it is said."""
    for verdict in (FAULTY, FAILED):
        found = judge([by_itself(a=verdict, b=verdict)])
        assert ill(found, UNKNOWN) == {"a", "b"} and found.note
    assert ill(judge([by_itself(a=FAILED, b="healthy")]), FAULTY) == {"a"}
    assert ill(judge([by_itself(a=FAILED)]), UNKNOWN) == {"a"}
    found = judge([by_itself(a=UNAVAILABLE, b=UNAVAILABLE)])
    assert ill(found, UNKNOWN) == {"a", "b"} and "no node could be checked" in found.note


def test_a_partner_that_went_away() -> None:
    """Whose partner left in the middle is tried with somebody else, and not blamed."""
    first = Stage(
        groups=(("a", "b"), ("c", "d")),
        readings={
            "a": StageFinding(exchange=FAILED),
            "c": StageFinding(exchange=PASSED),
            "d": StageFinding(exchange=PASSED),
        },
    )
    groups = next_groups([first])
    assert [group for group in groups if "a" in group] and not [group for group in groups if "b" in group]
    second = run_stage(groups, [*chain(*groups)], set(), set())
    assert judge([first, second]).ill == ()


def test_nodes_under_a_switch_that_fail_all_together() -> None:
    """Good nodes of one switch that fail all at once are told, and none of them is given up; who left explains it."""
    nodes = names(8)
    labels = {node: "s1" if place < 4 else "s2" for place, node in enumerate(nodes)}
    pairs = run_stage(pair(nodes), nodes, set(), set())
    groups = label_groups([pairs], labels)
    assert groups == (("n1", "n2", "n3", "n4"), ("n5", "n6", "n7", "n8"))
    apart = run_stage(groups, nodes, set(), {frozenset(("n1", "n4"))})
    apart = attrs.evolve(apart, label="switch")
    found = judge([pairs, apart])
    assert (found.ill, found.links) == ((), ())
    assert [(each.nodes, each.reason) for each in found.apart] == [(groups[0], "no data")]
    del apart.readings["n4"]
    assert judge([pairs, apart]).apart == (), "a node that went away is reason enough"
    broken = attrs.evolve(apart, readings={**apart.readings, "n4": StageFinding(verdict=FAILED, exchange=FAILED)})
    found = judge([pairs, broken])
    assert ill(found, FAULTY) == {"n4"} and found.apart == (), "so is one that failed by itself"


def test_who_is_tried_under_a_switch() -> None:
    """Good nodes with the label, three at least; a group that was tried already is not, a huge one is in parts."""
    nodes = names(9)
    pairs = run_stage(pair(nodes), nodes, {"n2"}, set())
    second = run_stage(next_groups([pairs]), [*chain(*next_groups([pairs]))], {"n2"}, set())
    assert label_groups([pairs, second], dict.fromkeys(nodes, "s")) == (("n1", *nodes[2:]),)
    assert label_groups([pairs], dict.fromkeys(nodes[:2], "s") | dict.fromkeys(nodes[2:4], "t")) == ()
    assert label_groups([pairs], dict.fromkeys(nodes[6:], "s")) == (), "the last pair is one of three"
    assert label_groups([pairs], {}) == label_groups([pairs], dict.fromkeys(nodes, "")) == ()
    many = names(2 * TOGETHER_MAX + 1)
    stage = run_stage(pair(many), many, set(), set())
    groups = label_groups([stage], dict.fromkeys(many, "s"))
    assert sorted(map(len, groups)) == [43, 43, 43] and [*chain(*groups)] == many


@pytest.mark.parametrize("count", range(3, 10))
def test_a_switch_changes_no_verdict_of_the_pairs(count: int) -> None:
    """Whatever comes of the nodes under a switch, who is given up, and which links are, follows from the pairs."""
    nodes = names(count)
    for bad in chain.from_iterable(combinations(nodes, size) for size in range(count)):
        stages, found = check(nodes, set(bad))
        groups = label_groups(stages, dict.fromkeys(nodes, "s"))
        assert not set(chain(*groups)) & ill(found, FAULTY)
        for links in ({frozenset(groups[0][:2])} if groups else set(), set()):
            last = attrs.evolve(run_stage(groups, [*chain(*groups)], set(bad), links), label="switch")
            again = judge([*stages, last])
            assert (again.ill, again.links, again.note) == (found.ill, found.links, found.note)
            assert len(again.apart) == (1 if groups and links else 0)

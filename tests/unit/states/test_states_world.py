"""World formation: which nodes, which ranks. What holds for any nodes is in ``tests/property``."""

import attrs
import msgspec
import pytest

from ftcore.events.job import JobSpec
from ftcore.states.world import Volunteer, digest, form_world, impossible, natural, next_size, usable


def spec(least: int, most: int, unit: int = 1, sizes: tuple[int, ...] = (), order_by: str = "") -> JobSpec:
    return JobSpec(argv=("t.py",), nodes_min=least, nodes_max=most, node_unit=unit, sizes=sizes, order_by=order_by)


def node(
    ordinal: int, *, name: str = "", slots: int = 2, settled: bool = True, life: int = 1, **labels: str
) -> Volunteer:
    name = name or f"n{ordinal}"
    return Volunteer(
        node=name, incarnation=f"{name}-{life}", ordinal=ordinal, slots=slots, labels=labels, settled=settled
    )


def nodes(*ordinals: int, slots: int = 2) -> list[Volunteer]:
    return [node(ordinal, slots=slots) for ordinal in ordinals]


def names(members) -> list[str]:
    return [member.node for member in members]


@pytest.mark.parametrize(
    ("there", "least", "most", "unit", "sizes", "expected"),
    [
        (2, 2, 2, 1, (), 2),
        (1, 2, 2, 1, (), 0),
        (5, 1, 3, 1, (), 3),
        (5, 2, 8, 2, (), 4),
        (1, 1, 8, 2, (), 0),
        (0, 1, 4, 1, (), 0),
        (7, 5, 8, 4, (), 0),
        (7, 2, 8, 2, (2, 4, 8), 4),
        (9, 2, 8, 2, (2, 4, 8), 8),
        (3, 4, 8, 1, (4, 8), 0),
    ],
)
def test_as_many_nodes_as_allowed(there, least, most, unit, sizes, expected):
    """The largest allowed size that so many nodes make, or none below the minimum."""
    assert expected == usable(there, spec(least, most, unit, sizes))


def test_the_next_size():
    """What a world could grow to: the next multiple of the unit, or the next of the sizes; nothing beyond the last."""
    assert [next_size(spec(1, 6, 2), nodes) for nodes in (0, 2, 3, 6)] == [2, 4, 4, 0]
    assert [next_size(spec(1, 8, 1, (2, 4, 8)), nodes) for nodes in (0, 2, 5, 8)] == [2, 4, 8, 0]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (spec(1, 3, 4), "--node-unit: found 4; expected a number with a multiple within --nnodes 1:3"),
        (spec(1, 3, 0), "--node-unit: found 0"),
        (spec(2, 4, 1, (2, 8)), "--node-sizes: found 8, which is outside of --nnodes 2:4"),
        (spec(2, 8, 2, (2, 3)), "--node-sizes: found 3, which is not a multiple of --node-unit 2"),
    ],
)
def test_impossible_jobs(asked, words):
    """A job without a possible world, or with an impossible size, is refused in one line."""
    assert words in impossible(asked)


def test_ranks_follow_ordinals_as_numbers():
    """Ordinal 10 comes after 9, whatever order the nodes come in."""
    members = form_world(nodes(10, 9, 2), spec(1, 8))
    assert [(m.node, m.base_rank) for m in members] == [("n2", 0), ("n9", 2), ("n10", 4)]


def test_unsettled_nodes_are_placed_in_order_of_their_names():
    """In any order of joining, node-2 comes before node-10; a node that requested its place keeps it."""
    called = [node(place, name=name, settled=False) for place, name in enumerate(("node-10", "node-9", "node-2"))]
    assert names(form_world(called, spec(1, 8))) == ["node-2", "node-9", "node-10"]
    asked = [attrs.evolve(called[0], settled=True), *called[1:]]
    assert names(form_world(asked, spec(1, 8))) == ["node-10", "node-2", "node-9"]
    assert natural("rack2-node10") < natural("rack10-node2") and natural("a") < natural("a1")


def test_the_unit_leaves_the_last_ones_out():
    """{0..4} with unit 2 is {0..3}; 4 waits for the next node, then it is {0..5}."""
    eights = spec(2, 8, 2)
    first = form_world(nodes(0, 1, 2, 3, 4, slots=8), eights)
    assert names(first) == ["n0", "n1", "n2", "n3"]
    before = nodes(0, 1, 2, 3, slots=8)
    assert first == form_world(nodes(0, 1, 2, 3, 4, slots=8), eights, before)
    grown = form_world(nodes(0, 1, 2, 3, 4, 5, slots=8), eights, before)
    assert names(grown) == ["n0", "n1", "n2", "n3", "n4", "n5"] and grown[:4] == first


def test_too_few_make_no_world():
    """Below the minimum there is no world at all."""
    assert form_world(nodes(0), spec(2, 4)) == ()


def test_nodes_of_different_width():
    """A base rank is the sum of the slots of the nodes before."""
    wide = [node(0, slots=4), node(1, slots=1), node(2, slots=3)]
    assert [m.base_rank for m in form_world(wide, spec(1, 3))] == [0, 4, 5]


def test_a_replacement_inherits_the_place():
    """A spare inherits the lost node's ordinal and ranks; no other node moves, and the lost node rejoins as a spare."""
    four = spec(4, 4)
    before = nodes(0, 1, 2, 3)
    members = form_world(nodes(0, 2, 3, 4), four, before)
    assert [(m.node, m.ordinal, m.base_rank) for m in members] == [
        ("n0", 0, 0),
        ("n4", 1, 2),
        ("n2", 2, 4),
        ("n3", 3, 6),
    ]
    now = [node(0), node(1, name="n4"), node(2), node(3), node(4, name="n1")]
    assert members == form_world(now, four, now[:4])


def test_a_replacement_fits_its_place():
    """The same number of slots is preferred, as it keeps the ranks of others; then the same switch; then the order."""
    job = spec(2, 2, order_by="switch")
    before = [node(0, switch="s1", slots=4), node(1, switch="s1", slots=4)]
    spares = [node(2, slots=2, switch="s1"), node(3, slots=4, switch="s2"), node(4, slots=4, switch="s1")]
    assert names(form_world([before[0], *spares], job, before)) == ["n0", "n4"]
    assert names(form_world([before[0], *spares[:2]], job, before)) == ["n0", "n3"]
    assert names(form_world([before[0], spares[0]], job, before)) == ["n0", "n2"]


def test_nodes_of_one_switch_are_neighbours():
    """Labels come before ordinals, their numbers compared as numbers; a node without the label comes last."""
    there = [node(0, switch="s10"), node(1, switch="s2"), node(2), node(3, switch="s10"), node(4, switch="s2")]
    assert names(form_world(there, spec(1, 5, order_by="switch"))) == ["n1", "n4", "n0", "n3", "n2"]


def test_members_of_the_world_before_are_chosen_first():
    """A smaller world prefers members of the world before to spares with lower ordinals."""
    before = [node(n, switch=f"s{n}") for n in (0, 1, 2, 3)]
    there = [*before[2:], node(4, switch="s1")]
    assert names(form_world(there, spec(2, 4, 1, (2, 4), "switch"), before)) == ["n2", "n3"]


def test_different_memberships_have_different_digests():
    """Equal memberships have equal digests; another incarnation makes another one."""
    two = spec(1, 2)
    one = form_world(nodes(0, 1), two)
    assert digest(one) == digest(form_world(nodes(1, 0), two))
    assert digest(one) != digest(form_world([node(0, life=2), node(1)], two))


def test_a_replacement_has_the_role_of_the_lost_node():
    """The role comes before the number of slots; a node of another role is used only if no other is available."""
    before = [attrs.evolve(node(n), role=role) for n, role in enumerate(("ps", "trainer"))]
    spares = [attrs.evolve(node(2), role="trainer"), attrs.evolve(node(3, slots=4), role="ps")]
    assert names(form_world([before[1], *spares], spec(1, 2), before)) == ["n3", "n1"]
    assert names(form_world([before[1], spares[0]], spec(1, 2), before)) == ["n2", "n1"]


def test_nodes_with_commands_of_their_own():
    """Specs of nodes may differ only in command and role; without that, they must be equal."""
    own = JobSpec(argv=("ps.py",), role="ps", nodes_max=2, own_commands=True)
    other = msgspec.structs.replace(own, argv=("train.py", "--me"), role="trainer", module=True)
    assert own.admits(other) and other.admits(own)
    assert not own.admits(msgspec.structs.replace(other, nodes_max=3))
    assert not own.admits(msgspec.structs.replace(other, own_commands=False))
    assert not msgspec.structs.replace(own, own_commands=False).admits(
        msgspec.structs.replace(other, own_commands=False)
    )

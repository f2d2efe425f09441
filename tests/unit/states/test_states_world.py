"""World formation: which nodes, which ranks."""

import pytest

from ftcore.states.world import Volunteer, digest, form_world, usable


def volunteers(*ordinals: int, slots: int = 2) -> list[Volunteer]:
    return [Volunteer(node=f"n{o}", incarnation=f"n{o}-1", ordinal=o, slots=slots) for o in ordinals]


@pytest.mark.parametrize(
    ("nodes", "nodes_min", "nodes_max", "unit", "expected"),
    [
        (2, 2, 2, 1, 2),
        (1, 2, 2, 1, 0),
        (5, 1, 3, 1, 3),
        (5, 2, 8, 2, 4),
        (1, 1, 8, 2, 0),
        (0, 0, 4, 1, 0),
        (7, 5, 8, 4, 0),
    ],
)
def test_as_many_nodes_as_allowed(nodes, nodes_min, nodes_max, unit, expected):
    """The largest multiple of the unit up to the maximum, or none below the minimum."""
    assert expected == usable(nodes, nodes_min=nodes_min, nodes_max=nodes_max, node_unit=unit)


def test_ranks_follow_ordinals_as_numbers():
    """Ordinal 10 comes after 9, whatever order the nodes come in."""
    members = form_world(volunteers(10, 9, 2), nodes_min=1, nodes_max=8)
    assert [(m.node, m.base_rank) for m in members] == [("n2", 0), ("n9", 2), ("n10", 4)]


def test_the_highest_ordinals_are_left_out():
    """What the unit or the maximum does not take is the nodes that came last in rank."""
    members = form_world(volunteers(0, 1, 2, 3, 4), nodes_min=1, nodes_max=8, node_unit=2)
    assert [m.node for m in members] == ["n0", "n1", "n2", "n3"]


def test_too_few_make_no_world():
    """Below the minimum there is no world at all."""
    assert form_world(volunteers(0), nodes_min=2, nodes_max=4) == ()


def test_nodes_of_different_width():
    """Base ranks add up what the nodes before hold."""
    wide = [*volunteers(0, slots=4), *volunteers(1, slots=1), *volunteers(2, slots=3)]
    assert [m.base_rank for m in form_world(wide, nodes_min=1, nodes_max=3)] == [0, 4, 5]


def test_the_digest_tells_memberships_apart():
    """Equal memberships have equal digests; another incarnation makes another one."""
    one = form_world(volunteers(0, 1), nodes_min=1, nodes_max=2)
    assert digest(one) == digest(form_world(volunteers(1, 0), nodes_min=1, nodes_max=2))
    replaced = [Volunteer(node="n0", incarnation="n0-2", ordinal=0, slots=2), *volunteers(1)]
    assert digest(one) != digest(form_world(replaced, nodes_min=1, nodes_max=2))

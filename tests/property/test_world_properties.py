"""World formation, for any nodes: what must hold of every world, and from one world to the next."""

from hypothesis import assume, given
from hypothesis import strategies as st

from ftcore.events.job import JobSpec
from ftcore.states.world import Volunteer, form_world, impossible, next_size, usable

NAMES = st.sampled_from([f"node-{number}" for number in range(24)])
LABELS = st.one_of(st.just({}), st.sampled_from([{"switch": f"s{number}"} for number in (1, 2, 3, 10)]))


@st.composite
def specs(draw: st.DrawFn) -> JobSpec:
    """Any job for which some world exists."""
    least = draw(st.integers(1, 8))
    most = draw(st.integers(least, 16))
    unit = draw(st.integers(1, 4))
    sizes: tuple[int, ...] = ()
    if draw(st.booleans()):
        fitting = [size for size in range(least, most + 1) if size % unit == 0]
        assume(fitting)
        sizes = tuple(sorted(draw(st.sets(st.sampled_from(fitting), min_size=1))))
    made = JobSpec(
        argv=("t.py",),
        nodes_min=least,
        nodes_max=most,
        node_unit=unit,
        sizes=sizes,
        order_by=draw(st.sampled_from(["", "switch"])),
    )
    assume(not impossible(made))
    return made


@st.composite
def crowds(draw: st.DrawFn) -> list[Volunteer]:
    """Any nodes, each with a place of its own."""
    names = draw(st.lists(NAMES, unique=True, max_size=18))
    places = draw(st.lists(st.integers(0, 30), unique=True, min_size=len(names), max_size=len(names)))
    return [
        Volunteer(
            node=name,
            incarnation=f"{name}/1",
            ordinal=place,
            slots=draw(st.integers(1, 3)),
            labels=draw(LABELS),
            settled=draw(st.booleans()),
        )
        for name, place in zip(names, places, strict=True)
    ]


def seats(members, crowd):
    """The world before, as the next formation sees it."""
    known = {volunteer.node: volunteer for volunteer in crowd}
    return [
        Volunteer(
            node=member.node,
            incarnation=member.incarnation,
            ordinal=member.ordinal,
            slots=member.slots,
            labels=known[member.node].labels,
            settled=True,
        )
        for member in members
    ]


@given(specs(), crowds(), st.randoms(use_true_random=False))
def test_every_world_is_one_that_the_job_allows(spec, crowd, chance):
    """As large as can be, nobody twice, ranks without a gap, and the same whatever order the nodes come in."""
    members = form_world(crowd, spec)
    shuffled = list(crowd)
    chance.shuffle(shuffled)
    assert members == form_world(shuffled, spec)
    assert len(members) == usable(len(crowd), spec)
    if members:
        assert spec.nodes_min <= len(members) <= spec.nodes_max and len(members) % spec.node_unit == 0
        assert not spec.sizes or len(members) in spec.sizes
    following = next_size(spec, len(members))
    assert not following or len(crowd) < following, "no larger world was possible"
    base = 0
    for member in members:
        assert member.base_rank == base
        base += member.slots
    assert len({member.node for member in members}) == len({member.ordinal for member in members}) == len(members)


@given(specs(), crowds(), st.data())
def test_while_the_size_stays_nobody_moves(spec, crowd, data):
    """Some are lost and others come: if the world is as large as before, every survivor has its place and ordinal, and
    if those who came are as wide as those who went, its ranks."""
    first = form_world(crowd, spec)
    assume(first)
    before = seats(first, crowd)
    lost = data.draw(st.sets(st.sampled_from([member.node for member in first]), max_size=len(first) - 1))
    there = [volunteer for volunteer in crowd if volunteer.node not in lost]
    second = form_world(there, spec, before)
    assert second == form_world(list(reversed(there)), spec, before)
    stayed = [member.node for member in first if member.node not in lost]
    if len(second) == len(first):
        for old, new in zip(first, second, strict=True):
            assert old.ordinal == new.ordinal and (old.node == new.node or old.node in lost)
        if all(old.slots == new.slots for old, new in zip(first, second, strict=True)):
            assert [old.base_rank for old in first] == [new.base_rank for new in second]
        assert second == form_world(there, spec, seats(second, crowd)), "what was formed stays"
    elif len(second) <= len(stayed):
        assert {member.node for member in second} <= set(stayed), "who trained is taken before a spare"
    else:
        assert set(stayed) <= {member.node for member in second}, "who trained goes on"


@given(specs(), crowds())
def test_ranks_lie_in_the_order_that_was_asked_for(spec, crowd):
    """A first world: nodes of one label are neighbours, and within it places are in order."""
    known = {volunteer.node: volunteer for volunteer in crowd}
    members = form_world(crowd, spec)
    labels = [known[member.node].labels.get(spec.order_by, "") for member in members]
    changes = [label for place, label in enumerate(labels) if place == 0 or labels[place - 1] != label]
    assert len(changes) == len(set(changes)), "each label once, in a row"
    for label in set(labels):
        places = [member.ordinal for member, found in zip(members, labels, strict=True) if found == label]
        assert places == sorted(places)

"""World formation: which nodes train in a round, and with which ranks. A pure function of its arguments.

House rules: same input, same world. Group ranks follow ordinals (compared as numbers); a node keeps its ordinal for
life and its replacement inherits it, so ranks of survivors move only when the world shrinks or grows. The fold records
the result and never runs this again.
"""

from collections.abc import Iterable

import attrs
import msgspec

from ftcore.events.codec import digest_of
from ftcore.events.world import Member


@attrs.frozen(kw_only=True)
class Volunteer:
    """A node that could take part.

    Args:
        node: its name.
        incarnation: the life of its agent.
        ordinal: its place.
        slots: how many ranks it holds.
    """

    node: str
    incarnation: str
    ordinal: int
    slots: int


def form_world(
    volunteers: Iterable[Volunteer], *, nodes_min: int, nodes_max: int, node_unit: int = 1
) -> tuple[Member, ...]:
    """The members of the world that these nodes make, in order of base rank; empty if they are too few.

    Args:
        volunteers: nodes that are connected and free.
        nodes_min: fewer make no world.
        nodes_max: more are left out, the highest ordinals first.
        node_unit: the number of members is a multiple of this.
    """
    ordered = sorted(volunteers, key=lambda volunteer: (volunteer.ordinal, volunteer.node))
    count = usable(len(ordered), nodes_min=nodes_min, nodes_max=nodes_max, node_unit=node_unit)
    members: list[Member] = []
    base = 0
    for volunteer in ordered[:count]:
        members.append(
            Member(
                node=volunteer.node,
                incarnation=volunteer.incarnation,
                ordinal=volunteer.ordinal,
                base_rank=base,
                slots=volunteer.slots,
            )
        )
        base += volunteer.slots
    return tuple(members)


def usable(nodes: int, *, nodes_min: int, nodes_max: int, node_unit: int) -> int:
    """How many of so many nodes a world may have: the largest allowed multiple of the unit, or 0."""
    count = min(nodes, nodes_max)
    count -= count % node_unit
    return count if count >= max(nodes_min, 1) else 0


def digest(members: Iterable[Member]) -> str:
    """Hex digest of a membership."""
    return digest_of(msgspec.json.encode(list(members)))

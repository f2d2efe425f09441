"""World formation: which nodes train in a round, and with which ranks. A pure function of its arguments.

House rules: same input, same world. A world is as large as the job allows (its bounds, its unit, its sizes). While its
size stays, nobody moves: who trained before keeps its place, and whoever comes for a node that is gone inherits the
place of that one, ordinal and all, so the ranks of survivors stay what they were. Only a world of another size is laid
out anew, in order of the label that the job names, then of ordinals; who trained before is taken first. Numbers are
compared as numbers wherever they stand: ``node-2`` comes before ``node-10``. The fold records the result and never runs
this again.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from ftcore.events.codec import digest_of
from ftcore.events.job import JobSpec
from ftcore.events.world import Member


@attrs.frozen(kw_only=True)
class Volunteer:
    """A node that could take part, or one that did in the world before.

    Args:
        node: its name.
        incarnation: the life of its agent.
        ordinal: its place.
        slots: how many ranks it holds.
        labels: what it says of where it stands, as ``{"switch": "s1"}``.
        settled: its place is its own: it asked for it, or has trained at it. Places of the others are dealt out among
            them in order of their names, whoever called first.
        role: role of its workers, where nodes may differ in it.
    """

    node: str
    incarnation: str
    ordinal: int
    slots: int
    labels: Mapping[str, str] = attrs.field(factory=dict)
    settled: bool = False
    role: str = ""


def form_world(volunteers: Iterable[Volunteer], spec: JobSpec, before: Sequence[Volunteer] = ()) -> tuple[Member, ...]:
    """The members of the world that these nodes make, in order of base rank; empty if they are too few.

    Args:
        volunteers: nodes that are connected and free, each with a place of its own.
        spec: the job, which says what sizes a world may have and how its ranks are laid out.
        before: who had the places of the world before, in order of base rank.
    """
    dealt = _dealt(volunteers)
    count = usable(len(dealt), spec)
    trained = {volunteer.node for volunteer in before}
    stayed = {volunteer.node for volunteer in dealt if volunteer.node in trained}
    order = _order(spec)
    if stayed and len(before) == count:
        pool = (volunteer for volunteer in dealt if volunteer.node not in trained)
        chosen = _refilled(before, dealt, sorted(pool, key=order), spec)
    else:
        first = sorted(dealt, key=lambda volunteer: (volunteer.node not in stayed, order(volunteer)))
        chosen = sorted(first[:count], key=order)
    members: list[Member] = []
    base = 0
    for volunteer in chosen:
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


def _dealt(volunteers: Iterable[Volunteer]) -> list[Volunteer]:
    """The volunteers, those without a place of their own in order of their names at the places that they have."""
    found = list(volunteers)
    if all(volunteer.settled for volunteer in found):
        return found
    loose = sorted((volunteer for volunteer in found if not volunteer.settled), key=lambda v: (natural(v.node), v.node))
    places = sorted(volunteer.ordinal for volunteer in loose)
    at = {volunteer.node: place for volunteer, place in zip(loose, places, strict=True)}
    return [attrs.evolve(v, ordinal=at[v.node]) if at.get(v.node, v.ordinal) != v.ordinal else v for v in found]


def _refilled(
    before: Sequence[Volunteer], there: Sequence[Volunteer], pool: list[Volunteer], spec: JobSpec
) -> list[Volunteer]:
    """The world before with its gaps filled, each by the node that fits best: by role, width, label, order."""
    here = {volunteer.node: volunteer for volunteer in there}
    chosen: list[Volunteer] = []
    for seat in before:
        taker = here.get(seat.node)
        if taker is None:
            near = _label(seat, spec)
            fit = [(v.role != seat.role, v.slots != seat.slots, _label(v, spec) != near, n) for n, v in enumerate(pool)]
            taker = pool.pop(min(fit)[-1])
        chosen.append(taker if taker.ordinal == seat.ordinal else attrs.evolve(taker, ordinal=seat.ordinal))
    return chosen


def _order(spec: JobSpec) -> Callable[[Volunteer], Any]:
    if not spec.order_by:
        return lambda volunteer: (volunteer.ordinal, volunteer.node)

    def key(volunteer: Volunteer) -> Any:
        label = _label(volunteer, spec)
        return (label == "", natural(label), volunteer.ordinal, volunteer.node)

    return key


def _label(volunteer: Volunteer, spec: JobSpec) -> str:
    return volunteer.labels.get(spec.order_by, "")


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts names as people do, their numbers as numbers."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text))


def usable(nodes: int, spec: JobSpec) -> int:
    """How many of so many nodes a world may have: the largest size that the job allows, or 0."""
    most = min(nodes, spec.nodes_max)
    if spec.sizes:
        return max((size for size in spec.sizes if max(spec.nodes_min, 1) <= size <= most), default=0)
    count = most - most % spec.node_unit
    return count if count >= max(spec.nodes_min, 1) else 0


def next_size(spec: JobSpec, beyond: int) -> int:
    """The smallest size that a world may have beyond so many nodes; 0: there is none."""
    return next((size for size in range(beyond + 1, spec.nodes_max + 1) if usable(size, spec) == size), 0)


def impossible(spec: JobSpec) -> str:
    """Why no world of any size would do for a job, or which of its sizes never could; empty if all is well."""
    bounds = f"{spec.nodes_min}:{spec.nodes_max}"
    if spec.node_unit < 1:
        return f"--node-unit: found {spec.node_unit}; expected a number of nodes, 1 or more"
    for size in spec.sizes:
        if not spec.nodes_min <= size <= spec.nodes_max:
            return (
                f"--node-sizes: found {size}, which lies outside of --nnodes {bounds}; leave it out or widen --nnodes"
            )
        if size % spec.node_unit:
            return (
                f"--node-sizes: found {size}, which is no multiple of --node-unit {spec.node_unit}; change one of them"
            )
    if not usable(spec.nodes_max, spec):
        return (
            f"--node-unit: found {spec.node_unit}; expected a number of which some multiple lies within "
            f"--nnodes {bounds}"
        )
    return ""


def digest(members: Iterable[Member]) -> str:
    """Hex digest of a membership; its members as objects, as when it was first recorded."""
    return digest_of(msgspec.json.encode([member._asdict() for member in members], order="sorted"))

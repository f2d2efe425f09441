"""World formation: which nodes train in a round, and with which ranks. A pure function of its arguments.

House rules:
- A world is as large as the job's bounds, unit and sizes allow.
- A world of the same size keeps its places: members of the world before stay, and a replacement inherits the place and
  ordinal of its predecessor. So the ranks of the survivors do not change.
- A world of another size is laid out again, by the label that the job names, then by ordinal. Members of the world
  before are chosen first.
- Numbers in names are compared as numbers: ``node-2`` comes before ``node-10``.
- The result is recorded in an event; the fold never repeats the computation.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import msgspec

from ftcore.batch import batch_total, rank_batch
from ftcore.events.codec import digest_of
from ftcore.events.job import JobSpec
from ftcore.events.world import Member, WorldBatch


@attrs.frozen(kw_only=True)
class Volunteer:
    """A node that can take part in the next world, or a member of the world before.

    Args:
        node: its name.
        incarnation: incarnation of its agent.
        ordinal: its place.
        slots: number of ranks that it holds.
        labels: its location, for example ``{"switch": "s1"}``.
        settled: its place is fixed: the node requested it or has trained at it. Nodes that are not settled exchange
            their places by order of name, so the order of joining does not matter.
        role: role of its workers, in jobs where the roles of nodes differ.
    """

    node: str
    incarnation: str
    ordinal: int
    slots: int
    labels: Mapping[str, str] = attrs.field(factory=dict)
    settled: bool = False
    role: str = ""


def form_world(volunteers: Iterable[Volunteer], spec: JobSpec, before: Sequence[Volunteer] = ()) -> tuple[Member, ...]:
    """The members of a world of these nodes, in order of base rank; empty if there are too few nodes.

    Args:
        volunteers: nodes that are connected and free, each with a different place.
        spec: the job, with the permitted world sizes and the order of ranks.
        before: the members of the world before, in order of base rank.
    """
    placed = _with_places(volunteers)
    count = usable(len(placed), spec)
    trained = {volunteer.node for volunteer in before}
    stayed = {volunteer.node for volunteer in placed if volunteer.node in trained}
    order = _order(spec)
    if stayed and len(before) == count:
        pool = (volunteer for volunteer in placed if volunteer.node not in trained)
        chosen = _with_replacements(before, placed, sorted(pool, key=order), spec)
    else:
        first = sorted(placed, key=lambda volunteer: (volunteer.node not in stayed, order(volunteer)))
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


def _with_places(volunteers: Iterable[Volunteer]) -> list[Volunteer]:
    """The volunteers; nodes that are not settled get the places of this group by order of name."""
    found = list(volunteers)
    if all(volunteer.settled for volunteer in found):
        return found
    unsettled = sorted((v for v in found if not v.settled), key=lambda v: (natural(v.node), v.node))
    places = sorted(volunteer.ordinal for volunteer in unsettled)
    at = {volunteer.node: place for volunteer, place in zip(unsettled, places, strict=True)}
    return [attrs.evolve(v, ordinal=at[v.node]) if at.get(v.node, v.ordinal) != v.ordinal else v for v in found]


def _with_replacements(
    before: Sequence[Volunteer], volunteers: Sequence[Volunteer], pool: list[Volunteer], spec: JobSpec
) -> list[Volunteer]:
    """The world before; each gap is filled by the best match: by role, slots, label, then order."""
    by_name = {volunteer.node: volunteer for volunteer in volunteers}
    chosen: list[Volunteer] = []
    for seat in before:
        member = by_name.get(seat.node)
        if member is None:
            label = _label(seat, spec)
            fits = [(v.role != seat.role, v.slots != seat.slots, _label(v, spec) != label) for v in pool]
            member = pool.pop(fits.index(min(fits)))
        chosen.append(member if member.ordinal == seat.ordinal else attrs.evolve(member, ordinal=seat.ordinal))
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
    """A sort key of a name that compares numbers in it as numbers."""
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text))


def usable(nodes: int, spec: JobSpec) -> int:
    """The largest world size that the job allows with this number of nodes; 0: none."""
    most = min(nodes, spec.nodes_max)
    if spec.sizes:
        return max((size for size in spec.sizes if max(spec.nodes_min, 1) <= size <= most), default=0)
    count = most - most % spec.node_unit
    return count if count >= max(spec.nodes_min, 1) else 0


def next_size(spec: JobSpec, beyond: int) -> int:
    """The smallest permitted world size above ``beyond`` nodes; 0: none."""
    return next((size for size in range(beyond + 1, spec.nodes_max + 1) if usable(size, spec) == size), 0)


def impossible(spec: JobSpec) -> str:
    """Why the job permits no world, or not one of its declared sizes; empty if its sizes are valid."""
    bounds = f"{spec.nodes_min}:{spec.nodes_max}"
    if spec.node_unit < 1:
        return f"--node-unit: found {spec.node_unit}; expected a number of nodes, 1 or more"
    for size in spec.sizes:
        if not spec.nodes_min <= size <= spec.nodes_max:
            return f"--node-sizes: found {size}, which is outside of --nnodes {bounds}; leave it out or widen --nnodes"
        if size % spec.node_unit:
            return f"--node-sizes: found {size}, which is not a multiple of --node-unit {spec.node_unit}; change either"
    if not usable(spec.nodes_max, spec):
        return f"--node-unit: found {spec.node_unit}; expected a number with a multiple within --nnodes {bounds}"
    return ""


def batch_of(spec: JobSpec, members: Sequence[Member]) -> WorldBatch | None:
    """The global batch of a world; None if the job does not declare it."""
    if spec.batch is None:
        return None
    wanted, ranks = spec.batch, sum(member.slots for member in members)
    most = usable(spec.nodes_max, spec)
    total = batch_total(wanted.size, wanted.micro, wanted.rule, len(members), most, ranks)
    return WorldBatch(
        **total._asdict(),
        least=rank_batch(total, ranks - 1, ranks).samples,
        most=rank_batch(total, 0, ranks).samples,
    )


def digest(members: Iterable[Member]) -> str:
    """Hex digest of the members of a world, encoded as JSON objects: part of the log format."""
    return digest_of(msgspec.json.encode([member._asdict() for member in members], order="sorted"))

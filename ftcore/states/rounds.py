"""The newest round, its world and its stores. Data alone."""

from collections.abc import Sequence

import attrs

from ftcore.events.checkpoint import Resume
from ftcore.events.world import Member, WorldBatch


@attrs.define(kw_only=True)
class WorldState:
    """The world of the newest round that was formed.

    Args:
        started: every member's workers run.
        stepped: number of members whose workers have all completed a step.
        roles: by member, the rank of its first worker among those of its role, and how many those are; empty: all
            members have the same role.
        resume: what the workers load; None: ftcore holds no state of the job.
        batch: the global batch; None: the job does not declare it.
        buddies: by member, the members that hold copies of its shards; empty: nothing is copied.
        persist_every: steps between two saves to storage when it was formed; 0: not chosen then.
    """

    round: int
    members: tuple[Member, ...]
    size: int
    store: str
    started: bool = False
    stepped: int = 0
    roles: tuple[tuple[int, int], ...] = ()
    resume: Resume | None = None
    batch: WorldBatch | None = None
    buddies: tuple[tuple[int, ...], ...] = ()
    persist_every: int = 0
    _seats: dict[str, int] = attrs.field(factory=dict, init=False, eq=False, repr=False)
    _wards: dict[int, list[int]] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    def seat(self, node: str) -> int | None:
        """The group rank of a node; None if no incarnation of it is a member."""
        if len(self._seats) != len(self.members):
            self._seats = {member.node: seat for seat, member in enumerate(self.members)}
        return self._seats.get(node)

    def buddies_of(self, seat: int) -> tuple[int, ...]:
        """The members that hold copies of a member's shards."""
        return self.buddies[seat] if self.buddies else ()

    def wards_of(self, seat: int) -> Sequence[int]:
        """The members of whose shards a member holds copies."""
        if self.buddies and not self._wards:
            for ward, buddies in enumerate(self.buddies):
                for buddy in buddies:
                    self._wards.setdefault(buddy, []).append(ward)
        return self._wards.get(seat, ())

    def has(self, node: str, incarnation: str) -> bool:
        """Whether this incarnation of the node is a member."""
        seat = self.seat(node)
        return seat is not None and self.members[seat].incarnation == incarnation


@attrs.define(kw_only=True)
class PlannedRound:
    """The round that is to be formed next.

    Args:
        round: its number.
        want: number of nodes that it waits for until its window ends.
    """

    round: int
    want: int


@attrs.define(kw_only=True)
class RoundsState:
    """The rounds of a job.

    Args:
        newest: the newest round that was planned; 0: none.
        first: the first round of this run.
        world: the world of the newest round that was formed.
        planned: the round that is to be formed next.
        stores: address of the store of each round, where it is open.
        store_nodes: the node that was ordered to open it.
    """

    newest: int = 0
    first: int = 1
    world: WorldState | None = None
    planned: PlannedRound | None = None
    stores: dict[int, str] = attrs.field(factory=dict)
    store_nodes: dict[int, str] = attrs.field(factory=dict)

"""Events of the world: the nodes that train together in a round, and the round's store."""

from typing import Any, NamedTuple

from ftcore.events.checkpoint import Resume
from ftcore.events.payload import Payload
from ftcore.events.registry import decision, fact

MEMBERS_PER_EVENT = 500
"""Members in one ``world.members``; a world of 10,000 nodes with the longest names still fits the 1 MiB of a group."""


class Member(NamedTuple):
    """One node's slice of a world; in JSON an array, because a world may have ten thousand members.

    Args:
        node: the node's name.
        incarnation: the agent's incarnation.
        ordinal: its place; group ranks follow ordinals.
        base_rank: global rank of its local rank 0.
        slots: number of its ranks.
    """

    node: str
    incarnation: str
    ordinal: int
    base_rank: int
    slots: int


@fact("store.opened")
class StoreOpened(Payload, frozen=True, kw_only=True):
    """A TCPStore for the next round is open.

    Args:
        node: the node that hosts it.
        incarnation: the agent's incarnation.
        round: the round that it serves.
        host: host name or address for the workers.
        port: its port.
        effect: the order that this answers.
    """

    node: str
    incarnation: str
    round: int
    host: str
    port: int
    effect: str


@fact("store.failed")
class StoreFailed(Payload, frozen=True, kw_only=True):
    """A round's TCPStore could not be opened, or has ended.

    Args:
        node: the node that hosts it.
        incarnation: the agent's incarnation.
        round: the round that it served or was to serve.
        effect: the order that this answers; empty if the store was lost later.
        error: what went wrong.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    error: str


@decision("round.planned")
class RoundPlanned(Payload, frozen=True, kw_only=True):
    """No worker of the previous round runs any more: the next round can form.

    Args:
        round: the next round.
        wait_s: seconds of back-off before it may form.
        want: number of nodes that it waits for until the window is over.
        window_s: seconds after which fewer nodes, but at least the job's minimum, are enough.
        give_up_s: seconds after which the plan fails if there are still too few nodes; 0: never.
    """

    round: int
    wait_s: float
    want: int
    window_s: float
    give_up_s: float


def _members_as_arrays(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "members": [[member[name] for name in Member._fields] for member in fields["members"]]}


@decision("world.members", version=2, upcasters={1: _members_as_arrays})
class WorldMembers(Payload, frozen=True, kw_only=True):
    """Members of the world that the following ``world.formed`` completes, at most ``MEMBERS_PER_EVENT`` of them.

    Args:
        round: the round.
        members: in order of base rank, continued from the event before.
        buddies: by member, the members whose keepers hold copies of its shards, as indexes of the world's members;
            empty: nothing is copied.
    """

    round: int
    members: tuple[Member, ...]
    buddies: tuple[tuple[int, ...], ...] = ()


class WorldBatch(Payload, frozen=True, kw_only=True):
    """The global batch of a world, computed from the job's ``BatchSpec``.

    Args:
        size: samples of one step over all ranks.
        micro: samples of a micro-batch; 0: each rank computes all of its samples at once.
        lr_scale: factor for the learning rate.
        least: samples of the rank with the fewest.
        most: samples of the rank with the most.
    """

    size: int
    micro: int
    lr_scale: float
    least: int
    most: int


@decision("world.formed")
class WorldFormed(Payload, frozen=True, kw_only=True):
    """The membership of a round is fixed; the preceding ``world.members`` of the same group list it.

    Args:
        round: the round.
        nodes: number of members.
        size: number of ranks.
        digest: hex digest of the membership.
        joined: members that the previous world did not have, at most 64.
        gone: members of the previous world that this one does not have, at most 64.
        store: ``host:port`` of the round's TCPStore.
        resume: what the workers load, if they registered their state; None: nothing is known, or it is not ftcore's.
        batch: the global batch; None: the job does not declare it.
        size_before: number of ranks of the previous world of the run; 0: there is none, or an earlier release formed
            this one.
        persist_every: steps between two saves to storage, for workers that leave it to the master; 0: not chosen yet.
    """

    round: int
    nodes: int
    size: int
    digest: str
    joined: tuple[str, ...]
    gone: tuple[str, ...]
    store: str
    resume: Resume | None = None
    batch: WorldBatch | None = None
    size_before: int = 0
    persist_every: int = 0


@decision("round.started")
class RoundStarted(Payload, frozen=True, kw_only=True):
    """Every member's workers run.

    Args:
        round: the round.
    """

    round: int

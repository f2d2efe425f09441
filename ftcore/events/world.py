"""Events of the world: which nodes train together in a round, and the store at which they meet."""

from typing import Any, NamedTuple

import attrs

from ftcore.events.registry import decision, fact

MEMBERS_PER_EVENT = 500
"""Members in one ``world.members``; a world of 10,000 nodes with the longest names still fits the 1 MiB of a group."""


class Member(NamedTuple):
    """One node's slice of a world; in JSON an array, for a world may have ten thousand of them.

    Args:
        node: the node's name.
        incarnation: the life of its agent.
        ordinal: its place; group ranks follow ordinals.
        base_rank: global rank of its local rank 0.
        slots: how many ranks it holds.
    """

    node: str
    incarnation: str
    ordinal: int
    base_rank: int
    slots: int


@fact("store.opened")
@attrs.frozen(kw_only=True)
class StoreOpened:
    """A TCPStore serves a coming round.

    Args:
        node: the node that hosts it.
        incarnation: the life of its agent.
        round: the round that it serves.
        host: host name or address for the workers.
        port: its port.
        effect: the order that is answered.
    """

    node: str
    incarnation: str
    round: int
    host: str
    port: int
    effect: str


@fact("store.failed")
@attrs.frozen(kw_only=True)
class StoreFailed:
    """A round's TCPStore could not be opened, or is gone.

    Args:
        node: the node that hosts it.
        incarnation: the life of its agent.
        round: the round that it served or was to serve.
        effect: the order that is answered, or empty if the store was lost later.
        error: what went wrong, for a person.
    """

    node: str
    incarnation: str
    round: int
    effect: str
    error: str


@decision("round.planned")
@attrs.frozen(kw_only=True)
class RoundPlanned:
    """No worker of the round before runs any more: the next round forms as soon as it can.

    Args:
        round: the round to come.
        wait_s: seconds of back-off before it may form.
        want: how many nodes it waits for, until the window is over.
        window_s: seconds after which fewer nodes (but the job's minimum) will do.
        give_up_s: seconds after which the plan has failed if there are still too few; 0: waits for ever.
    """

    round: int
    wait_s: float
    want: int
    window_s: float
    give_up_s: float


def _members_as_arrays(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "members": [[member[name] for name in Member._fields] for member in fields["members"]]}


@decision("world.members", version=2, upcasters={1: _members_as_arrays})
@attrs.frozen(kw_only=True)
class WorldMembers:
    """Members of the world that the ``world.formed`` behind it forms, at most ``MEMBERS_PER_EVENT`` of them.

    Args:
        round: the round.
        members: in order of base rank, going on where the event before stopped.
    """

    round: int
    members: tuple[Member, ...]


@decision("world.formed")
@attrs.frozen(kw_only=True)
class WorldFormed:
    """A round's world is fixed: all its members were given in the events before, in the same group.

    Args:
        round: the round.
        nodes: number of members.
        size: number of ranks.
        digest: hex digest of the membership.
        joined: names that the world of the round before did not have, at most 64.
        gone: names that only the world of the round before had, at most 64.
        store: ``host:port`` of the round's TCPStore.
    """

    round: int
    nodes: int
    size: int
    digest: str
    joined: tuple[str, ...]
    gone: tuple[str, ...]
    store: str


@decision("round.started")
@attrs.frozen(kw_only=True)
class RoundStarted:
    """Every member's workers run.

    Args:
        round: the round.
    """

    round: int

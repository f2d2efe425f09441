"""Nodes that cannot reach each other, found by the kernels' counters of the workers' TCP connections. Pure.

A connection is evidence of a cut if the kernel keeps retransmitting its oldest segment and receives nothing from the
peer, neither data nor an acknowledgement. A slow peer never looks like this: its kernel acknowledges for a process that
is stopped, busy or slow, and answers the probes of a closed window. A crashed or isolated host does, but its heartbeats
are missing as well, and it is a lost node long before.

House rules: only addresses of this job's nodes count, not those of data stores. An address that several nodes have,
such as two agents on one host, is ignored.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs
import msgspec

from ftcore.events.worker import Cut

RETRIES_MIN: Final = 3
"""Least retransmissions of one segment: fewer are normal in any network."""

UNANSWERED_MAX: Final = 16
"""Addresses that one node reports."""

CUTS_MAX: Final = 16
"""Cuts in one event."""

PAIRS_NAMED_MAX: Final = 3


@attrs.frozen(kw_only=True)
class Unanswered:
    """Connections of a node's workers to one address without an answer.

    Args:
        address: the peer's address.
        connections: number of connections.
        silent_s: seconds, at least, without an answer; of the longest.
        retries: the most retransmissions of one segment.
        ranks: global ranks of the workers.
    """

    address: str
    connections: int
    silent_s: float
    retries: int
    ranks: tuple[int, ...]


@attrs.frozen(kw_only=True)
class Net:
    """A node's TCP connections, as its kernel reports them.

    Args:
        addresses: the local addresses that its workers use, except loopback.
        unanswered: connections without an answer, by address.
    """

    addresses: tuple[str, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()


NO_NET: Final = Net()


def cuts_of(nets: Mapping[str, Net], joined: Mapping[str, str], place_of: Callable[[str], int]) -> tuple[Cut, ...]:
    """Return the pairs of nodes of which one gets no answer from the other, in the order of the world.

    Args:
        nets: the connections of each node.
        joined: the address that each node joined with.
        place_of: returns a node's place in the world.
    """
    owners: dict[str, set[str]] = {}
    for node, net in nets.items():
        for address in net.addresses:
            owners.setdefault(address, set()).add(node)
    for node, address in joined.items():
        owners.setdefault(address, set()).add(node)
    found: dict[tuple[str, str], Cut] = {}
    for node, net in nets.items():
        for unanswered in net.unanswered:
            (peer, *others) = owners.get(unanswered.address, {node})
            if peer != node and not others:
                found[node, peer] = _merged(found.get((node, peer)), node, peer, unanswered)
    return tuple(sorted(found.values(), key=lambda cut: (place_of(cut.node), place_of(cut.peer)))[:CUTS_MAX])


def _merged(known: Cut | None, node: str, peer: str, unanswered: Unanswered) -> Cut:
    if known is None:
        return Cut(
            node=node,
            peer=peer,
            connections=unanswered.connections,
            silent_s=unanswered.silent_s,
            retries=unanswered.retries,
            ranks=unanswered.ranks,
        )
    return msgspec.structs.replace(
        known,
        connections=known.connections + unanswered.connections,
        silent_s=max(known.silent_s, unanswered.silent_s),
        retries=max(known.retries, unanswered.retries),
        ranks=tuple(sorted({*known.ranks, *unanswered.ranks})),
    )


def nodes_apart(cuts: Iterable[Cut], place_of: Callable[[str], int]) -> tuple[str, ...]:
    """Return the nodes at the ends of the cuts, first the one that the job loses least by.

    That is the node with the most unreachable peers; of two equal ones the later in the world, because the first node
    often has what the others need, such as the store and the checkpoint.
    """
    peers: dict[str, set[str]] = {}
    for cut in cuts:
        peers.setdefault(cut.node, set()).add(cut.peer)
        peers.setdefault(cut.peer, set()).add(cut.node)
    return tuple(sorted(peers, key=lambda node: (-len(peers[node]), -place_of(node))))


def describe(cuts: Sequence[Cut]) -> str:
    """Return the cuts as text, by pairs of nodes in the order of the cuts."""
    pairs: dict[frozenset[str], list[Cut]] = {}
    for cut in cuts:
        pairs.setdefault(frozenset((cut.node, cut.peer)), []).append(cut)
    texts = [_of_pair(pair) for pair in list(pairs.values())[:PAIRS_NAMED_MAX]]
    more = len(pairs) - len(texts)
    return "; ".join(texts) + (f"; and {more} more pairs" if more > 1 else "; and one more pair" if more else "")


def _of_pair(pair: Sequence[Cut]) -> str:
    sides = [
        f"{cut.connections} connection{'s' if cut.connections > 1 else ''} of {cut.node} to {cut.peer}" for cut in pair
    ]
    silent = f"no answer for {max(cut.silent_s for cut in pair):.0f} s on {' and '.join(sides)}"
    return f"{' and '.join(sorted((pair[0].node, pair[0].peer)))} cannot reach each other: {silent}"

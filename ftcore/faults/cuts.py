"""Which nodes cannot reach each other, by what their kernels say of the workers' TCP connections. Pure.

A connection speaks for a cut if the kernel sends its oldest segment again and again and hears nothing from the other
end, neither data nor an acknowledgement. The kernel acknowledges for a process that is stopped, busy or slow, and it
answers the probes of a closed window; so a slow peer never looks like this. A host that crashed, or that is cut off
from everything, does: its agent is silent as well, and it is a lost node long before.

House rules: only addresses of this job's nodes count; what workers exchange with a store of data is another matter. An
address that several nodes have, as two agents on one host do, speaks for none of them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import attrs

from ftcore.events.worker import Cut

RETRIES_MIN: Final = 3
"""Retransmissions of one segment: fewer happen in any network."""

UNANSWERED_MAX: Final = 16
"""Addresses that one node names."""

CUTS_MAX: Final = 16
"""Cuts in one event."""

PAIRS_NAMED_MAX: Final = 3


@attrs.frozen(kw_only=True)
class Unanswered:
    """Connections of a node's workers to one address on which nothing is answered.

    Args:
        address: of the other end.
        connections: how many they are.
        silent_s: seconds, at least, for which the other end has not answered; of the longest.
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
    """What a node's kernel says of its workers' connections.

    Args:
        addresses: the local addresses that its workers use, loopback excepted.
        unanswered: connections on which nothing is answered, by address.
    """

    addresses: tuple[str, ...] = ()
    unanswered: tuple[Unanswered, ...] = ()


NO_NET: Final = Net()


def cuts_of(nets: Mapping[str, Net], joined: Mapping[str, str], seat: Callable[[str], int]) -> tuple[Cut, ...]:
    """Which node gets no answer from which, in the order of the world.

    Args:
        nets: what each node's kernel says.
        joined: the address that each node joined with.
        seat: a node's place in the world.
    """
    owners: dict[str, set[str]] = {}
    for node, net in nets.items():
        for address in net.addresses:
            owners.setdefault(address, set()).add(node)
    for node, address in joined.items():
        owners.setdefault(address, set()).add(node)
    found: dict[tuple[str, str], Cut] = {}
    for node, net in nets.items():
        for told in net.unanswered:
            (peer, *others) = owners.get(told.address, {node})
            if peer != node and not others:
                found[node, peer] = _with(found.get((node, peer)), node, peer, told)
    return tuple(sorted(found.values(), key=lambda cut: (seat(cut.node), seat(cut.peer)))[:CUTS_MAX])


def _with(known: Cut | None, node: str, peer: str, told: Unanswered) -> Cut:
    if known is None:
        return Cut(
            node=node,
            peer=peer,
            connections=told.connections,
            silent_s=told.silent_s,
            retries=told.retries,
            ranks=told.ranks,
        )
    return attrs.evolve(
        known,
        connections=known.connections + told.connections,
        silent_s=max(known.silent_s, told.silent_s),
        retries=max(known.retries, told.retries),
        ranks=tuple(sorted({*known.ranks, *told.ranks})),
    )


def at_odds(cuts: Iterable[Cut], seat: Callable[[str], int]) -> tuple[str, ...]:
    """The nodes at the ends of the cuts, the one first that the others get on best without.

    That is the one with the most peers out of reach; of two ends of one cut, the later in the world: the first node
    often holds what the others need, as the store and the checkpoint.
    """
    peers: dict[str, set[str]] = {}
    for cut in cuts:
        peers.setdefault(cut.node, set()).add(cut.peer)
        peers.setdefault(cut.peer, set()).add(cut.node)
    return tuple(sorted(peers, key=lambda node: (-len(peers[node]), -seat(node))))


def told(cuts: Sequence[Cut]) -> str:
    """The cuts in words, the pairs of nodes in the order of the cuts."""
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

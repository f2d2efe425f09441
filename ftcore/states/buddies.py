"""Buddies: the nodes whose keepers hold copies of a node's staged shards. Pure.

The members form a ring, sorted by failure domain. The holder of the first copy is as many places away as the largest
domain has members, so it is in another domain wherever an even spread allows that; every member holds equally many
copies. The failure domain is the value of the label that orders ranks, else of ``switch``; a node without it shares one
with the nodes of its host.

House rules: the choice is recorded in ``world.members``; the fold never repeats it.
"""

from collections import Counter
from collections.abc import Sequence

from ftcore.events.world import Member
from ftcore.states.membership import NodeState
from ftcore.states.model import JobState

SWITCH = "switch"
"""The label of nodes that share a switch, unless ``--order-by`` names another one."""


def domain_label(state: JobState) -> str:
    """The label by which nodes are grouped: those of one value can fail together, and are close to each other."""
    return (state.spec.order_by if state.spec is not None else "") or SWITCH


def choose_buddies(state: JobState, world: Sequence[Member]) -> tuple[tuple[int, ...], ...]:
    """Choose the buddies of the members of a new world, by member; empty if nothing is copied.

    Args:
        state: the folded state before the world is formed.
        world: its members.
    """
    label = domain_label(state)
    domains = [_domain(state.membership.nodes[member.node], label) for member in world]
    found = spread_copies(domains, state.policy.declared.checkpoints.copies)
    return found if any(found) else ()


def _domain(node: NodeState, label: str) -> str | None:
    if not node.copies_port:
        return None
    return f"{label}={node.labels[label]}" if node.labels.get(label) else f"host={node.host}"


def spread_copies(domains: Sequence[str | None], copies: int) -> tuple[tuple[int, ...], ...]:
    """Choose the holders of each member's copies, as indexes of members, the first copy first.

    Args:
        domains: the failure domain of each member; None: it neither sends nor holds copies.
        copies: copies of each shard on other nodes; fewer if there are too few members.
    """
    found: list[tuple[int, ...]] = [()] * len(domains)
    ring = sorted((domain, member) for member, domain in enumerate(domains) if domain is not None)
    if ring:
        largest = max(Counter(domain for domain, _ in ring).values())
        shifts = [*range(largest, len(ring)), *range(1, largest)][:copies]
        for place, (_, member) in enumerate(ring):
            found[member] = tuple(ring[(place + shift) % len(ring)][1] for shift in shifts)
    return tuple(found)

"""Agreement across ranks on a spike of the loss. Pure.

In most scripts a rank reports the loss of its own samples. One rank of many with an unusual batch is no reason to take
the whole job back. So a spike or a divergence opens an incident only if, of the ranks that report a loss, at least half
find it at about the same step. A loss that is no number spreads to all ranks with the next gradients: one rank is
enough. A gradient norm is one of all ranks already.

Which ranks report a loss is known from samples of the progress (``job.progressed``), and from nodes that find a spike.
Before the first sample of a round, the other nodes are taken to do what those do.
"""

from collections.abc import Iterable
from typing import Final

from ftcore.events.worker import FaultObserved
from ftcore.ports import Progress
from ftcore.states.model import JobState
from ftcore.states.training import SpikeVotes

SHARE: Final = 0.5
"""Least share of the reporting ranks."""

STEPS: Final = 10
"""Steps within which findings of several nodes are of one spike: ranks are rarely further apart."""


def ranks_reporting(pages: Iterable[Progress | None]) -> int:
    """The number of ranks that report a loss.

    Args:
        pages: contents of the workers' pages.
    """
    return sum(1 for page in pages if page is not None and page.loss is not None)


def note_spike(state: JobState, data: FaultObserved) -> bool:
    """Record that a node found a spike of the loss.

    Returns:
        Whether its ranks and those of other nodes agree on it, and did not before.
    """
    found, reporting = data.values.get("ranks"), data.values.get("reporting")
    if found is None or reporting is None:
        return True  # another observer, which knows the loss of the whole job
    at = int(data.values.get("at", 0))
    votes = state.training.spikes.get(data.kind)
    if votes is None or votes.round != data.round or abs(at - votes.step) > STEPS:
        votes = state.training.spikes[data.kind] = SpikeVotes(round=data.round, step=at)
    votes.found[data.node], votes.reporting[data.node] = int(found), int(reporting)
    if votes.agreed or sum(votes.found.values()) < SHARE * _reporting(state, votes):
        return False
    votes.agreed = True
    return True


def _reporting(state: JobState, votes: SpikeVotes) -> int:
    """How many ranks report a loss."""
    named, world, (round_, known) = sum(votes.reporting.values()), state.rounds.world, state.training.reporting
    if round_ == votes.round and known:
        return max(named, known)
    seats = [(world.seat(node), count) for node, count in votes.reporting.items()] if world is not None else []
    if world is None or any(seat is None or world.members[seat].slots > count for seat, count in seats):
        return named
    return max(named, world.size)

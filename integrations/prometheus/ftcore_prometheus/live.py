"""Figures of the leading master's memory, which are not in the log: heartbeats of nodes, and the lag of the log.

A series for each node would grow with the job, so nodes are merged into groups of neighbours in the order of ranks.
"""

from collections.abc import Sequence
from typing import Protocol

import attrs

from ftcore import ObservedMaster, ObservedNode
from ftcore.replay import JobState


@attrs.frozen(kw_only=True)
class LogView:
    """What an observer knows about the log.

    Args:
        read: the last event that the figures include.
        end: the last event of the log, as far as is known.
        readable: the log could be read at the last try.
    """

    read: int
    end: int
    readable: bool

    @property
    def behind(self) -> int:
        """Events that the figures lack."""
        return max(0, self.end - self.read)


@attrs.frozen(kw_only=True)
class RankGroup:
    """Neighbouring nodes of the world.

    Args:
        ranks: their global ranks, as ``0-31``.
        nodes: the only node, or the first and the last, as ``n0..n3``.
        step: the newest step that all of them have completed; None: not known.
        step_s: the longest time of a step in seconds; None: not known.
        own_s: the longest own work of a rank in a step, in seconds; None: not known.
        silent_s: seconds since the last frame of the most silent node; None: none of them is connected.
    """

    ranks: str
    nodes: str
    step: int | None
    step_s: float | None
    own_s: float | None
    silent_s: float | None


class _Member(Protocol):
    """A node's slice of a world, as in ``world.members``."""

    @property
    def node(self) -> str: ...
    @property
    def base_rank(self) -> int: ...
    @property
    def slots(self) -> int: ...


class StepPaces:
    """Step times of nodes whose agents measure none: from the steps completed between two looks at the master."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[int, int, float]] = {}
        self._found: dict[str, float] = {}

    def filled(self, master: ObservedMaster, now_s: float) -> ObservedMaster:
        """The same nodes, with a time of a step where it is known.

        Args:
            master: the newest look.
            now_s: monotonic seconds at which it was taken.
        """
        living = {node.node for node in master.nodes}
        self._before = {node: last for node, last in self._before.items() if node in living}
        self._found = {node: step_s for node, step_s in self._found.items() if node in living}
        return attrs.evolve(master, nodes=tuple(self._fill(node, now_s) for node in master.nodes))

    def _fill(self, node: ObservedNode, now_s: float) -> ObservedNode:
        if node.step_s is not None or node.step is None:
            return node
        round_, step, at_s = self._before.get(node.node, (0, 0, 0.0))
        if round_ != node.round or step > node.step:
            self._found.pop(node.node, None)
            self._before[node.node] = (node.round, node.step, now_s)
        elif node.step > step:
            self._found[node.node] = (now_s - at_s) / (node.step - step)
            self._before[node.node] = (node.round, node.step, now_s)
        return attrs.evolve(node, step_s=self._found.get(node.node))


def rank_groups(state: JobState, master: ObservedMaster, most: int) -> list[RankGroup]:
    """The nodes of the newest world, in groups of equal size but the last.

    Args:
        state: the folded state.
        master: the master's memory.
        most: groups, at most.
    """
    world = state.rounds.world
    if world is None:
        return []
    seen = {node.node: node for node in master.nodes}
    size = -(-len(world.members) // most)
    return [_group(world.members[at : at + size], seen, world.round) for at in range(0, len(world.members), size)]


def _group(members: Sequence[_Member], seen: dict[str, ObservedNode], round_: int) -> RankGroup:
    first, last = members[0], members[-1]
    here = [seen[member.node] for member in members if member.node in seen]
    training = [node for node in here if node.round == round_]
    end = last.base_rank + last.slots - 1
    steps = [node.step for node in training if node.step is not None]
    return RankGroup(
        ranks=f"{first.base_rank}-{end}" if end > first.base_rank else str(end),
        nodes=first.node if first is last else f"{first.node}..{last.node}",
        step=min(steps, default=None),
        step_s=max((node.step_s for node in training if node.step_s is not None), default=None),
        own_s=max((node.own_s for node in training if node.own_s is not None), default=None),
        silent_s=max((node.heard_s for node in here), default=None),
    )

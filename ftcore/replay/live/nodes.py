"""Nodes by state, worst first. One pass over the nodes, so 1,000 of them cost milliseconds."""

import statistics
from collections.abc import Sequence
from typing import Final

from ftcore.replay.live.view import Heartbeat, LiveNode, NodeGroup
from ftcore.replay.status_rows import STATE_TONES
from ftcore.states.membership import NodeState
from ftcore.states.model import JobState
from ftcore.states.node import GONE, NodePhase
from ftcore.states.phases import has_ended
from ftcore.wording import name_list

N = NodePhase

WORST_FIRST: Final = (
    N.LOST,
    N.FAULTED,
    N.LEFT,
    N.QUARANTINED,
    N.DRAINING,
    N.STOPPING,
    N.CHECKING,
    N.STARTING,
    N.PARKED,
    N.PAUSED,
    N.STANDBY,
    N.FINISHED,
    N.RUNNING,
    N.REPLACED,
)
"""States of nodes in the order of the view; ``REPLACED``: every node that is gone and whose place is taken."""

SILENT_S: Final = 5.0
"""A node is called silent when its last frame is older. Heartbeats come twice a second."""

BEHIND_S: Final = 3.0
"""A node is called behind if it needs that many seconds to reach the step of the first one: heartbeats differ by less.
"""

SLOW: Final = 1.5
"""A node is called slow if its own work per step takes longer than that of the median node by this factor."""

_RANK = {phase: rank for rank, phase in enumerate(WORST_FIRST)}


class LiveNodes:
    """The nodes at a moment.

    Args:
        state: the folded state.
        beats: the last heartbeats; empty: not known.
        step_s: seconds per step; None: not known, so no node is called behind.
    """

    def __init__(self, state: JobState, beats: Sequence[Heartbeat], step_s: float | None) -> None:
        self._state, self._step_s = state, step_s
        self._beats = {beat.node: beat for beat in beats}
        world = state.rounds.world
        self._round = world.round if world is not None else 0
        own = [beat.own_s for beat in beats if beat.own_s is not None and beat.round == self._round]
        self._own_s = statistics.median(own) if len(own) > 2 else None
        steps = [beat.step for beat in beats if beat.step is not None and beat.round == self._round]
        self._step = max(steps, default=None)
        self._sorted = sorted(state.membership.nodes.values(), key=self._badness)

    def _phase(self, node: NodeState) -> NodePhase:
        """Its phase; ``REPLACED`` if it is gone and nothing is missing because of it."""
        state = self._state
        if node.phase not in GONE:
            return node.phase
        earlier = 0 < node.round < state.rounds.first  # it left with an earlier run
        return N.REPLACED if earlier or node.ordinal in state.membership.places or has_ended(state) else node.phase

    def _badness(self, node: NodeState) -> tuple[int, float, int, float, int]:
        """Sort key: the state, then silence, then steps behind, then own work if it is slow, then the place.

        What differs a little at each look does not count, so that rows stay where they are.
        """
        beat = self._beats.get(node.node)
        rank = _RANK[self._phase(node)]
        if beat is None:
            return rank, 0.0, 0, 0.0, node.ordinal
        silent = -beat.heard_s if beat.heard_s > SILENT_S else 0.0
        slow = -(beat.own_s or 0.0) if beat.slow or self._is_slow(beat) else 0.0
        return rank, silent, -self._behind(beat), slow, node.ordinal

    def _behind(self, beat: Heartbeat) -> int:
        """Steps that a node of the newest world is behind the first one; 0 if that is within ``BEHIND_S``."""
        if beat.round != self._round or beat.step is None or self._step is None or self._step_s is None:
            return 0
        behind = self._step - beat.step
        return behind if behind > 1 and behind * self._step_s > BEHIND_S else 0

    def _is_slow(self, beat: Heartbeat) -> bool:
        return self._own_s is not None and beat.own_s is not None and beat.own_s > SLOW * self._own_s

    def groups(self) -> tuple[NodeGroup, ...]:
        """All nodes by state, worst first."""
        members: dict[NodePhase, list[str]] = {}
        for node in self._sorted:
            members.setdefault(self._phase(node), []).append(node.node)
        return tuple(
            NodeGroup(
                state="gone" if phase is N.REPLACED else str(phase),
                count=len(names),
                names=name_list(names),
                tone=_tone(phase),
            )
            for phase, names in members.items()
        )

    def worst(self, most: int) -> tuple[LiveNode, ...]:
        """The worst nodes, worst first, without those that were replaced."""
        world = self._state.rounds.world
        ranks = {each.node: (each.base_rank, each.slots) for each in world.members} if world is not None else {}
        shown = [node for node in self._sorted if self._phase(node) is not N.REPLACED][:most]
        return tuple(self._node(node, ranks) for node in shown)

    def _node(self, node: NodeState, ranks: dict[str, tuple[int, int]]) -> LiveNode:
        phase, beat = self._phase(node), self._beats.get(node.node)
        return LiveNode(
            node=node.node,
            state=str(phase),
            tone=_tone(phase),
            place=node.ordinal,
            rank_range=_span(*ranks[node.node]) if node.node in ranks and node.alive else "",
            host=node.host,
            step=beat.step if beat is not None else None,
            step_s=beat.step_s if beat is not None else None,
            own_s=beat.own_s if beat is not None else None,
            heard_s=beat.heard_s if beat is not None else None,
            note=self._note(node, beat),
        )

    def _note(self, node: NodeState, beat: Heartbeat | None) -> str:
        if node.phase in GONE:
            return "its place is empty"
        if node.health not in ("", "healthy"):
            return f"health: {node.health}"
        if beat is None:
            return "not connected" if self._beats else ""
        if beat.heard_s > SILENT_S:
            return "silent"
        if behind := self._behind(beat):
            return f"{behind} behind"
        if beat.slow:
            return f"slow {beat.slow}"
        return "slow" if self._is_slow(beat) else ""

    def hosts(self) -> tuple[str, ...]:
        """The hosts of living nodes, each once."""
        return tuple(dict.fromkeys(node.host for node in self._sorted if node.alive))

    def spares(self) -> tuple[str, ...]:
        """Nodes that stand by and are not in the newest world, by place."""
        world = self._state.rounds.world
        standby = [node for node in self._sorted if node.phase is N.STANDBY]
        if world is None or has_ended(self._state):
            return ()
        return tuple(node.node for node in standby if not world.has(node.node, node.incarnation))


def _tone(phase: NodePhase) -> str:
    if phase is N.LEFT:
        return "warn"
    if phase is N.REPLACED:
        return "quiet"
    return STATE_TONES.get(str(phase), "")


def _span(base: int, slots: int) -> str:
    return f"{base}-{base + slots - 1}" if slots > 1 else str(base)

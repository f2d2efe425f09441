"""The nodes of a job and their places. Data alone, with the questions that every fact asks."""

import attrs

from ftcore.states.node import GONE, OUTGOING, NodePhase
from ftcore.states.worker import WorkerPhase


@attrs.define(kw_only=True)
class NodeState:
    """One node: the newest incarnation of its agent.

    Args:
        pid: of its agent, on its host.
        phase: the phase of its machine.
        round: the newest round that it was ordered to start or stop.
        workers: phases of the workers of that round, by local rank.
        stepped: the first step that all its workers completed in that round; None before.
        labels: its location, as ``{"switch": "s1"}``.
        settled: it keeps its place: it asked for that place, or has trained at it.
        accelerators: number of devices for training.
        checks: its agent can check devices and links.
        health: result of its newest check: ``healthy``, ``slow``, ``faulty`` or ``unknown``; empty: not checked.
        checked: the round before which it was checked.
        again: another process had this name in this job before.
        role: role of its workers, where nodes may differ in it.
        copies_port: TCP port at which its keeper takes copies; 0: it takes none.
    """

    node: str
    incarnation: str
    ordinal: int
    slots: int
    host: str
    address: str
    pid: int
    phase: NodePhase
    round: int = 0
    workers: list[WorkerPhase] = attrs.field(factory=list)
    stepped: int | None = None
    labels: dict[str, str] = attrs.field(factory=dict)
    settled: bool = False
    accelerators: int = 0
    checks: bool = False
    health: str = ""
    checked: int = 0
    again: bool = False
    role: str = ""
    copies_port: int = 0

    @property
    def alive(self) -> bool:
        """Whether its agent has not left, been lost or been replaced."""
        return self.phase not in GONE


@attrs.define(kw_only=True)
class Membership:
    """The nodes of a job and their places.

    Args:
        nodes: the newest incarnation of each node, by name.
        ordinals: the place that each node had last, by name.
        places: the living node at each place.
        places_end: above every place that was ever taken.
        phases: how many nodes are in each phase, so that no question after a fact looks at every node.
        quarantined: why, by node.
        admitted: nodes that an operator let in again and that have not trained since.
        unchecked: living nodes that need a health check before they take part, as ``{node: incarnation}``.
        cold: living nodes that have started no workers yet and cannot fork them yet, as ``{node: incarnation}``.
        launched: nodes that still train while replacements are launched for them, with the effect of that order; until
            they are deleted.
    """

    nodes: dict[str, NodeState] = attrs.field(factory=dict)
    ordinals: dict[str, int] = attrs.field(factory=dict)
    places: dict[int, str] = attrs.field(factory=dict)
    places_end: int = 0
    phases: dict[NodePhase, int] = attrs.field(factory=dict)
    quarantined: dict[str, str] = attrs.field(factory=dict)
    admitted: list[str] = attrs.field(factory=list)
    unchecked: dict[str, str] = attrs.field(factory=dict)
    cold: dict[str, str] = attrs.field(factory=dict)
    launched: dict[str, str] = attrs.field(factory=dict)
    _taken_below: int = attrs.field(default=0, init=False, eq=False, repr=False)

    def vacate(self, ordinal: int) -> None:
        """Free a place."""
        del self.places[ordinal]
        self._taken_below = min(self._taken_below, ordinal)

    def free_place(self) -> int:
        """The lowest free place."""
        while self._taken_below in self.places:
            self._taken_below += 1
        return self._taken_below

    def alive(self) -> list[NodeState]:
        """Living nodes in order of ordinal. Sorts them all, so not for what is asked after every fact."""
        return [self.nodes[self.places[ordinal]] for ordinal in sorted(self.places)]

    def count(self, *phases: NodePhase) -> int:
        """How many nodes are in those phases; the cost does not depend on the number of nodes."""
        return sum(self.phases.get(phase, 0) for phase in phases)

    def available(self) -> int:
        """How many nodes could be in the next world: those that live and are not about to leave."""
        return len(self.places) - self.count(*OUTGOING)

    def ready(self) -> int:
        """How many of the available nodes need no health check first."""
        return self.available() - len(self.unchecked)

    def current(self, node: str, incarnation: str) -> NodeState | None:
        """The node, if this incarnation is its newest one and lives."""
        found = self.nodes.get(node)
        return found if found is not None and found.incarnation == incarnation and found.alive else None

"""Whose own work takes longer than that of the others: from pages to heartbeats, from heartbeats to stragglers. Pure.

In synchronous training every step takes all ranks the same time, the slowest one's. What differs is how much of it a
rank works and how much it waits. Agents tell both in their heartbeats, of their slowest rank; the master compares the
nodes, window by window, with the detector of ``faults/detectors/straggler.py``.

What is compared is how long the step would take if every rank were like that one: its own work, and what the step
leaves to nobody (the step less the longest own work). So a rank that needs 2 ms where others need 1 is no straggler of
a step of 100 ms, and what is told, ``value`` over ``usual``, is what an eviction would win.

House rules: nothing is said of a world before every member has told its pace in that window, nor of one that has just
begun. A straggler is told when it is named, and again every ``AGAIN_WINDOWS`` while it stays one: policies may have had
a reason to pass.
"""

from collections.abc import Mapping, Sequence

import attrs

from ftcore.events.worker import FaultObserved
from ftcore.faults.detectors.straggler import StragglerDetector
from ftcore.ports import Progress
from ftcore.states.model import JobState

AGAIN_WINDOWS = 120
"""With windows of five seconds, ten minutes."""


@attrs.frozen
class Pace:
    """How a node's slowest rank worked, on average over some steps.

    Args:
        own_s: seconds of own work in a step.
        whole_s: seconds that a step took.
    """

    own_s: float
    whole_s: float


class PagePace:
    """One agent's: what its pages say since it was last asked."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, float, float]] = {}

    def since_last(self, pages: Sequence[Progress | None]) -> Pace | None:
        """The pace of the slowest rank in the steps that are new; None if there are none, or it is not measured."""
        paces = []
        for rank, page in enumerate(pages):
            now = (page.paced, page.own_s, page.whole_s) if page is not None else (0, 0.0, 0.0)
            steps, own_s, whole_s = self._before.get(rank, (0, 0.0, 0.0))
            if now[0] < steps:  # another process
                steps, own_s, whole_s = 0, 0.0, 0.0
            self._before[rank] = now
            new = now[0] - steps
            if new > 0:
                paces.append(Pace((now[1] - own_s) / new, (now[2] - whole_s) / new))
        return max(paces, key=lambda pace: pace.own_s, default=None)


class NodePaces:
    """The master's: all nodes' paces of one world, and who is slow.

    Args:
        window_s: seconds over which paces are averaged before they are compared.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._round = 0
        self._began = 0.0
        self._windows = 0
        self._sums: dict[str, tuple[int, float, float]] = {}
        self._told: dict[str, int] = {}
        self._detector = StragglerDetector()

    def heard(self, node: str, round_: int, pace: Pace) -> None:
        """A heartbeat told a pace."""
        if round_ == self._round:
            count, own_s, whole_s = self._sums.get(node, (0, 0.0, 0.0))
            self._sums[node] = (count + 1, own_s + pace.own_s, whole_s + pace.whole_s)

    def look(self, state: JobState, now: float) -> list[FaultObserved]:
        """Close the window if it is over; returns what is to be told.

        Args:
            state: the folded state.
            now: the time in seconds of a clock that is never stepped.
        """
        world = state.world
        if world is None or not world.started or state.incident is not None:
            self._sums, self._began = {}, now
            return []
        if world.round != self._round:
            self._round, self._windows, self._told = world.round, 0, {}
            self._detector = StragglerDetector()
            self._sums, self._began = {}, now
        if now - self._began < self._window_s:
            return []
        names = [member.node for member in world.members]
        if len(names) < 2 or any(name not in self._sums for name in names):
            return []  # steps may take longer than a window
        sums, self._sums, self._began = self._sums, {}, now
        self._windows += 1
        return self._compare(state, names, {name: sums[name] for name in names})

    def _compare(
        self, state: JobState, names: list[str], sums: Mapping[str, tuple[int, float, float]]
    ) -> list[FaultObserved]:
        own = {name: own_s / count for name, (count, own_s, _) in sums.items()}
        whole = sorted(whole_s / count for count, _, whole_s in sums.values())[len(sums) // 2]
        nobodys = max(0.0, whole - max(own.values()))
        told = []
        alone = {place: own[name] + nobodys for place, name in enumerate(names)}
        for found in self._detector.observe(self._windows, alone):
            name = names[found.rank]
            if self._windows - self._told.get(name, -AGAIN_WINDOWS) >= AGAIN_WINDOWS:
                self._told[name] = self._windows
                told.append(self._fact(state, name, found.value, found.usual, own[name]))
        for name in [name for name in self._told if names.index(name) not in self._detector.stragglers]:
            del self._told[name]
        return told

    def _fact(self, state: JobState, name: str, value: float, usual: float, own_s: float) -> FaultObserved:
        node = state.nodes[name]
        return FaultObserved(
            node=name,
            incarnation=node.incarnation,
            round=self._round,
            source="detector",
            kind="straggler",
            message=f"{name} keeps the others waiting: it works {own_s * 1e3:.0f} ms of a step by itself, which takes "
            f"{value * 1e3:.0f} ms with it and {usual * 1e3:.0f} ms without",
            step=state.step,
            absolute=state.step_absolute,
            values={"value": round(value, 6), "usual": round(usual, 6)},
        )

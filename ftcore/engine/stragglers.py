"""Stragglers: find nodes whose own work per step takes longer than that of the others. Pure.

In synchronous training, a step takes the same time on all ranks. What differs is the share of work and of waiting.
Heartbeats report both for the slowest rank of a node. The master compares the nodes in each window with the detector of
``faults/detectors/straggler.py``.

It compares the step time that would result if all ranks were like the given one: the rank's own work, plus the time in
which no rank works (step time minus the longest own work). So a rank that needs 2 ms where others need 1 ms is not a
straggler in a step of 100 ms, and ``value`` / ``usual`` is the speed-up from an eviction.

A window is evaluated only if all members have reported their pace in it. A straggler is reported when it is detected,
and again every ``AGAIN_WINDOWS`` while it remains one, because policies may have passed before.
"""

from collections.abc import Mapping, Sequence

import attrs

from ftcore.events.worker import FaultObserved
from ftcore.faults.detectors.straggler import StragglerDetector
from ftcore.ports import Progress
from ftcore.states.model import JobState

AGAIN_WINDOWS = 120
"""Windows between two reports of the same straggler: ten minutes with windows of five seconds."""


@attrs.frozen
class Pace:
    """The average pace of a node's slowest rank over some steps.

    Args:
        own_s: seconds of own work per step.
        whole_s: seconds per step.
    """

    own_s: float
    whole_s: float


class PagePace:
    """The pace of an agent's workers since the last call, from their pages."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[int, float, float]] = {}

    def since_last(self, pages: Sequence[Progress | None]) -> Pace | None:
        """The pace of the slowest rank in the new steps; None if there are no new steps or no measurement."""
        paces = []
        for rank, page in enumerate(pages):
            now = (page.paced, page.own_s, page.whole_s) if page is not None else (0, 0.0, 0.0)
            steps, own_s, whole_s = self._before.get(rank, (0, 0.0, 0.0))
            if now[0] < steps:  # a new process
                steps, own_s, whole_s = 0, 0.0, 0.0
            self._before[rank] = now
            new = now[0] - steps
            if new > 0:
                paces.append(Pace((now[1] - own_s) / new, (now[2] - whole_s) / new))
        return max(paces, key=lambda pace: pace.own_s, default=None)


class NodePaces:
    """The master's record of all nodes' paces in one world; detects stragglers.

    Args:
        window_s: seconds over which paces are averaged before they are compared.
    """

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._round = 0
        self._began = 0.0
        self._windows = 0
        self._sums: dict[str, tuple[int, float, float]] = {}
        self._reported: dict[str, int] = {}
        self._detector = StragglerDetector()

    def heard(self, node: str, round_: int, pace: Pace) -> None:
        """Take in the pace of a heartbeat."""
        if round_ == self._round:
            count, own_s, whole_s = self._sums.get(node, (0, 0.0, 0.0))
            self._sums[node] = (count + 1, own_s + pace.own_s, whole_s + pace.whole_s)

    def look(self, state: JobState, now: float) -> list[FaultObserved]:
        """Evaluate the window if it is over; returns the stragglers to report.

        Args:
            state: the folded state.
            now: seconds of a monotonic clock.
        """
        world = state.rounds.world
        if world is None or not world.started or state.incident is not None:
            self._sums, self._began = {}, now
            return []
        if world.round != self._round:
            self._round, self._windows, self._reported = world.round, 0, {}
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
        overhead = max(0.0, whole - max(own.values()))
        facts = []
        alone = {place: own[name] + overhead for place, name in enumerate(names)}
        for found in self._detector.observe(self._windows, alone):
            name = names[found.rank]
            if self._windows - self._reported.get(name, -AGAIN_WINDOWS) >= AGAIN_WINDOWS:
                self._reported[name] = self._windows
                facts.append(self._fact(state, name, found.value, found.usual, own[name]))
        for name in [name for name in self._reported if names.index(name) not in self._detector.stragglers]:
            del self._reported[name]
        return facts

    def _fact(self, state: JobState, name: str, value: float, usual: float, own_s: float) -> FaultObserved:
        node = state.membership.nodes[name]
        return FaultObserved(
            node=name,
            incarnation=node.incarnation,
            round=self._round,
            source="detector",
            kind="straggler",
            message=f"{name} slows down the others: its own work takes {own_s * 1e3:.0f} ms of a step; the step takes "
            f"{value * 1e3:.0f} ms with it and {usual * 1e3:.0f} ms without",
            step=state.training.step,
            absolute=state.training.step_absolute,
            values={"value": round(value, 6), "usual": round(usual, 6)},
        )

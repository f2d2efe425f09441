"""Step times by rank, as far as the log has them: with a fault, an agent reports the last steps of its workers.

Ranks are grouped by what is known of their places: node, replica group and, where the policy file declares
``data_parallel``, the data-parallel index and the model-parallel index (``states/replicas.py`` has the order of ranks;
how a model-parallel index divides into pipeline and tensor is not declared anywhere).
"""

import statistics
from collections import deque
from typing import Any, Final

from ftcore.events.envelope import Event
from ftcore.events.worker import FaultObserved, StepTimes, WorkerFailed, WorkersStepped
from ftcore.events.world import WorldFormed
from ftcore.ids import SECOND
from ftcore.replay.report.limits import MARKS_MAX, NODES_MAX, RANKS_MAX, SAMPLES_MAX
from ftcore.replay.report.text import line
from ftcore.states.model import JobState
from ftcore.states.replicas import declared_groups, found_groups


class RankTimes:
    """Collects step times of ranks, first steps of nodes, and stragglers."""

    READS: Final = frozenset({WorkersStepped, WorldFormed, WorkerFailed, FaultObserved})

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}
        self._stragglers: deque[tuple[int, str, int, str, float | None, float | None]] = deque(maxlen=MARKS_MAX)
        self._formed: dict[int, int] = {}
        self._first: dict[str, tuple[int, float, float]] = {}

    def feed(self, event: Event) -> None:
        """Note an event."""
        data = event.data
        if type(data) is WorkersStepped:
            self._stepped(event.time, data)
        elif type(data) is WorldFormed:
            self._formed = {data.round: event.time}
        elif isinstance(data, WorkerFailed | FaultObserved):
            for times in data.last:
                self._add(times)
            if type(data) is FaultObserved and data.kind == "straggler":
                values = data.values
                found = event.time, line(data.node), data.rank, data.phase, values.get("value"), values.get("usual")
                self._stragglers.append(found)

    def _stepped(self, time: int, data: WorkersStepped) -> None:
        formed = self._formed.get(data.round)
        if formed is None or (len(self._first) >= NODES_MAX and data.node not in self._first):
            return
        took = (time - formed) / SECOND
        count, total, longest = self._first.get(data.node, (0, 0.0, 0.0))
        self._first[data.node] = (count + 1, total + took, max(longest, took))

    def _add(self, times: StepTimes) -> None:
        if len(self._samples) >= RANKS_MAX and times.rank not in self._samples:
            return
        kept = self._samples.setdefault(times.rank, deque(maxlen=SAMPLES_MAX))
        kept.extend(took / steps for steps, took in zip(times.steps, times.took_ms, strict=False) if steps)

    def to_json(self, begin: int, state: JobState) -> dict[str, Any]:
        """Plain JSON values.

        Args:
            begin: the first event, nanoseconds since the epoch.
            state: the folded state after the last event.
        """
        known = sorted(rank for rank, kept in self._samples.items() if kept)
        rows = []
        for rank in known:
            kept = self._samples[rank]
            rows.append((rank, len(kept), round(statistics.median(kept), 3), round(max(kept), 3)))
        return {
            "rows": rows,
            "groupings": _groupings(state, known),
            "first_steps": [
                (node, count, round(total / count, 3), round(longest, 3))
                for node, (count, total, longest) in self._first.items()
            ],
            "stragglers": [(round((time - begin) / SECOND, 3), *rest) for time, *rest in self._stragglers],
        }


def _groupings(state: JobState, ranks: list[int]) -> list[dict[str, Any]]:
    """For each way of grouping its name, and the group of each rank."""
    world = state.rounds.world
    if world is None or not ranks:
        return []
    found: list[tuple[str, dict[int, str]]] = []
    nodes = {member.base_rank + local: member.node for member in world.members for local in range(member.slots)}
    found.append(("node", nodes))
    declared = state.policy.declared
    if declared.data_parallel and world.size % declared.data_parallel == 0:
        model = world.size // declared.data_parallel
        found.append(("data-parallel index", {rank: str(rank // model) for rank in ranks}))
        found.append(("model-parallel index (pipeline and tensor)", {rank: str(rank % model) for rank in ranks}))
    groups = found_groups(state) or declared_groups(declared, world.size)
    if groups:
        found.append(("replica group", {rank: f"group {n}" for n, group in enumerate(groups) for rank in group}))
    return [
        {"name": name, "of": [line(of.get(rank, "not in the newest world")) for rank in ranks]} for name, of in found
    ]

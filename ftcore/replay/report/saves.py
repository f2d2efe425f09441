"""Checkpoints of a report: which were saved, where they live now, and what rounds loaded."""

from collections import Counter, deque
from typing import Any, Final

from ftcore.events.checkpoint import CheckpointCommitted, CheckpointFailed, IntervalChosen, StateLoaded
from ftcore.events.envelope import Event
from ftcore.ids import SECOND
from ftcore.replay.report.limits import SAVES_MAX
from ftcore.replay.report.text import line
from ftcore.states.model import JobState
from ftcore.states.training import SavedState
from ftcore.wording import format_elapsed

NODES_NAMED_MAX = 8


class Saves:
    """Collects saved and loaded states."""

    READS: Final = frozenset({CheckpointCommitted, CheckpointFailed, StateLoaded, IntervalChosen})

    def __init__(self) -> None:
        self._committed: deque[tuple[int, CheckpointCommitted]] = deque(maxlen=SAVES_MAX)
        self._count = 0
        self._failed: deque[tuple[int, str, int, str]] = deque(maxlen=50)
        self._failed_count = 0
        self._loads: dict[int, tuple[int, int, str, float, int]] = {}
        self._sources: Counter[str] = Counter()
        self._interval: IntervalChosen | None = None

    def feed(self, event: Event) -> None:
        """Note an event."""
        data = event.data
        if type(data) is CheckpointCommitted:
            self._committed.append((event.time, data))
            self._count += 1
        elif type(data) is CheckpointFailed:
            self._failed.append((event.time, line(data.node), data.step, line(data.reason)))
            self._failed_count += 1
        elif type(data) is StateLoaded:
            self._loaded(event.time, data)
        elif type(data) is IntervalChosen:
            self._interval = data

    def _loaded(self, time: int, data: StateLoaded) -> None:
        _, _, _, longest, nodes = self._loads.pop(data.round, (0, 0, "", 0.0, 0))
        self._loads[data.round] = (time, data.step, data.source, max(longest, data.seconds), nodes + 1)
        self._sources[data.source] += 1
        if len(self._loads) > SAVES_MAX:
            del self._loads[next(iter(self._loads))]

    def to_json(self, begin: int, state: JobState) -> dict[str, Any]:
        """Plain JSON values; times in seconds since ``begin`` (nanoseconds)."""
        saved = state.training.saved
        stored = {(each.step, each.round) for each in saved.stored}

        def at(time: int) -> float:
            return round((time - begin) / SECOND, 3)

        return {
            "committed": [
                {
                    "at": at(time),
                    "step": data.step,
                    "round": data.round,
                    "where": line(data.where),
                    "seconds": data.seconds,
                    "own": data.own,
                    "usable": (data.step, data.round) in stored,
                    "abandoned": saved.is_overtaken(data.step, data.round),
                }
                for time, data in self._committed
            ],
            "committed_count": self._count,
            "places": _places(saved),
            "spec": line(state.spec.checkpoints) if state.spec is not None else "",
            "failed": [(at(time), *rest) for time, *rest in self._failed],
            "failed_count": self._failed_count,
            "loads": [(at(time), round_, *rest) for round_, (time, *rest) in self._loads.items()],
            "interval": self._interval_text(),
        }

    def _interval_text(self) -> str:
        chosen = self._interval
        if chosen is None:
            return ""
        return (
            f"ftcore saves to storage every {chosen.steps:,} steps ({format_elapsed(chosen.interval_s)}): mean time "
            f"between failures {format_elapsed(chosen.mtbf_s)}, a save takes {format_elapsed(chosen.cost_s)}"
        )


def _places(saved: SavedState) -> list[dict[str, Any]]:
    """What can be loaded after the last event: on storage, and in the memory of nodes."""
    memory: dict[tuple[int, int], tuple[set[str], set[int], int, int]] = {}
    for node, held in saved.memory.items():
        for shard in held.shards:
            key = (shard.step, shard.round)
            nodes, groups, count, copies = memory.setdefault(key, (set(), set(), shard.groups, 0))
            nodes.add(node)
            groups.add(shard.group)
            memory[key] = (nodes, groups, count, copies + shard.copy)
    found: list[dict[str, Any]] = [
        {
            "step": step,
            "round": round_,
            "where": "memory",
            "complete": len(groups) >= count,
            "detail": _named(nodes) + (f", {copies} copies of other nodes' shards" if copies else ""),
        }
        for (step, round_), (nodes, groups, count, copies) in memory.items()
    ]
    found += [
        {"step": each.step, "round": each.round, "where": "storage", "complete": True, "detail": line(each.where)}
        for each in saved.stored
    ]
    found += [
        {
            "step": each.step,
            "round": each.round,
            "where": "storage",
            "complete": False,
            "detail": f"being written: {len(each.files)} of {each.groups} shards",
        }
        for each in saved.saving
    ]
    return sorted(found, key=lambda each: (-int(each["step"]), str(each["where"])))[:SAVES_MAX]


def _named(nodes: set[str]) -> str:
    shown = sorted(nodes)[:NODES_NAMED_MAX]
    more = f" and {len(nodes) - len(shown)} more nodes" if len(nodes) > len(shown) else ""
    return line(f"{', '.join(shown)}{more}")

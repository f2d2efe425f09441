"""Nodes and rounds over time, for the timeline of a report."""

from collections.abc import Collection
from typing import Any, Final

import attrs

from ftcore.events.envelope import Event
from ftcore.events.job import JobFinished
from ftcore.events.master import MasterElected
from ftcore.events.node import NodeJoined, NodeLeft, NodeLost, NodeQuarantined
from ftcore.events.operator import OperatorCommanded
from ftcore.events.world import RoundPlanned, RoundStarted, WorldFormed, WorldMembers
from ftcore.ids import SECOND
from ftcore.replay.report.limits import MARKS_MAX, NODES_MAX, ROUNDS_MAX, STAYS_MAX
from ftcore.replay.report.text import line

WAITS, TRAINS, OUT = 0, 1, 2
"""What a node does: it is connected but in no world; it is in the world; it is quarantined."""


@attrs.define
class _Lane:
    """A node's stretches of time: begin and end in nanoseconds, and what it did; and its agent's newest incarnation."""

    host: str
    slots: int
    incarnation: str
    alive: bool = True
    stays: list[tuple[int, int, int]] = attrs.field(factory=list)
    lost: list[int] = attrs.field(factory=list)
    since: int = 0
    does: int | None = None

    def change(self, time: int, does: int | None) -> int:
        """Begin to do something else; returns how many stretches that added."""
        before, begin = self.does, self.since
        if does == before:
            return 0
        self.does, self.since = does, time
        if before is None or time <= begin:
            return 0
        self.stays.append((begin, time, before))
        return 1


class Places:
    """Collects lanes of nodes, rounds and leaders; the cost of an event does not depend on the number of nodes, but for
    a new world."""

    READS: Final = frozenset(
        {
            *(NodeJoined, NodeLeft, NodeLost, NodeQuarantined),
            *(RoundPlanned, WorldMembers, WorldFormed, RoundStarted, JobFinished, MasterElected, OperatorCommanded),
        }
    )
    """Types of events that are read here; the other parts of a report declare theirs likewise."""

    def __init__(self) -> None:
        self._lanes: dict[str, _Lane] = {}
        self._members: frozenset[str] = frozenset()
        self._listed: tuple[int, set[str]] = (0, set())
        """The newest round whose members were listed, and these members."""
        self._quarantined: set[str] = set()
        self._stays = 0
        self._rounds: dict[int, list[Any]] = {}
        self._leaders: list[tuple[int, str]] = []

    def feed(self, event: Event) -> None:
        """Note an event."""
        data, time = event.data, event.time
        if type(data) is NodeJoined:
            lane = self._lanes.setdefault(data.node, _Lane(line(data.host), data.slots, data.incarnation))
            lane.slots, lane.incarnation, lane.alive = data.slots, data.incarnation, True
            self._change(lane, time, WAITS)
        elif isinstance(data, NodeLeft | NodeLost):
            self._gone(time, data)
        elif type(data) is NodeQuarantined:
            self._quarantined.add(data.node)
            gone = self._lanes.get(data.node)
            if gone is not None:
                self._change(gone, time, OUT)
        elif type(data) is OperatorCommanded:
            if data.command == "admit":
                self._quarantined.discard(data.node)
        elif type(data) is WorldMembers:
            if self._listed[0] != data.round:
                self._listed = (data.round, set())
            self._listed[1].update(member.node for member in data.members)
        elif isinstance(data, RoundPlanned | WorldFormed | RoundStarted):
            self._round(time, data)
        elif type(data) is JobFinished:
            self._end_round(time)
            for lane in self._lanes.values():
                self._change(lane, time, None)
            self._members = frozenset()
        elif type(data) is MasterElected and len(self._leaders) < MARKS_MAX:
            self._leaders.append((time, line(f"{data.host}, term {event.term}")))

    def _change(self, lane: _Lane, time: int, does: int | None) -> None:
        if self._stays < STAYS_MAX:
            self._stays += lane.change(time, does)

    def _gone(self, time: int, data: NodeLeft | NodeLost) -> None:
        lane = self._lanes.get(data.node)
        if lane is None or (lane.alive and lane.incarnation != data.incarnation):
            return
        lane.alive = False
        self._change(lane, time, OUT if data.node in self._quarantined else None)
        self._members -= {data.node}
        if (type(data) is NodeLost or getattr(data, "lost", False)) and len(lane.lost) < MARKS_MAX:
            lane.lost.append(time)

    def _round(self, time: int, data: RoundPlanned | WorldFormed | RoundStarted) -> None:
        if type(data) is RoundPlanned:
            self._end_round(time)
        row = self._rounds.setdefault(data.round, [time, None, None, None, 0, 0])
        while len(self._rounds) > ROUNDS_MAX:
            del self._rounds[next(iter(self._rounds))]
        if type(data) is RoundStarted:
            row[2] = time
        elif type(data) is WorldFormed:
            row[1], row[4], row[5] = time, data.nodes, data.size
            members = frozenset(self._listed[1]) if self._listed[0] == data.round else frozenset()
            for node in self._members ^ members:
                lane = self._lanes.get(node)
                if lane is not None and lane.does != OUT:
                    self._change(lane, time, TRAINS if node in members else WAITS if lane.alive else None)
            self._members = members

    def _end_round(self, time: int) -> None:
        last = next(reversed(self._rounds.values()), None)
        if last is not None and last[3] is None:
            last[3] = time

    def to_json(self, begin: int, end: int, marked: Collection[str]) -> dict[str, Any]:
        """Plain JSON values; times in seconds since ``begin``.

        Args:
            begin: the first event, nanoseconds since the epoch.
            end: the last one.
            marked: nodes that are shown in any case, because incidents name them.
        """

        def at(time: int | None) -> float | None:
            return None if time is None else round((time - begin) / SECOND, 3)

        named = set(marked)
        ordered = sorted(self._lanes, key=lambda node: node not in named)[:NODES_MAX]
        shown = set(ordered)
        lanes = []
        for node, lane in self._lanes.items():
            if node in shown:
                stays = [*lane.stays, *([(lane.since, end, lane.does)] if lane.does is not None else [])]
                lanes.append(
                    {
                        "node": line(node),
                        "host": lane.host,
                        "slots": lane.slots,
                        "stays": [(at(low), at(high), does) for low, high, does in stays],
                        "lost": [at(time) for time in lane.lost],
                    }
                )
        rounds = [(number, *(at(time) for time in row[:4]), row[4], row[5]) for number, row in self._rounds.items()]
        return {
            "lanes": lanes,
            "node_count": len(self._lanes),
            "cut": self._stays >= STAYS_MAX,
            "rounds": rounds,
            "leaders": [(at(time), who) for time, who in self._leaders],
        }

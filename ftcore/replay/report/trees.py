"""What led to what in each incident, for its page: the tree of ``ftctl explain``, packed."""

from collections.abc import Callable
from typing import Any

import msgspec

from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentOpened
from ftcore.ids import SECOND
from ftcore.replay.causality import CausalTree, depth_first
from ftcore.replay.report.limits import TREE_DEPTH_MAX, TREE_LINE_MAX, TREE_LINES_MAX, TREES_MAX
from ftcore.replay.report.text import line


class Trees:
    """A reader that keeps the trees of the newest incidents.

    Args:
        summary: an event in one line.
    """

    def __init__(self, summary: Callable[[Event], str]) -> None:
        self._summary = summary
        self._tree = CausalTree()
        self._opened: Event | None = None
        self._packed: dict[str, bytes] = {}

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if type(event.data) is IncidentOpened:
            self._keep()
            self._opened = event
        self._tree.feed(event)

    def of(self, incident: str) -> dict[str, Any]:
        """The tree of an incident: ``rows`` of seq, depth, seconds after its opening, type, text and the number of
        events alike; ``more``, the number of rows left out. Without rows if it is not kept.
        """
        if self._opened is not None and self._opened.incident == incident:
            self._keep()
        packed = self._packed.get(incident)
        return {"rows": [], "more": 0} if packed is None else msgspec.json.decode(packed)

    def _keep(self) -> None:
        if self._opened is None or self._opened.incident is None:
            return
        begin, incident = self._opened.time, self._opened.incident
        order = depth_first(self._tree.nodes())
        rows = [
            (
                node.event.seq,
                min(depth, TREE_DEPTH_MAX),
                round(max(0, node.event.time - begin) / SECOND, 3),
                node.event.type,
                line(self._summary(node.event)[: 4 * TREE_LINE_MAX].removeprefix(f"{incident}: "))[:TREE_LINE_MAX],
                node.alike,
            )
            for node, depth in order[:TREE_LINES_MAX]
        ]
        self._packed[incident] = msgspec.json.encode({"rows": rows, "more": len(order) - len(rows)})
        if len(self._packed) > TREES_MAX:
            del self._packed[next(iter(self._packed))]

"""The reader that collects a report: one pass over the log feeds all of its parts."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from ftcore.events.envelope import Event
from ftcore.faults.taxonomy import title_of
from ftcore.ids import SECOND
from ftcore.replay.accounts import GoodputReport, NodeUse
from ftcore.replay.explain import Incident
from ftcore.replay.incident_text import clock_lines
from ftcore.replay.overview import JobOverview
from ftcore.replay.report.answers import FirstScreen
from ftcore.replay.report.cases import pages, rows
from ftcore.replay.report.chain import ChainRecord
from ftcore.replay.report.curves import Curves
from ftcore.replay.report.event_table import EventTable
from ftcore.replay.report.limits import SPANS_MAX
from ftcore.replay.report.places import Places
from ftcore.replay.report.ranks import RankTimes
from ftcore.replay.report.saves import Saves
from ftcore.replay.report.text import line
from ftcore.replay.report.trees import Trees
from ftcore.replay.spans import USES, Span
from ftcore.version import __version__
from ftcore.wording import utc

NODES_LISTED = 50
"""Nodes in the table of goodput: those where faults began, and those that waited longest."""


class ReportReader:
    """A reader that collects everything a report shows.

    Args:
        summary: an event in one line.
        style: how it is shown: ``bad``, ``good``, ``warn``, ``strong``, ``quiet`` or empty.
        known: what is known of the events up to one; None: nothing. It is continued with those after that one.
        collects: collect the overview; False: the caller sets it before ``report``.

    Attributes:
        overview: what ``explain``, ``incidents`` and ``goodput`` show, after the last event.
    """

    def __init__(
        self,
        summary: Callable[[Event], str],
        style: Callable[[Event], str],
        known: JobOverview | None = None,
        *,
        collects: bool = True,
    ) -> None:
        self.overview = known or JobOverview()
        self._known = self.overview.state.seq if collects else math.inf
        self._table = EventTable(summary, style)
        self._places = Places()
        self._curves = Curves()
        self._ranks = RankTimes()
        self._chain = ChainRecord()
        self._saves = Saves()
        self._trees = Trees(summary)
        self._readers: dict[type, tuple[Callable[[Event], None], ...]] = {}
        """By type of event, the parts that read it."""
        self._first: Event | None = None

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if event.seq > self._known:
            self.overview.feed(event)
        for feed in self._readers.get(type(event.data)) or self._readers_of(event):
            feed(event)

    def _readers_of(self, event: Event) -> tuple[Callable[[Event], None], ...]:
        """What reads the events of a type, at the first one."""
        if self._first is None:
            self._first = event
        kind = type(event.data)
        parts = (self._places, self._curves, self._ranks, self._chain, self._saves)
        declared = (part.feed for part in parts if kind in part.READS)
        self._readers[kind] = (self._table.feed, self._trees.feed, *declared)
        return self._readers[kind]

    def report(self, job: str = "", price: float | None = None, cut: str = "") -> dict[str, Any]:
        """The report without its events, as plain JSON values; times in seconds since ``begin``.

        Args:
            job: the log's name; empty: the name that was submitted.
            price: money per GPU-hour.
            cut: why the log could not be read to its end; empty: it was.
        """
        ledger = self.overview.ledger
        state, incidents = ledger.state, ledger.explainer.incidents()
        goodput = ledger.report()
        costs = {cost.id: cost for cost in goodput.incidents}
        screen = FirstScreen(state=state, incidents=incidents, goodput=goodput, costs=costs, price=price)
        headline, mood = screen.headline()
        begin = self._begin
        end = goodput.end  # a note may follow days later
        return {
            "version": __version__,
            "job": line(job or state.job),
            "begin": begin / SECOND,
            "end": end / SECOND,
            "begin_text": utc(begin)[:19].replace("T", " ") if begin else "",
            "end_text": utc(end)[:19].replace("T", " ") if end else "",
            "over": state.ending is not None,
            "imported": state.imported,
            "headline": headline,
            "mood": mood,
            "reason": line(state.reason(), 1000),
            "cut": line(cut, 1000),
            "last_seq": state.seq,
            "state": self._state_json(),
            "answers": screen.answers(),
            "tiles": screen.tiles(),
            "goodput": self._goodput_json(goodput, price),
            "incidents": rows(incidents, costs, begin),
            "incident_count": len(incidents),
            "pages": pages(incidents, goodput, state, self._trees, begin),
            "clocks": [line(each) for each in clock_lines(self.overview.clocks.clocks())],
            "places": self._places.to_json(begin, end, _marked(incidents)),
            "curves": self._curves.to_json(begin),
            "ranks": self._ranks.to_json(begin, state),
            "saves": self._saves.to_json(begin, state),
            "policy": self._chain.to_json(),
            "event_counts": self._table.left_out(),
        }

    def events(self) -> dict[str, Any]:
        """The table of events, by column."""
        return self._table.to_json(self._begin)

    @property
    def _begin(self) -> int:
        return self._first.time if self._first is not None else 0

    def _state_json(self) -> dict[str, Any]:
        state = self.overview.state
        world = state.rounds.world
        return {
            "phase": str(state.phase),
            "run": state.run,
            "outcome": state.ending.outcome if state.ending is not None else None,
            "exit_code": state.ending.exit_code if state.ending is not None else None,
            "round": world.round if world is not None else None,
            "nodes": len(world.members) if world is not None else None,
            "size": world.size if world is not None else None,
            "master": line(state.master.host) if state.master is not None else None,
            "term": state.term,
            "command": line(" ".join(state.spec.argv), 300) if state.spec is not None else "",
        }

    def _goodput_json(self, report: GoodputReport, price: float | None) -> dict[str, Any]:
        seconds = report.seconds
        spans, shortest_s = _longest(report.spans if report.timed else ())
        use_of = {use: place for place, use in enumerate(USES)}
        begin = report.begin
        listed = sorted(report.nodes, key=lambda each: (-each.fault_count, -each.seconds["idle"]))[:NODES_LISTED]
        return {
            "uses": [(use, seconds[use], report.gpu_s[use]) for use in USES],
            "wall_s": report.wall_s,
            "goodput": report.goodput,
            "repeats_known": report.repeats_known,
            "unknown": report.unknown,
            "price": price,
            "causes": [
                {
                    "cause": line(title_of(each.cause, "") if each.cause else "no incident: start and idle time"),
                    "incident_count": each.incident_count,
                    "uses": each.seconds,
                    "total_s": each.total_s,
                    "gpu_s": each.gpu_s,
                }
                for each in report.causes
            ],
            "nodes": [_node_json(each) for each in listed],
            "node_count": len(report.nodes),
            "spans": [
                (
                    round((span.begin - begin) / SECOND, 3),
                    round((span.end - begin) / SECOND, 3),
                    use_of[span.use],
                    span.incident,
                )
                for span in spans
            ],
            "shortest_s": shortest_s,
        }


def _node_json(use: NodeUse) -> dict[str, Any]:
    return {
        "node": line(use.node),
        "total_s": use.total_s,
        "uses": use.seconds,
        "fault_count": use.fault_count,
        "gpu_s": use.total_s * use.slots,
    }


def _longest(spans: Sequence[Span]) -> tuple[list[Span], float]:
    """The longest spans in order of time, and the seconds below which spans are left out."""
    if len(spans) <= SPANS_MAX:
        return list(spans), 0.0
    least = sorted((span.end - span.begin for span in spans), reverse=True)[SPANS_MAX]
    return [span for span in spans if span.end - span.begin > least], math.ceil(least / 1e6) / 1e3


def _marked(incidents: Sequence[Incident]) -> set[str]:
    return {node for incident in incidents for node in incident.nodes[:8]}

"""The screen of ``ftctl top``: a view as lines that fit a width and a height. Pure: nothing is written here.

House rules: every text goes through ``printable``, so nothing that a worker wrote controls the terminal. A meaning is
always in the text, never in a colour alone. Widths count terminal cells, not characters.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import attrs
from rich.cells import cell_len, get_character_cell_size

from ftcore.replay.live import LiveView
from ftcore.replay.live.view import LiveEvent, LiveIncident, LiveNode, PhaseClock, moment_text
from ftcore.wording import format_elapsed, plural, printable, utc

NAME_WIDTH: Final = 11
"""Width of the names of rows."""

WIDTH_MIN: Final = 20
"""A narrower terminal is treated as this wide; it cuts the lines itself."""

KEYS: Final = "q quit  n nodes  e events  space freeze  ? keys"

HELP: Final = (
    ("q", "quit; so does Ctrl-C"),
    ("m, Esc", "main page"),
    ("n", "nodes one by one, worst first"),
    ("e", "events"),
    ("arrows j k", "scroll by a line"),
    ("PgUp, PgDn", "scroll by a page; Home, End: to the first, to the last line"),
    ("space", "freeze the screen, and go on"),
    ("?", "this list"),
)
"""Keys and what they do."""

Span = tuple[str, str]
"""A text and its style, a key of ``ctl_output.STYLES``."""

Line = tuple[Span, ...]

Undrawn = Callable[[], Line]
"""A line of a long list: made only if it is on the screen."""

_URGENT: Final = ("reason", "no progress", "held", "paused", "request", "waits", "quarantined", "loss")
"""Rows that are kept on the smallest screen."""

_SPARE: Final = ("log", "incidents", "checkpoint", "master", "job", "stacks", "world")
"""Rows that are left out, in this order, if there is no room."""


@attrs.frozen(kw_only=True)
class TopPage:
    """What is on the screen.

    Args:
        name: ``main``, ``nodes``, ``events`` or ``keys``.
        scroll: lines above the screen.
        frozen: the screen is not redrawn.
    """

    name: str = "main"
    scroll: int = 0
    frozen: bool = False


def screen(view: LiveView, page: TopPage, width: int, height: int | None, complete: Callable[[str], str]) -> list[Line]:
    """The lines of the screen.

    Args:
        view: what is shown.
        page: which part of it.
        width: cells.
        height: lines, at most; None: no limit, as on paper.
        complete: adds store and job to the ``ftctl`` commands in a text.
    """
    width = max(WIDTH_MIN, width)
    pen = _Pen(width, complete, paper=height is None)
    head = [_title(pen, view, page)]
    for each in view.notices:
        head += pen.folded("", f"! {each.name}: {each.text}", each.tone, 2)
    if height is None:
        return [*head, *_main(pen, view, None)]
    foot = [pen.line((KEYS, "quiet"))] if height > 4 else []
    room = max(0, height - len(head) - len(foot))
    if page.name == "main":
        body = _main(pen, view, room)
    else:
        part = {"nodes": _node_lines, "events": _event_lines, "keys": _key_lines}[page.name]
        every = part(pen, view)
        first = min(page.scroll, max(0, len(every) - room))
        body = [drawn() for drawn in every[first : first + room]]
    body = body[:room]
    return [*head[: height - len(foot)], *body, *[()] * (room - len(body)), *foot]


def scroll_max(view: LiveView, page: TopPage) -> int:
    """The largest useful ``scroll`` of a page."""
    return {"nodes": len(view.nodes) + 1, "events": len(view.newest_events)}.get(page.name, 0)


class _Pen:
    """Makes lines of one width."""

    def __init__(self, width: int, complete: Callable[[str], str], paper: bool) -> None:
        self.width, self.paper = width, paper
        self._complete = complete

    def clean(self, text: str) -> str:
        """The text on one line, with whole ``ftctl`` commands and without control characters."""
        return printable(self._complete(text))

    def line(self, *spans: Span) -> Line:
        """A line, cut at the width."""
        left, fitted = self.width, []
        for text, style in spans:
            size = cell_len(text)
            if size > left:
                fitted.append((cut(text, left), style))
                break
            fitted.append((text, style))
            left -= size
        return tuple(span for span in fitted if span[0])

    def row(self, name: str, text: str, tone: str = "") -> Line:
        """A name and a text."""
        return self.line((f"{self.clean(name):<{NAME_WIDTH}} ", "strong"), (self.clean(text), tone))

    def folded(self, indent: str, text: str, tone: str, most: int) -> list[Line]:
        """A text on up to ``most`` lines."""
        rest = self.clean(text)
        lines: list[Line] = []
        room = max(1, self.width - len(indent))
        while rest and len(lines) < most - 1 and cell_len(rest) > room:
            piece = _prefix(rest, room)
            at = piece.rfind(" ") if " " in piece[room // 2 :] else len(piece)
            lines.append(self.line((indent + rest[:at].rstrip(), tone)))
            rest = rest[at:].lstrip()
        return [*lines, self.line((indent + rest, tone))] if rest else lines


def cut(text: str, width: int) -> str:
    """The text in at most ``width`` cells; an ellipsis shows that something is missing."""
    if cell_len(text) <= width:
        return text
    return f"{_prefix(text, width - 1)}…" if width > 0 else ""


def _prefix(text: str, width: int) -> str:
    """The first characters that fit into ``width`` cells."""
    used = 0
    for at, char in enumerate(text):
        used += get_character_cell_size(char)
        if used > width:
            return text[:at]
    return text


def _title(pen: _Pen, view: LiveView, page: TopPage) -> Line:
    moment = f"{'FROZEN ' if page.frozen else ''}{utc(view.time)[11:19]} UTC"
    job, state = pen.clean(view.job) or "ftctl top", view.state.upper()
    room = pen.width - len(moment) - len(state) - 4
    job = cut(job, max(1, room))
    gap = " " * max(1, pen.width - cell_len(job) - len(state) - len(moment) - 2)
    return pen.line((job, "strong"), ("  ", ""), (state, view.tone), (gap, ""), (moment, "quiet"))


def _main(pen: _Pen, view: LiveView, room: int | None) -> list[Line]:
    """The main page: rows of the job, the incident, nodes by state, and as many events as there is room for."""
    wide = room is None or room > 30
    incident = _incident_lines(pen, view.open_incident, full=wide) if view.open_incident is not None else []
    nodes = _group_lines(pen, view)
    rows = [row for row in view.rows if row.name != "job" or view.state == "waiting"]
    if room is not None:
        least = len(incident) + len(nodes) + min(4, len(view.newest_events) + 1)
        for name in _SPARE:
            if len(rows) + least <= room:
                break
            rows = [row for row in rows if row.name != name]
        rows = rows if len(rows) + least <= room else [row for row in rows if row.name in (*_URGENT, "step")]
    lines = [pen.row(row.name, row.text, row.tone) for row in rows]
    if view.state == "waiting":
        lines = [line for row in rows for line in pen.folded("", row.text, row.tone, 6)]
    lines = [*lines, *incident, *nodes]
    if wide:
        lines += _worst_lines(
            pen, view, 10 if room is None else room - len(lines) - min(12, len(view.newest_events) + 1)
        )
    if view.newest_events:
        lines.append(pen.line(("events", "strong")))
        left = 15 if room is None else max(1, room - len(lines))
        lines += [_event_line(pen, event, view.time) for event in view.newest_events[-left:]]
    return lines


def _incident_lines(pen: _Pen, incident: LiveIncident, full: bool) -> list[Line]:
    kind = incident.title if incident.kind == "fault" else f"{incident.kind}: {incident.title}"
    head = f"{incident.id}, open for {format_elapsed(incident.seconds)}: {kind}"
    lines = [pen.row("incident", head, "warn"), *pen.folded("  ", incident.summary, "warn", 3 if full else 2)]
    clocks = "  ".join(_clock(phase) for phase in incident.phase_clocks)
    lines.append(pen.line((f"  {clocks}", "strong")))
    lines += pen.folded("  ", f"now: {incident.doing}", "", 2) if incident.doing else []
    then = ", ".join(incident.next) or "no other policy; the job ends"
    waits = f"waits for: {incident.waits}; " if incident.waits else ""
    lines += pen.folded("  ", f"{waits}asked next, if need be: {then}", "", 2)
    if incident.limit_text:
        lines.append(pen.line((f"  limit: {pen.clean(incident.limit_text)}", "quiet")))
    if full:
        lines += [pen.line((f"  answer: {pen.clean(answer)}", "quiet")) for answer in incident.answers[-6:]]
    return lines


def _clock(phase: PhaseClock) -> str:
    text = f"{phase.name.replace('_', ' ')} {format_elapsed(phase.seconds)}"
    return f"[{text}]" if phase.running else text


def _group_lines(pen: _Pen, view: LiveView) -> list[Line]:
    if not view.groups:
        return []
    living = sum(group.count for group in view.groups if group.state not in ("gone", "lost", "left"))
    lines = [pen.row("nodes", f"{plural(living, 'node')} connected; spares: {view.spares}")]
    for group in view.groups:
        count = f"  {group.state:<{NAME_WIDTH}}{group.count:>6,}  "
        lines.append(pen.line((count, group.tone), (pen.clean(group.names), "quiet")))
    return lines


def _worst_lines(pen: _Pen, view: LiveView, most: int) -> list[Line]:
    """The worst nodes, one by one; on paper only those with which something is wrong."""
    nodes = view.nodes if not pen.paper else [node for node in view.nodes if node.note or node.tone == "bad"]
    if not nodes or most < 3:
        return []
    return [_node_head(pen), *(_node_line(pen, node) for node in nodes[: most - 1])]


def _node_lines(pen: _Pen, view: LiveView) -> list[Undrawn]:
    lines: list[Undrawn] = [partial(_node_head, pen), *(partial(_node_line, pen, node) for node in view.nodes)]
    if view.nodes_left_out:
        lines.append(partial(pen.line, (f"and {plural(view.nodes_left_out, 'more node')}", "quiet")))
    return lines


def _node_head(pen: _Pen) -> Line:
    return _columns(pen, ("NODE", "STATE", "STEP", "STEP TIME", "OWN WORK", "HEARD", "RANKS", "NOTE", "HOST"), "strong")


def _node_line(pen: _Pen, node: LiveNode) -> Line:
    heard = f"{node.heard_s:.0f} s ago" if node.heard_s is not None else "-"
    cells = (
        node.node,
        node.state,
        str(node.step) if node.step is not None else "-",
        format_elapsed(node.step_s),
        format_elapsed(node.own_s),
        heard,
        node.rank_range or "-",
        node.note,
        node.host,
    )
    return _columns(pen, cells, node.tone)


def _columns(pen: _Pen, cells: Sequence[str], style: str) -> Line:
    """A row of the table of nodes; hosts are only shown on a wide screen."""
    name = 14 if pen.width < 100 else 24
    sizes = (name, 11, 8, 9, 9, 8, 9, 18)
    left = pen.width - sum(sizes) - len(sizes)
    texts = []
    for cell, size in zip(cells, (*sizes, *([left] if left > 8 else [])), strict=False):
        text = cut(pen.clean(cell), size)
        texts.append(f"{text}{' ' * (size - cell_len(text))}")
    return pen.line((" ".join(texts).rstrip(), style))


def _event_lines(pen: _Pen, view: LiveView) -> list[Undrawn]:
    """Events with the newest first, so that the page begins with what is new."""
    return [partial(_event_line, pen, event, view.time, seq=True) for event in reversed(view.newest_events)]


def _event_line(pen: _Pen, event: LiveEvent, now: int, *, seq: bool = False) -> Line:
    number = f"{event.seq:>8} " if seq else ""
    return pen.line((f"  {number}{moment_text(event.time, now)} ", "quiet"), (pen.clean(event.text), event.tone))


def _key_lines(pen: _Pen, _view: LiveView) -> list[Undrawn]:
    return [partial(pen.row, key, text) for key, text in HELP]


def plain(lines: Iterable[Line]) -> list[str]:
    """Lines without styles."""
    return ["".join(text for text, _ in line).rstrip() for line in lines]

"""What is shown of a job at a moment: plain values of bounded size. See ``__init__.py``."""

from collections.abc import Sequence
from typing import Any, Protocol

import attrs

from ftcore.replay.status_rows import StatusRow
from ftcore.wording import timestamp_fields, utc

TEXT_MAX = 600
"""Characters of a text that are kept: a message of a worker may have megabytes."""


class Heartbeat(Protocol):
    """A node in the master's memory; ``runtime.observers.ObservedNode`` has the meaning of each field."""

    @property
    def node(self) -> str: ...  # noqa: D102
    @property
    def heard_s(self) -> float: ...  # noqa: D102
    @property
    def round(self) -> int: ...  # noqa: D102
    @property
    def step(self) -> int | None: ...  # noqa: D102
    @property
    def absolute(self) -> bool: ...  # noqa: D102
    @property
    def loss(self) -> float | None: ...  # noqa: D102
    @property
    def step_s(self) -> float | None: ...  # noqa: D102
    @property
    def own_s(self) -> float | None: ...  # noqa: D102
    @property
    def slow(self) -> str: ...  # noqa: D102


@attrs.frozen(kw_only=True)
class Links:
    """What the viewer knows beside the log.

    Args:
        beats: the connected nodes; empty: not known.
        beats_at: the viewer's time at which the master reported them, nanoseconds since the epoch; 0: never.
        master_alive: the master holds its lease; None: not known.
        master_away: the viewer's time since which no master leads; None: one leads, or it is not known.
        log_away: the viewer's time since which the log cannot be read; None: it can.
        log_error: why it cannot be read.
        behind: events of the log that were not read yet.
        waiting: facts at the master that are not in the log yet.
        wait_s: seconds for which the oldest of them has waited.
    """

    beats: Sequence[Heartbeat] = ()
    beats_at: int = 0
    master_alive: bool | None = None
    master_away: int | None = None
    log_away: int | None = None
    log_error: str = ""
    behind: int = 0
    waiting: int = 0
    wait_s: float = 0.0


@attrs.frozen(kw_only=True)
class PhaseClock:
    """A phase of the open incident; ``explain.py`` defines the phases.

    Args:
        name: its name.
        seconds: how long it took, or has taken so far; None: not known.
        running: it has not ended.
    """

    name: str
    seconds: float | None
    running: bool


@attrs.frozen(kw_only=True)
class LiveIncident:
    """The open incident.

    Args:
        id: its id.
        kind: as ``explain.Incident``.
        title: name of the fault.
        summary: one line: what, where.
        node_names: the nodes involved, in one line.
        seconds: since it was opened.
        phase_clocks: its phases so far.
        doing: what is done now: the policy that took it with its reason, or who is asked.
        waits: nodes whose answer to an order is awaited, in one line; empty: none.
        answers: answers so far, newest last: policy, verdict and reason.
        next: policies that are asked if what is done now fails, in order.
        limit_text: what happens when the time of the present phase is over, and when; empty: there is no limit.
    """

    id: str
    kind: str
    title: str
    summary: str
    node_names: str
    seconds: float
    phase_clocks: tuple[PhaseClock, ...]
    doing: str
    waits: str
    answers: tuple[str, ...]
    next: tuple[str, ...]
    limit_text: str


@attrs.frozen(kw_only=True)
class NodeGroup:
    """Nodes in one state.

    Args:
        state: of the node machine; ``lost``, ``left``: their places are empty; ``gone``: others have their places, or
            the run has ended.
        count: how many.
        names: the first few, worst first.
        tone: see ``status_rows``.
    """

    state: str
    count: int
    names: str
    tone: str


@attrs.frozen(kw_only=True)
class LiveNode:
    """A node.

    Args:
        node: its name.
        state: as in its group.
        tone: see ``status_rows``.
        place: its place in the job.
        rank_range: its global ranks in the newest world, as ``0-7``; empty: none.
        host: its host.
        step: the newest completed step, by its heartbeat; None: not known.
        step_s: seconds per step.
        own_s: seconds of own work per step, without waiting for others.
        heard_s: seconds since its last frame at the master; None: not connected, or not known.
        note: what is wrong with it, in a word or two; empty: nothing is known.
    """

    node: str
    state: str
    tone: str
    place: int
    rank_range: str
    host: str
    step: int | None
    step_s: float | None
    own_s: float | None
    heard_s: float | None
    note: str


@attrs.frozen(kw_only=True)
class LiveEvent:
    """An event as a line of the narration.

    Args:
        seq: the event.
        time: the master's time, nanoseconds since the epoch.
        type: its type.
        text: the line.
        tone: see ``status_rows``.
    """

    seq: int
    time: int
    type: str
    text: str
    tone: str


@attrs.frozen(kw_only=True)
class LiveView:
    """What is shown of a job.

    Args:
        job: its name.
        state: state of the job machine; ``waiting``: there is no such job yet.
        tone: that of the state.
        ended: the run has ended.
        time: the moment of the view, nanoseconds since the epoch.
        last_seq: the last event that it includes.
        notices: what keeps the view from being complete or current, most severe first.
        rows: the job, as ``ftctl status`` has it.
        open_incident: the open incident; None: none is open.
        groups: all nodes by state, worst first.
        nodes: the worst nodes, worst first.
        nodes_left_out: how many nodes ``nodes`` lacks.
        spares: nodes that stand by and are not in the newest world, in one line.
        master_hosts: hosts of living nodes, in one line: where the next master may lead.
        newest_events: the newest events that a person needs to see, newest last.
    """

    job: str
    state: str
    tone: str
    ended: bool
    time: int
    last_seq: int
    notices: tuple[StatusRow, ...] = ()
    rows: tuple[StatusRow, ...] = ()
    open_incident: LiveIncident | None = None
    groups: tuple[NodeGroup, ...] = ()
    nodes: tuple[LiveNode, ...] = ()
    nodes_left_out: int = 0
    spares: str = ""
    master_hosts: str = ""
    newest_events: tuple[LiveEvent, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; times as ``wording.timestamp_fields`` writes them."""
        fields = attrs.asdict(self)
        del fields["time"]
        events = [{**timestamp_fields("time", event.pop("time")), **event} for event in fields["newest_events"]]
        return {**timestamp_fields("time", self.time), **fields, "newest_events": events}


def short(text: str) -> str:
    """The first ``TEXT_MAX`` characters of a text."""
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def moment_text(time_ns: int, now: int) -> str:
    """A moment in UTC: the time of day, or month, day and time if it was on another day than ``now``."""
    text = utc(time_ns)
    return text[11:19] if text[:10] == utc(now)[:10] else text[5:16].replace("T", " ")

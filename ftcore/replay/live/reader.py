"""The reader behind every live view: folds events into a bounded state, and shows it at any moment.

House rules: pure; the time of a view is its caller's. ``view`` costs a pass over the nodes, however long the log is.
"""

import statistics
from collections import deque
from typing import Final

import attrs

from ftcore.events.checkpoint import CheckpointCommitted, CheckpointFailed
from ftcore.events.envelope import Event
from ftcore.events.job import JobFinished, JobProgressed, JobSubmitted
from ftcore.ids import SECOND
from ftcore.replay.live.incident import IncidentClock
from ftcore.replay.live.nodes import LiveNodes
from ftcore.replay.live.view import Heartbeat, Links, LiveEvent, LiveView, short
from ftcore.replay.narration import Narration
from ftcore.replay.reading import fold_recorded
from ftcore.replay.status import JobStatus, status_of
from ftcore.replay.status_rows import (
    StatusRow,
    age_text,
    checkpoint_text,
    first_rows,
    incidents_text,
    is_unknown,
    master_text,
    nan_text,
    rate_text,
    state_of,
    step_text,
)
from ftcore.states.model import JobState
from ftcore.states.phases import has_ended, is_running
from ftcore.wording import format_elapsed, name_list, plural, reason_suffix, utc

EVENTS_KEPT: Final = 200
"""Lines that a reader keeps."""

NODES_SHOWN: Final = 50
"""Nodes in a view, unless its caller wants more."""

COMMAND_MAX: Final = 100
"""Characters of the job's command that are shown."""

PACE_MAX_S: Final = 600.0
"""Samples of progress that are further apart are not used for the time of a step: the job may have stood meanwhile."""

_TONES: dict[str, str] = {
    "incident.opened": "warn",
    "incident.rediagnosed": "warn",
    "incident.escalated": "warn",
    "incident.resolved": "good",
    "incident.exhausted": "bad",
    "worker.failed": "bad",
    "node.lost": "bad",
    "node.quarantined": "bad",
    "checkpoint.failed": "bad",
    "job.parked": "bad",
    "log.contradicted": "bad",
    "archive.failed": "warn",
    "space.ran_low": "bad",
    "alert.raised": "warn",
    "standstill.judged": "warn",
    "job.rolled_back": "warn",
    "world.formed": "good",
}


class LiveReader:
    """A reader that keeps what a live view shows.

    Args:
        job: the job's name.
        state: the state to continue from, changed in place; None: the log is read from its first event.
    """

    def __init__(self, job: str, state: JobState | None = None) -> None:
        self.job = job
        self._state = state if state is not None else JobState()
        self._narration = Narration()
        self._incident = IncidentClock(self._state)
        self._events: deque[LiveEvent] = deque(maxlen=EVENTS_KEPT)
        self._step = self._state.training.step, self._state.training.step_round
        self._step_at: int | None = None
        self._sample: tuple[int, int, int] | None = None
        self._step_s: float | None = None
        self._loss: float | None = None
        self._seen: _SeenStep | None = None
        self._unwritten: int | None = None

    @property
    def state(self) -> JobState:
        """The folded state after the last event, not to be changed."""
        return self._state

    def recall(self, event: Event) -> None:
        """Note an event that the given state includes already, for the list of the newest events."""
        self._note(event)

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        fold_recorded(self._state, event)
        self._incident.feed(event)
        self._note(event)
        training = self._state.training
        if isinstance(event.data, JobProgressed):
            self._pace(event.time, event.data)
        if (training.step, training.step_round) != self._step or isinstance(event.data, JobProgressed):
            self._step, self._step_at = (training.step, training.step_round), event.time

    def _pace(self, now: int, data: JobProgressed) -> None:
        before, self._sample, self._loss = self._sample, (data.round, data.step, now), data.loss
        if before is None or before[0] != data.round or data.step <= before[1]:
            self._step_s = self._step_s if before is not None and before[0] == data.round else None
            return
        took = (now - before[2]) / SECOND
        self._step_s = took / (data.step - before[1]) if took <= PACE_MAX_S else None

    def _note(self, event: Event) -> None:
        if isinstance(event.data, CheckpointFailed):  # once for a step: every node of 1,000 may report the same
            if event.data.step == self._unwritten:
                return
            self._unwritten = event.data.step
        if line := self._narration.line(event) or _further(event):
            tone = _TONES.get(event.type, "")
            self._events.append(LiveEvent(seq=event.seq, time=event.time, type=event.type, text=short(line), tone=tone))

    def view(self, now: int, links: Links | None = None, *, nodes: int = NODES_SHOWN, events: int = 50) -> LiveView:
        """What is to be shown.

        Args:
            now: the viewer's time, nanoseconds since the epoch. If the last event is later, its time is taken: the
                master's clock may be ahead.
            links: what the viewer knows beside the log; None: nothing.
            nodes: nodes that are shown one by one, at most.
            events: events, at most.
        """
        state, links = self._state, links if links is not None else Links()
        now = max(now, state.time)
        job = status_of(state, self.job)
        shown_state, tone = state_of(job)
        over = has_ended(state) or state.imported
        self._look(links)
        seen = LiveNodes(state, links.beats, self._pace_s(links))
        shown = seen.worst(nodes)
        groups = seen.groups()
        spares = seen.spares()
        living = sum(group.count for group in groups if group.state != "gone")
        return LiveView(
            job=self.job,
            state=shown_state,
            tone=tone,
            ended=over,
            time=now,
            last_seq=state.seq,
            notices=notices(links, now, ended=over),
            rows=tuple(self._rows(job, links, now)),
            open_incident=self._incident.view(now),
            groups=groups,
            nodes=shown,
            nodes_left_out=living - len(shown),
            spares=f"{len(spares)}: {name_list(spares)}" if spares else "none",
            master_hosts=name_list(seen.hosts()),
            newest_events=tuple(self._events)[-events:] if events else (),
        )

    def _rows(self, job: JobStatus, links: Links, now: int) -> list[StatusRow]:
        rows = [
            StatusRow(row.name, short(row.text), row.tone)
            for row in first_rows(job)
            if row.name != "state" or is_unknown(job)
        ]
        rows += self._step_rows(job, links, now)
        if nan := nan_text(job):
            rows.append(StatusRow("loss", nan, "bad"))
        if rate := rate_text(job):
            rows.append(StatusRow("learning rate", rate))
        if checkpoint := checkpoint_text(job):
            rows.append(StatusRow("checkpoint", checkpoint))
        rows.append(StatusRow("incidents", incidents_text(job)))
        if master := master_text(job, links.master_alive):
            rows.append(StatusRow("master", master))
        last = age_text((now - job.time) / SECOND) if job.time is not None else ""
        rows.append(StatusRow("log", f"{plural(job.last_seq, 'event')}{', the last ' + last[2:-1] if last else ''}"))
        return rows

    def _look(self, links: Links) -> None:
        """Note the newest step of the heartbeats, and how fast it grows from one look at the master to the next."""
        beats, seen = _training(links, self._state), self._seen
        if not beats or (seen is not None and seen.looked == links.beats_at):
            return
        newest, round_ = min(beat.step for beat in beats if beat.step is not None), beats[0].round
        at = links.beats_at
        if seen is not None and seen.round == round_ and newest == seen.step:
            self._seen = attrs.evolve(seen, looked=at)
            return
        grown = seen is not None and seen.round == round_ and newest > seen.step
        self._seen = _SeenStep(
            round=round_,
            step=newest,
            absolute=beats[0].absolute,
            since=at,
            looked=at,
            step_s=(at - seen.since) / SECOND / (newest - seen.step) if grown and seen is not None else None,
        )

    def _pace_s(self, links: Links) -> float | None:
        """Seconds per step: measured by the agents, else between two looks at the master, else from the log."""
        measured = [beat.step_s for beat in _training(links, self._state) if beat.step_s is not None]
        if measured:
            return statistics.median(measured)
        seen = self._seen.step_s if self._seen is not None and links.beats else None
        return seen if seen is not None else self._step_s

    def _step_rows(self, job: JobStatus, links: Links, now: int) -> list[StatusRow]:
        """The newest step, its age, the time of a step and the loss; heartbeats are newer than the log."""
        step, at, loss, absolute = job.step, self._step_at, self._loss, job.step_absolute
        beats, seen = _training(links, self._state), self._seen
        world = self._state.rounds.world
        if seen is not None and world is not None and world.round == seen.round:
            if step is None or seen.step >= step:
                step, at, absolute = seen.step, seen.since, seen.absolute
            loss = next((beat.loss for beat in beats if beat.loss is not None), loss)
        if step is None:
            return []
        over, pace_s = has_ended(self._state) or job.imported, self._pace_s(links)
        age_s = (now - at) / SECOND if at is not None and not over else None
        pace = f", {format_elapsed(pace_s)} per step" if pace_s and is_running(self._state) and not over else ""
        shown = f", loss {loss:.6g}" if loss is not None and job.nan_since is None else ""
        return [StatusRow("step", f"{step_text(step, absolute, age_s)}{pace}{shown}")]


@attrs.frozen(kw_only=True)
class _SeenStep:
    """The newest step of the heartbeats.

    Args:
        round: its round.
        step: completed by every member that reports steps.
        absolute: it counts from the start of the training, not of the round.
        since: the viewer's time of the first look that showed it.
        looked: that of the newest look.
        step_s: seconds per step since the look before ``since``; None: not known.
    """

    round: int
    step: int
    absolute: bool
    since: int
    looked: int
    step_s: float | None = None


def _training(links: Links, state: JobState) -> list[Heartbeat]:
    """Heartbeats of the members of the newest round that report steps."""
    world = state.rounds.world
    if world is None:
        return []
    return [beat for beat in links.beats if beat.round == world.round and beat.step is not None]


def notices(links: Links, now: int, *, ended: bool) -> tuple[StatusRow, ...]:
    """What keeps a view from being complete or current.

    Args:
        links: what the viewer knows beside the log.
        now: the moment, nanoseconds since the epoch.
        ended: the run has ended, so no master need lead.
    """
    found = []
    if links.log_away is not None:
        text = f"unreachable {_since(links.log_away, now)}; what follows is older; trying again"
        found.append(StatusRow("log store", short(f"{text}{reason_suffix(links.log_error)}"), "bad"))
    if links.master_away is not None and not ended:
        text = f"none leads {_since(links.master_away, now)}; workers keep running; decisions wait for the next master"
        found.append(StatusRow("master", text, "bad"))
    if links.behind > 1:
        found.append(StatusRow("behind", f"{plural(links.behind, 'event')} of the log are still to be read", "warn"))
    if links.waiting and links.wait_s > 1:
        text = f"{plural(links.waiting, 'fact')} not in the log yet, the oldest for {format_elapsed(links.wait_s)}"
        found.append(StatusRow("waiting", text, "warn"))
    return tuple(found)


def _since(moment: int, now: int) -> str:
    seconds = (now - moment) / SECOND
    return f"since {utc(moment)[11:19]} UTC ({format_elapsed(seconds)})" if seconds >= 1 else "now"


def _further(event: Event) -> str:
    """Lines that ``ftrun`` need not print, as it says the same in another way."""
    data = event.data
    if isinstance(data, JobFinished):
        return f"the job has ended: {data.outcome}, exit code {data.exit_code}{reason_suffix(data.reason)}"
    if isinstance(data, JobSubmitted):
        command = " ".join(data.spec.argv or data.command)
        return f"run {data.run} begins: {command if len(command) <= COMMAND_MAX else f'{command[:COMMAND_MAX]}…'}"
    if isinstance(data, CheckpointCommitted):
        return f"checkpoint of step {data.step} is complete{reason_suffix(data.where)}"
    if isinstance(data, CheckpointFailed):
        return f"{data.node} could not write the checkpoint of step {data.step}{reason_suffix(data.reason)}"
    return ""


def awaited_view(job: str, why: str, now: int) -> LiveView:
    """The view of a job that does not exist yet, or cannot be read yet.

    Args:
        job: its name; empty: not known.
        why: why there is nothing to see.
        now: the moment, nanoseconds since the epoch.
    """
    rows = (StatusRow("job", short(why)),)
    return LiveView(job=job, state="waiting", tone="warn", ended=False, time=now, last_seq=0, rows=rows)

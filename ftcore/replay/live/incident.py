"""The open incident: its phases with running clocks, what is done, who is asked next.

Phases are those of ``explain.py``, and follow from the folded state after each event: a plan that failed counts as
``decide``, since the next policy is asked. A reader that began in the middle of an incident does not know the phases
before; they are left out, and the running one has no length.
"""

from typing import Final

import attrs

from ftcore.commands import AskPolicy
from ftcore.events.envelope import Event
from ftcore.events.incident import IncidentOpened
from ftcore.events.policy import PolicyConsidered
from ftcore.faults.taxonomy import title_of
from ftcore.ids import SECOND
from ftcore.policies.chain import upcoming
from ftcore.replay.live.view import LiveIncident, PhaseClock, short
from ftcore.replay.phases import detect_s
from ftcore.states.model import IncidentState, JobState
from ftcore.states.phases import (
    awaits_outcome,
    awaits_verdict,
    is_acting,
    is_deferred,
    is_forming,
    is_open,
    is_starting,
)
from ftcore.states.timers import ActionTimer, all_due, parse
from ftcore.wording import back_off_text, format_elapsed, name_list, reason_suffix

ASKED_MAX: Final = 20
"""Answers that are kept of one incident."""

FACTS_MAX: Final = 64
"""Facts that are kept to find the one that an incident began with."""


def phase_now(state: JobState) -> str:
    """The phase of the open incident, by name; empty if none is open."""
    incident = state.incident
    if incident is None or not is_open(incident):
        return ""
    if awaits_verdict(incident):
        return "decide"
    if is_deferred(incident):
        return "wait"
    if awaits_outcome(incident):
        return "first_step"
    assert is_acting(incident)
    kind = incident.plan_in_force().kind
    if is_forming(state):
        return "rendezvous"
    if is_starting(state) or kind in ("in_place", "tell"):
        return "start"
    return "stop"


@attrs.define(kw_only=True)
class _Running:
    """The incident that is being watched.

    Args:
        id: its id.
        detect: seconds of its detection; None: not known.
        since: the master's time at which the running phase began; None: before the first event that was read.
        phase: the running phase.
        over: phases that have ended, with their seconds.
        asked: answers.
    """

    id: str
    detect: float | None
    since: int | None
    phase: str
    over: list[tuple[str, float | None]] = attrs.field(factory=list)
    asked: list[str] = attrs.field(factory=list)


class IncidentClock:
    """Follows the open incident; goes after the fold of the same event.

    Args:
        state: the folded state, which changes in place.
    """

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._facts: dict[int, Event] = {}
        self._fact: Event | None = None
        self._running: _Running | None = None
        self._resume()

    def _resume(self) -> None:
        """Take the incident that was open before the first event that is read."""
        phase, incident = phase_now(self._state), self._state.incident
        if phase and incident is not None:
            since = incident.opened if phase == "decide" else None
            self._running = _Running(id=incident.id, detect=None, since=since, phase=phase)

    def feed(self, event: Event) -> None:
        """See ``Reader.feed``."""
        if event.incident is None:
            self._facts[event.seq] = event
            if len(self._facts) > FACTS_MAX:
                del self._facts[next(iter(self._facts))]
            self._fact = event
        incident, phase = self._state.incident, phase_now(self._state)
        if not phase or incident is None:
            self._running = None
            return
        if self._running is None or self._running.id != incident.id:
            self._running = _Running(id=incident.id, detect=self._detect(event), since=event.time, phase=phase)
        elif phase != self._running.phase:
            self._change(self._running, phase, event.time, incident)
        if type(event.data) is PolicyConsidered:
            data = event.data
            verdict = "takes it" if data.verdict == "take" else "passes"
            self._running.asked.append(short(f"{data.policy} {verdict}{reason_suffix(data.reason)}"))
            del self._running.asked[:-ASKED_MAX]

    def _change(self, running: _Running, phase: str, now: int, incident: IncidentState) -> None:
        if phase == "decide":  # the plan failed, or its policy wanted the next one asked
            running.over, running.since = [], incident.opened
        else:
            took = (now - running.since) / SECOND if running.since is not None else None
            running.over.append((running.phase, took))
            running.since = now
        running.phase = phase

    def _detect(self, event: Event) -> float | None:
        if type(event.data) is not IncidentOpened or self._fact is None:
            return None
        return detect_s(self._facts.get(event.data.fault.root), self._fact)

    def view(self, now: int) -> LiveIncident | None:
        """The open incident; None: none is open.

        Args:
            now: the moment, nanoseconds since the epoch.
        """
        running, incident, state = self._running, self._state.incident, self._state
        if running is None or incident is None:
            return None
        fault = incident.fault
        before = [("detect", running.detect)] if running.detect is not None else []
        took = max(0.0, (now - running.since) / SECOND) if running.since is not None else None
        return LiveIncident(
            id=incident.id,
            kind=incident.kind,
            title=title_of(fault.cls, fault.detail),
            summary=short(fault.summary),
            node_names=name_list(fault.nodes),
            seconds=max(0.0, (now - incident.opened) / SECOND),
            phase_clocks=(
                *(PhaseClock(name=name, seconds=seconds, running=False) for name, seconds in (*before, *running.over)),
                PhaseClock(name=running.phase, seconds=took, running=True),
            ),
            doing=short(_doing(state, incident)),
            waits=name_list(
                list(dict.fromkeys(node for order in state.orders.open.values() for node in order.waiting))
            ),
            answers=tuple(running.asked),
            next=tuple(upcoming(state.policy.chain, incident, state)),
            limit_text=_limit(state, now),
        )


def _doing(state: JobState, incident: IncidentState) -> str:
    plan = incident.plan
    if awaits_verdict(incident):
        if state.requests.held:
            return "no policy is asked until the job is resumed"
        asking = [order.command.policy for order in state.orders.open.values() if isinstance(order.command, AskPolicy)]
        return f"{name_list(asking)} is asked" if asking else "the policies are asked"
    if plan is None:
        return ""
    return f"{plan.policy}: {plan.reason}{back_off_text(plan.wait_s, ', ')}"


def _limit(state: JobState, now: int) -> str:
    """The timer of the plan, or of its order, that expires first; its consequence is said as ``timers`` has it."""
    timers = [(at, key, parse(key)) for key, at in all_due(state).items()]
    due = [(at, key, timer) for at, key, timer in timers if timer.of_plan or isinstance(timer, ActionTimer)]
    if not due:
        return ""
    at, _, soonest = min(due, key=lambda each: each[:2])
    when = f"in {format_elapsed((at - now) / SECOND)}" if at > now else "now"
    return f"{when}: {soonest.expiry}"

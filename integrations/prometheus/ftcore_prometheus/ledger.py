"""The use of a job's time, from its log: what was training, and what was lost to what.

| use | time |
|---|---|
| ``productive`` | training that got further than ever before |
| ``recompute`` | training of steps that had been completed before, after a restart |
| ``start`` | from the submission of a run to its first step |
| ``recovery`` | from a fault to the first step after it; its detection, and the step that it cut off, included |
| ``standstill`` | no step is completed, an alert was raised, and no fault was found yet |
| ``paused`` | paused, for an operator or a policy |

Goodput is the productive part of all of it. Time after the end of a run, until the next one is submitted, is not
counted. Each use only grows, as a counter must: training is booked once a later event shows a completed step, since it
may turn out to have been the first seconds of a fault.

Which steps are repeated is known of scripts that report absolute steps (``ftcore.worker``). Of others, all training
counts as productive; of scripts that report no steps, also the time until a fault was detected.
"""

from typing import Final

from ftcore import Event
from ftcore.replay import Incident, JobState

USES: Final = ("productive", "recompute", "start", "recovery", "standstill", "paused")
TRAINING: Final = "training"
QUIET: Final = 30_000_000_000
"""Nanoseconds without a reported step, after which a script is taken for one that reports none."""

_NS: Final = 1e9


class TimeLedger:
    """Books the time between events.

    Attributes:
        seconds: by use.
    """

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(USES, 0.0)
        self._use = ""
        self._since = 0
        self._pending = 0.0
        self._at: int | None = None
        self._best: int | None = None
        self._left: int | None = None
        self._trained_in = 0
        self._began = 0
        self._reports = False

    @property
    def goodput(self) -> float | None:
        """The productive part of the time, 0 to 1; None before any time was booked."""
        total = sum(self.seconds.values())
        return self.seconds["productive"] / total if total > 0 else None

    def feed(self, event: Event, state: JobState, incident: Incident | None) -> None:
        """Book the time up to an event.

        Args:
            event: the event.
            state: the folded state after it.
            incident: the newest incident after it.
        """
        self._book((event.time - self._since) / _NS if self._since else 0.0)
        self._since = event.time
        if event.type == "job.submitted":
            self._best, self._at, self._pending, self._left = None, None, 0.0, None
        use = self._use_of(state)
        if self._use == TRAINING and not self._reports and state.training.reports_steps:
            self._before_first_step(state)
            self._begin(event, state)
        if self._use == TRAINING and use == TRAINING:
            self._confirm(state, event.time - self._began >= QUIET)
        elif self._use == TRAINING:
            self._left = event.time
        if self._left is not None:
            opened = incident if incident is not None and incident.opened >= self._left else None
            if opened is not None or event.time > self._left or use == TRAINING:
                self._settle(state, opened if opened is not None and opened.kind == "fault" else None)
        if use == TRAINING and self._use != TRAINING:
            self._begin(event, state)
        if use == TRAINING and (state.training.reports_steps or event.time - self._began >= QUIET):
            self._trained_in = state.run
        self._use, self._reports = use, state.training.reports_steps

    def _before_first_step(self, state: JobState) -> None:
        """The script turned out to report steps, so the time since its workers started was no training yet."""
        self.seconds["recovery" if self._trained_in == state.run else "start"] += self._pending
        self._pending = 0.0

    def _begin(self, event: Event, state: JobState) -> None:
        self._at, self._began = state.training.step, event.time
        self._note_best(state)

    def _book(self, passed: float) -> None:
        if self._use == TRAINING:
            self._pending += passed
        elif self._use:
            self.seconds[self._use] += passed

    def _use_of(self, state: JobState) -> str:
        """What the time after the event is used for; empty: nothing that counts."""
        if not state.run or state.ending is not None:
            return ""
        if str(state.phase) == "paused":
            return "paused"
        if _trains(state):
            return "standstill" if state.training.standstill is not None else TRAINING
        return "recovery" if self._trained_in == state.run else "start"

    def _confirm(self, state: JobState, lasting: bool) -> None:
        """Book the training up to a completed step; without steps, all of it once it lasts."""
        training = state.training
        if not training.reports_steps:
            if lasting:
                self.seconds["productive"] += self._pending
                self._pending = 0.0
            return
        step, since = training.step, self._at
        if step is None or since is None or step <= since:
            return
        again = 0
        if training.step_absolute and self._best is not None:
            again = min(step - since, max(0, self._best - since))
        repeated = self._pending * again / (step - since)
        self.seconds["recompute"] += repeated
        self.seconds["productive"] += self._pending - repeated
        self._pending, self._at = 0.0, step
        self._note_best(state)

    def _note_best(self, state: JobState) -> None:
        if state.training.step is not None and state.training.step_absolute:
            self._best = max(self._best or 0, state.training.step)

    def _settle(self, state: JobState, fault: Incident | None) -> None:
        """Book the end of the training that was left: completed steps, and what a fault cut off or took to detect."""
        detect = min(self._pending, (fault.phases.detect or 0.0) if fault is not None else 0.0)
        self._pending -= detect
        self._confirm(state, True)
        self.seconds["recovery" if fault is not None else "productive"] += self._pending
        self.seconds["recovery"] += detect
        self._pending, self._left = 0.0, None


def _trains(state: JobState) -> bool:
    """Whether every member of the world has completed a step of its round, and no fault has ended it.

    Warnings and requests leave the workers running until a round is planned, and so do deferred departures. A script
    that reports no steps trains once its workers run: that they stay alive is then verified for a while.
    """
    world, incident = state.rounds.world, state.incident
    if world is None or not world.started or str(state.phase) not in ("running", "recovering", "stuck"):
        return False
    reports = state.training.reports_steps
    if incident is not None and incident.kind == "fault":
        harmless = ("deferred", "resolved", "exhausted", *(() if reports else ("verifying",)))
        if str(incident.phase) not in harmless:
            return False
    return world.stepped >= len(world.members) or not reports

"""The training of a campaign: work done, saved and lost, and where the time of the nodes went; all in closed steps.

Work is counted in node-seconds of undisturbed training. Between two faults nothing happens one step at a time: so much
time is so much work and so many checkpoints. Work that was done before (lost, and computed again) counts as
``recompute`` until it passes what was ever reached.

House rules: every node-second of the campaign is booked under exactly one cause, so the causes add up to nodes times
time; a test says so.
"""

from collections.abc import Callable

PRODUCTIVE = "productive"
CAUSES = (PRODUCTIVE, "checkpoint", "detect", "decide", "restart", "load", "recompute", "idle", "paused")
"""Where time goes. ``idle``: nodes that are missing, wait for missing ones, or for a slower one; or no job runs."""

SAVED_MAX = 1024
"""Checkpoints remembered; no plan goes back further."""


class Training:
    """Work and its ledger.

    Args:
        nodes: nodes that the job wants; the work of all of them for one second is ``nodes`` node-seconds.
        interval_s: training between two checkpoints; 0: none is ever saved.
        cost_s: how long training stands still for one.
        step_s: one step of all nodes.
        on_saved: called whenever a checkpoint is committed, with its step.
    """

    def __init__(
        self, nodes: int, *, interval_s: float, cost_s: float, step_s: float, on_saved: Callable[[int], None]
    ) -> None:
        self.nodes = nodes
        self.members = nodes
        self.speed = 1.0
        self.under_way = False
        self.work = self.highest = 0.0
        self.ledger = dict.fromkeys(CAUSES, 0.0)
        self._interval, self._cost, self._per_step = interval_s, cost_s, nodes * step_s
        self._on_saved = on_saved
        self._saved = [0.0]
        self._until = interval_s
        self._writing = 0.0

    @property
    def step(self) -> int:
        """Steps completed."""
        return int(self.work / self._per_step + 1e-9)

    def book(self, cause: str, seconds: float) -> None:
        """All nodes spend time on a cause other than training."""
        self.ledger[cause] += seconds * self.nodes

    def until_saved(self) -> float | None:
        """Seconds of training until the next checkpoint is committed; None if none ever is."""
        if self._interval <= 0:
            return None
        return self._writing if self._writing > 0 else self._until + self._cost

    def train(self, seconds: float) -> None:
        """Let the members train, and save when it is time to."""
        ledger, members = self.ledger, self.members
        ledger["idle"] += seconds * (self.nodes - members)
        rate = members * self.speed
        while seconds > 1e-12:
            if self._writing > 0:
                spent = min(seconds, self._writing)
                ledger["checkpoint"] += spent * members
                self._writing -= spent
                if self._writing <= 1e-9:
                    self._commit()
            else:
                spent = min(seconds, self._until) if self._interval > 0 else seconds
                self._gain(spent * rate)
                ledger["idle"] += spent * (members - rate)
                self._until -= spent
                if self._interval > 0 and self._until <= 1e-9:
                    self._writing = self._cost
                    if self._cost <= 0:
                        self._commit()
            seconds -= spent

    def _gain(self, gained: float) -> None:
        again = min(gained, max(0.0, self.highest - self.work))
        self.ledger["recompute"] += again
        self.ledger[PRODUCTIVE] += gained - again
        self.work += gained
        self.highest = max(self.highest, self.work)

    def _commit(self) -> None:
        self.save()
        self._on_saved(self.step)

    def save(self) -> None:
        """A checkpoint of the present work is committed."""
        self._saved.append(self.work)
        del self._saved[:-SAVED_MAX]
        self._writing, self._until = 0.0, self._interval

    def go_back(self, step: int | None = None) -> None:
        """Resume from a checkpoint: the newest, or the newest that is not behind a step.

        Args:
            step: what was saved behind it is no longer resumed from.
        """
        if step is not None:
            kept = [work for work in self._saved if int(work / self._per_step + 1e-9) <= step]
            self._saved = kept or [0.0]
        self.work = self._saved[-1]
        self._writing, self._until = 0.0, self._interval

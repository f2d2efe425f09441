"""Model of training in a campaign: work completed, saved and lost, and the ledger of the nodes' time.

Work is measured in node-seconds of undisturbed training. Between two faults, work and checkpoints are computed from
elapsed time, not step by step. Repeated work counts as ``recompute`` until it exceeds the highest work reached.

Every node-second is booked to exactly one of the uses that the goodput of a real job has, so they add up to nodes times
time; a test verifies this. ``idle``: nodes that are missing, wait for missing or slower nodes, or no job runs.
"""

from collections.abc import Callable

from ftcore.replay.spans import PRODUCTIVE, USES

SAVED_MAX = 1024
"""Checkpoints kept; no plan rolls back further."""


class Training:
    """Work and ledger.

    Args:
        nodes: nodes of the job; together they do ``nodes`` node-seconds of work per second.
        interval_s: seconds of training between two checkpoints; 0: no checkpoints.
        cost_s: seconds for which a checkpoint blocks training.
        step_s: seconds of a step.
        on_saved: called with the step of each committed checkpoint.
    """

    def __init__(
        self, nodes: int, *, interval_s: float, cost_s: float, step_s: float, on_saved: Callable[[int], None]
    ) -> None:
        self.nodes = nodes
        self.members = nodes
        self.speed = 1.0
        self.under_way = False
        self.work = self.highest = 0.0
        self.ledger = dict.fromkeys(USES, 0.0)
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
        """Book time of all nodes to a cause other than training."""
        self.ledger[cause] += seconds * self.nodes

    def until_saved(self) -> float | None:
        """Seconds of training until the next checkpoint is committed; None without checkpoints."""
        if self._interval <= 0:
            return None
        return self._writing if self._writing > 0 else self._until + self._cost

    def train(self, seconds: float) -> None:
        """Let the members train for some seconds, checkpoints included."""
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
        """Commit a checkpoint of the current work."""
        self._saved.append(self.work)
        del self._saved[:-SAVED_MAX]
        self._writing, self._until = 0.0, self._interval

    def roll_back(self, step: int | None = None) -> None:
        """Roll back to the newest checkpoint.

        Args:
            step: discard checkpoints after this step; None: none.
        """
        if step is not None:
            kept = [work for work in self._saved if int(work / self._per_step + 1e-9) <= step]
            self._saved = kept or [0.0]
        self.work = self._saved[-1]
        self._writing, self._until = 0.0, self._interval

"""Step boundaries that the training thread has passed, and which of them the device has reached.

The training thread queues work for a device and goes on. If a peer dies, the optimizer's step is therefore often queued
behind a collective that does not end: the training thread has passed it, but the device still has the state of the
boundary before. That state is complete as long as the device has not reached the optimizer's step.

House rules: nothing here waits.
"""

from collections import deque
from typing import Any, Final

import torch

from ftcore.worker.state.collect import StateMoment

KEPT: Final = 3
"""Boundaries that are known if a device is used: a save in memory lets the training thread be one step ahead of it."""


class PassedBoundary:
    """A step boundary.

    Args:
        moment: what forward and backward change.
        after: events of CUDA streams after which the tensors have their values, by device index.
        steps: how many steps of optimizers there were before.
    """

    def __init__(self, moment: StateMoment, after: dict[int, Any], steps: int) -> None:
        self.moment, self.after, self.steps = moment, after, steps
        self._changes: Any = None

    def is_reached(self) -> bool:
        """Whether the devices have reached it."""
        return all(event.query() for event in self.after.values())

    def changes_now(self, device: int) -> None:
        """Note that what the training thread queues next changes the state."""
        if self._changes is None and self.after and not torch.cuda.is_current_stream_capturing():
            self._changes = torch.cuda.current_stream(device).record_event()

    def is_held(self) -> bool:
        """Whether its device has reached it, and not yet what changes the state after it."""
        is_before = self._changes is not None and not self._changes.query()
        return is_before and self.moment.collected.device in self.after and self.is_reached()


class PassedBoundaries:
    """The last boundaries, and whether an optimizer has stepped since the newest of them.

    Attributes:
        stepped: whether an optimizer has stepped between the last two boundaries, or before the only one.
    """

    def __init__(self) -> None:
        self._last: deque[PassedBoundary] = deque(maxlen=KEPT)
        self._steps = 0
        self._in_step = False
        self.stepped = False

    @property
    def newest(self) -> PassedBoundary | None:
        """The last boundary; None: there was none."""
        return self._last[-1] if self._last else None

    @property
    def has_stepped(self) -> bool:
        """Whether an optimizer has stepped since the newest boundary."""
        return self._steps > (self.newest.steps if self.newest is not None else 0)

    def is_at(self, step: int) -> bool:
        """Whether the training thread is at the boundary of a step."""
        newest = self.newest
        return newest is not None and (newest.moment.step, newest.steps) == (step, self._steps)

    def add(self, moment: StateMoment, after: dict[int, Any]) -> PassedBoundary:
        """Add the boundary that the training thread is at."""
        newest, boundary = self.newest, PassedBoundary(moment, after, self._steps)
        self.stepped = self._steps > (newest.steps if newest is not None else 0)
        if not after:
            self._last.clear()  # no device is behind: only the newest one counts
        self._last.append(boundary)
        return boundary

    def begin_step(self, device: int) -> None:
        """An optimizer's step begins, on a device or -1."""
        self._in_step = True
        if device >= 0 and self._last:
            self._last[-1].changes_now(device)

    def end_step(self) -> None:
        """An optimizer's step has been made, or queued."""
        self._in_step = False
        self._steps += 1

    def why_passed(self) -> str:
        """Why the training thread is not at the state of the newest boundary any more; empty: it is."""
        newest = self.newest
        if newest is None:
            return "no step boundary was reached since the start"
        if self._in_step:
            return "an optimizer's step is in progress"
        if newest.steps != self._steps:
            return f"an optimizer has stepped since the boundary of step {newest.moment.step}"
        return ""

    def held(self) -> PassedBoundary | None:
        """The newest boundary whose state a device still has, because it has not reached what follows."""
        return next((each for each in reversed(self._last) if each.is_held()), None)

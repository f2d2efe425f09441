"""Measures the phases of a step on a CUDA device, by events on its stream.

The events of a step are read in a later one, once the last of them has completed: nothing here synchronizes. A step in
four is measured, so that the events cost a few microseconds per step. Consecutive events divide the whole time line of
the stream, idle time included: a host that is too slow to keep the device busy is as visible as a slow device.

Where the compute stream waits for a collective (``Work.wait``, FSDP's ``wait_event``), an event before and one after it
enclose ``communication``.

House rules: an error of the device's API ends the measuring of the device, never the training.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

from ftcore.shm.phases import COMMUNICATION, PHASES

SAMPLE_EVERY: Final = 4
"""One step in so many is measured; the same ones on all ranks."""

PENDING_MAX: Final = 4
"""Measured steps whose events have not completed; beyond that, no further step is measured."""

_UNKNOWN: Final = -1
"""Ends an interval that belongs to the phase that ends next."""


class DevicePhases:
    """The phases of sampled steps, in device time.

    Args:
        make_event: makes an event with timing.
        is_capturing: whether the stream is being captured into a graph, where no event may be recorded.
    """

    def __init__(self, make_event: Callable[[], Any], is_capturing: Callable[[], bool]) -> None:
        self._make_event, self._is_capturing = make_event, is_capturing
        self._free: list[Any] = []
        self._marks: list[tuple[int, Any]] = []
        self._pending: list[list[tuple[int, Any]]] = []
        self._steps = 0
        self.sampling = False
        """Whether the current step is measured."""
        self.broken = False
        """Whether the device's API has failed; nothing is measured any more."""

    def mark(self, phase: int) -> None:
        """Record the end of a phase on the current stream."""
        try:
            if self._is_capturing():
                self._drop()
                return
            event = self._free.pop() if self._free else self._make_event()
            event.record()
            self._marks.append((phase, event))
        except Exception:
            self._fail()

    def wait_begins(self) -> None:
        """Record that the current stream waits for other ranks from here on."""
        self.mark(_UNKNOWN)

    def wait_ends(self) -> None:
        """Record that the current stream waits no more."""
        self.mark(COMMUNICATION)

    def step_ended(self) -> list[tuple[int, ...]]:
        """End a step; returns the phases in nanoseconds of earlier steps whose events have completed."""
        self._steps += 1
        if self.broken:
            return []
        if self.sampling and len(self._marks) > 1:
            self._pending.append(self._marks)
        self._marks = []
        self.sampling = self._steps % SAMPLE_EVERY == 0 and len(self._pending) < PENDING_MAX
        if self.sampling:
            self.mark(_UNKNOWN)  # the beginning of the step
        try:
            return self._completed()
        except Exception:
            self._fail()
            return []

    def _completed(self) -> list[tuple[int, ...]]:
        found = []
        while self._pending and self._pending[0][-1][1].query():
            marks = self._pending.pop(0)
            found.append(_divided(marks))
            self._free.extend(event for _, event in marks)
        return found

    def _drop(self) -> None:
        """Give up the measuring of this step."""
        self._free.extend(event for _, event in self._marks)
        self._marks, self.sampling = [], False

    def _fail(self) -> None:
        self.broken, self.sampling = True, False
        self._marks, self._pending, self._free = [], [], []


def _divided(marks: list[tuple[int, Any]]) -> tuple[int, ...]:
    """The phases between the marks of a step; events give milliseconds."""
    phases, carried, before = [0] * len(PHASES), 0, marks[0][1]
    for phase, event in marks[1:]:
        took = max(0, int(before.elapsed_time(event) * 1e6))
        before = event
        if phase == _UNKNOWN:
            carried += took
        elif phase == COMMUNICATION:
            phases[COMMUNICATION] += took
        else:
            phases[phase] += took + carried
            carried = 0
    return tuple(phases)


def find_device() -> DevicePhases | None:
    """Return a meter of the CUDA device that this process uses; None: it uses none."""
    cuda: Any = sys.modules.get("torch.cuda")
    if cuda is None or not cuda.is_initialized():
        return None
    return DevicePhases(functools.partial(cuda.Event, enable_timing=True), cuda.is_current_stream_capturing)

"""Measures the phases of a step in the training process.

Hooks call ``mark`` where a phase ends (``_phase_hooks.py``). The time since the last mark belongs to that phase, but
for the time in which the main thread waited for other ranks: that is ``communication``. After some steps the medians
are written to the page (``shm/phases.py``).

On a device the host runs ahead, and its times say little. There, events on the device's stream measure the same phases
in some of the steps (``_device_phases.py``), and replace the host's times.

House rules: an error here never reaches the training. A mark costs less than a microsecond. Marks and waits of other
threads than the one that ends steps are ignored.
"""

import statistics
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Final, Protocol

from ftcore.shm.phases import COMMUNICATION, OTHER, PHASES, PhaseWriter

BLOCK_STEPS: Final = 10
BLOCK_S: Final = (0.25, 5.0)
"""A block ends after ``BLOCK_STEPS`` steps but takes at least and at most so many seconds, except for one long step."""

SAMPLES_MAX: Final = 10
"""Steps of one block that are measured; a block of very short steps has more."""

SHORT_NS: Final = 50_000_000
"""Of shorter steps every second one is measured, so that the hooks cost less."""

_LEAST_NS, _MOST_NS = (int(each * 1e9) for each in BLOCK_S)


class DeviceMeter(Protocol):
    """Measures phases on a device; see ``_device_phases.DevicePhases``."""

    sampling: bool
    broken: bool

    def mark(self, phase: int) -> None:
        """A phase ends."""

    def wait_begins(self) -> None:
        """The stream waits for other ranks from here on."""

    def wait_ends(self) -> None:
        """The stream's wait ends."""

    def step_ended(self) -> list[tuple[int, ...]]:
        """A step ends. Returns the phases in nanoseconds of earlier steps whose events have completed."""


class PhaseTimer:
    """Adds up the phases of each step, and writes the medians of some steps.

    Args:
        writer: writes them; None: nothing is measured.
        find_device: returns the device's meter once there is one; asked at the end of each block.
    """

    def __init__(
        self, writer: PhaseWriter | None, find_device: Callable[[], DeviceMeter | None] = lambda: None
    ) -> None:
        self._writer = writer
        self._find_device = find_device
        self.device: DeviceMeter | None = None
        self._thread = 0
        """The thread that ends steps, while a step is measured; else 0."""
        self._at = 0
        self._waited = 0
        self._sums = [0] * len(PHASES)
        self._shared = False
        self._began = self._block_at = 0
        self._samples: list[tuple[int, ...]] = []
        self._steps = 0

    def new_round(self, writer: PhaseWriter | None) -> None:
        """Measure the steps of the next round; the time between the rounds is no step.

        Args:
            writer: writes on its page.
        """
        self._writer, self._thread, self._steps, self._samples = writer, 0, 0, []
        self._began = self._block_at = 0

    @property
    def measures(self) -> bool:
        """Whether the current step is measured."""
        return self._thread != 0

    def mark(self, phase: int, now: int) -> None:
        """End a phase; the next one begins.

        Args:
            phase: its index in ``PHASES``.
            now: monotonic nanoseconds.
        """
        if self._thread != get_ident():
            return
        self._sums[phase] += now - self._at - self._waited
        self._at, self._waited = now, 0
        if self.device is not None:
            self.device.mark(phase)

    def waited(self, nanoseconds: int) -> None:
        """Add time in which the calling thread waited for other ranks."""
        if self._thread == get_ident():
            self._waited += nanoseconds
            self._sums[COMMUNICATION] += nanoseconds
            self._shared = True

    def passed_back(self) -> None:
        """Note a backward pass: the script's waiting for other ranks is visible, so its own work can be told apart."""
        self._shared = True

    def step_ended(self, now: int) -> tuple[int, int] | None:
        """End a step; returns a measured step's own work and whole time in nanoseconds.

        None: it was not measured, or nothing in it shows what is work and what is waiting.
        """
        if self._writer is None:
            return None
        thread, began = get_ident(), self._began
        found = self._measured(now) if self._thread == thread else ()
        if self.device is not None:
            found = self.device.step_ended()
        self._samples.extend(found)
        self._began = now
        if not self._block_at:
            self._block_at = now
        elif self._is_full(now):
            self._write(self._writer)
            self._block_at = now
        if self._next(now - began):
            self._thread, self._at, self._waited = thread, now, 0
            self._sums, self._shared = [0] * len(PHASES), False
        else:
            self._thread = 0
        if not found:
            return None
        whole = sum(found[-1])
        return whole - found[-1][COMMUNICATION], whole

    def _measured(self, now: int) -> Sequence[tuple[int, ...]]:
        """The phases of the step that ends, if they are of use."""
        self.mark(OTHER, now)
        phases = tuple(self._sums)
        return (phases,) if self._shared and min(phases) >= 0 and sum(phases) > phases[COMMUNICATION] else ()

    def _next(self, whole: int) -> bool:
        """Whether to measure the step that begins, after one that took so many nanoseconds."""
        if self.device is not None:
            return self.device.sampling
        return len(self._samples) < SAMPLES_MAX and (whole >= SHORT_NS or self._steps % 2 == 0)

    def _is_full(self, now: int) -> bool:
        self._steps += 1
        took = now - self._block_at
        return (self._steps >= BLOCK_STEPS and took >= _LEAST_NS) or took >= _MOST_NS

    def _write(self, writer: PhaseWriter) -> None:
        samples, steps, device = self._samples, self._steps, self.device
        self._samples, self._steps = [], 0
        if samples:
            wholes = [sum(each) for each in samples]
            owns = [whole - each[COMMUNICATION] for whole, each in zip(wholes, samples, strict=True)]
            phases = tuple(_median(column) for column in zip(*samples, strict=True))
            writer.wrote(steps, device is not None, _median(wholes), _median(owns), phases)
        if device is None:
            self.device = self._find_device()
        elif device.broken:
            self.device, self._find_device = None, lambda: None


def _median(values: Sequence[int]) -> int:
    return int(statistics.median(values))

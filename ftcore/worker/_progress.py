"""Writes this process's progress page: completed steps, findings of the detectors, complete checkpoints.

The optimizer hook counts steps until the script calls ``report``. Outside ``ftrun`` nothing is written. The detectors
are imported at the first reported loss or norm.
"""

import math
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from ftcore.shm.boundary import RETRIES, BoundaryWords
from ftcore.shm.page import PAGE_FD_ENV, PageWriter, is_page
from ftcore.shm.sections import SectionWords
from ftcore.worker import _environment
from ftcore.worker._device_phases import find_device
from ftcore.worker._phases import DeviceMeter, PhaseTimer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ftcore.worker._watch import ProcessDetectors

LOSS_LIMIT = 8.0
NORM_LIMIT = 10.0
WARMUP_STEPS = 100
"""Copies of the detectors' defaults, held equal by a test: the detectors are imported only when needed."""

_Limits: TypeAlias = "tuple[float | None, float | None, float | None, int]"


class ProgressCounter:
    """Counts completed steps on a page.

    Args:
        page: the page; None: nothing is written.
        find_device: see ``PhaseTimer``.

    Attributes:
        phases: measures the phases of steps.
    """

    def __init__(self, page: PageWriter | None, find_device: "Callable[[], DeviceMeter | None]" = lambda: None) -> None:
        self._page = page
        self.phases = PhaseTimer(page.phases if page is not None else None, find_device)
        self._role_declared = False
        self._steps = 0
        self._step = 0
        self._absolute = False
        self._watch: ProcessDetectors | None = None
        self._limits: tuple[float | None, float | None, float | None, int] = (
            LOSS_LIMIT,
            NORM_LIMIT,
            None,
            WARMUP_STEPS,
        )
        self._values: tuple[float | None, float | None] = (None, None)
        self.reported = False
        self.on_training: Callable[[], None] | None = None
        """Called at each sign of training."""

    @property
    def steps(self) -> int:
        """Steps completed since the process started."""
        return self._steps

    @property
    def section_words(self) -> SectionWords | None:
        """The page's words of sections; None: there are none."""
        return self._page.sections if self._page is not None else None

    @property
    def boundary_words(self) -> BoundaryWords | None:
        """The page's words of step boundaries; None: there are none."""
        return self._page.boundary if self._page is not None else None

    def new_round(self, page: PageWriter) -> None:
        """Count the steps of the next round on its page.

        Args:
            page: the page.
        """
        if self._page is not None:
            page.adopt(self._page)
        self._page, self._steps = page, 0
        self.phases.new_round(page.phases)
        if self._watch is not None:
            self._watch.use(page.notes)

    def stepped(self) -> None:
        """Count a step of the optimizer; not counted once the script reports its steps."""
        if self._page is None:
            return
        if self.reported:
            self.active(time.monotonic_ns())
            return
        if self.on_training is not None:
            self.on_training()
        self._steps += 1
        self._step += 1
        mono = time.monotonic_ns()
        self._pace(mono)
        self._page.write(self._steps, self._step, self._absolute, mono, None, None)

    def active(self, mono: int) -> None:
        """Record a sign of progress that is not counted as a step: another optimizer's step, or a backward pass."""
        if self._page is not None:
            if self.on_training is not None:
                self.on_training()
            self._page.active(mono)

    def works_as(self, role: str, declared: bool = False) -> None:
        """Record which other ranks do the same work: those with the same role. A declared one stays."""
        if self._page is not None and self._page.phases is not None and (declared or not self._role_declared):
            self._role_declared = declared
            self._page.phases.role(role, declared)

    def ended(self) -> None:
        """Record that the script has finished without an error."""
        if self._page is not None:
            self._page.ended(time.monotonic_ns())

    def times_out(self, seconds: float) -> None:
        """Record the timeout of the script's process group."""
        if self._page is not None and 0 < seconds < 1e9:
            self._page.timeout(int(seconds * 1e9))

    def _pace(self, mono: int) -> None:
        """Record how long the step took, and how much of that was this rank's own work; call it once per step."""
        found = self.phases.step_ended(mono)
        if self._page is not None and found is not None:
            self._page.paced(*found)

    def resumed_at(self, step: int) -> None:
        """Continue counting after the step with this number. If it is older, the detectors forget what followed it."""
        if step < self._step:
            self._watch = None
        self._step = step
        self._absolute = True

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """Record a step that the script reports as complete."""
        counted = self._steps > 0 and not self.reported  # the optimizer hook has counted this step already
        again = self.reported and self._absolute and step == self._step and self._steps > 0
        self.reported = True
        if self._page is None:
            return
        if self.on_training is not None:
            self.on_training()
        if not counted and not again:
            self._steps += 1
        self._step = step
        self._absolute = True
        mono = time.monotonic_ns()
        if not counted:
            self._pace(mono)
        before = self._values if again else (None, None)  # a loss that was reported before the end of its step stays
        self._values = (before[0] if loss is None else loss, before[1] if grad_norm is None else grad_norm)
        self._page.write(self._steps, step, True, mono, *self._values)
        if loss is not None or grad_norm is not None:
            if self._watch is None:
                self.watch(*self._limits)
            if self._watch is not None:
                self._watch.observe(step, mono, loss, grad_norm)

    def watch(
        self, loss_limit: float | None, norm_limit: float | None, norm_threshold: float | None, warmup_steps: int
    ) -> None:
        """Use these settings from now on; see ``_watch.ProcessDetectors`` for arguments and errors."""
        from ftcore.worker._watch import ProcessDetectors

        notes = self._page.notes if self._page is not None else None
        self._limits = (loss_limit, norm_limit, norm_threshold, warmup_steps)
        threshold = self._threshold_of_policy() if norm_threshold is None else norm_threshold
        self._watch = ProcessDetectors(notes, loss_limit, norm_limit, threshold, warmup_steps)

    def _threshold_of_policy(self) -> float | None:
        """The threshold of a policy that has abnormal steps computed again, if this process cannot stop its steps.

        Then each is reported, and the log shows why the policy does nothing.
        """
        words = self.boundary_words
        return None if words is not None and words.able & RETRIES else _environment.norm_threshold()

    def saved(self, step: int, path: str, seconds: float, kept: int) -> None:
        """Record a complete checkpoint of the script."""
        if self._page is not None and self._page.notes is not None:
            self._page.notes.saved(step, path, seconds, kept)


def _open() -> ProgressCounter:
    text = os.environ.get(PAGE_FD_ENV, "")
    if not text.isdigit() or not is_page(int(text)):
        return ProgressCounter(None)
    return ProgressCounter(PageWriter(int(text)), find_device)


_opened: ProgressCounter | None = None


def progress() -> ProgressCounter:
    """Return this process's progress, opened on first use."""
    global _opened
    if _opened is None:
        _opened = _open()
    return _opened


def report(step: int, loss: float | None = None, grad_norm: float | None = None) -> None:
    """Report a completed step; replaces the counting of optimizer steps. Does nothing outside ``ftrun``.

    Detectors check the loss and the norm of every step, with the limits set by ``watch``. A finding is recorded as
    ``fault.observed``.

    Args:
        step: its number, counted from the start of the training (not of the process).
        loss: its loss, if known; NaN or infinity is a finding.
        grad_norm: its gradient norm before any clipping, if known.
    """
    progress().report(int(step), None if loss is None else float(loss), None if grad_norm is None else float(grad_norm))


def watch(
    *,
    loss_limit: float | None = LOSS_LIMIT,
    norm_limit: float | None = NORM_LIMIT,
    norm_threshold: float | None = None,
    warmup_steps: int = WARMUP_STEPS,
) -> None:
    """Set the limits for losses and gradient norms, if the defaults do not fit; call it before the first ``report``.

    ``ftctl spikes`` tests limits on a recorded curve and suggests limits. A call resets the detectors.

    Args:
        loss_limit: a loss that many robust standard deviations above the median of the last 40 is a spike; a loss that
            is not finite is always reported. None: losses are not checked.
        norm_limit: the same for gradient norms. None: norms are not checked for spikes.
        norm_threshold: a gradient norm at or over this is always abnormal. None: no threshold.
        warmup_steps: below this step only values that are not finite, or over the threshold, are reported.

    Raises:
        ValueError: a limit or the threshold is not over 0, or ``warmup_steps`` is below 0.
    """
    progress().watch(loss_limit, norm_limit, norm_threshold, warmup_steps)


def saved(step: int, path: str = "", *, seconds: float = 0.0, kept: int = 0) -> None:
    """Report that the checkpoint of a step is complete on storage, so that a rollback may use it.

    Call it on one rank, after all ranks have written their part. Does nothing outside ``ftrun``.

    Args:
        step: the step, counted as for ``report``: the checkpoint has the state after it.
        path: its location, for display; the first 280 bytes are kept.
        seconds: how long training was paused for it, if known.
        kept: how many checkpoints the script keeps, this one included; a rollback uses no older one. 0:
            ``job: checkpoints: kept`` of the policy file, else the last 64.

    Raises:
        ValueError: a number is below 0 or not finite.
    """
    if step < 0 or kept < 0 or not 0 <= seconds < math.inf:
        raise ValueError(f"expected step, seconds and kept of at least 0; found {step}, {seconds}, {kept}")
    progress().saved(int(step), str(path), float(seconds), int(kept))

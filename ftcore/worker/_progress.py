"""This process's progress page: who counts its steps (the optimizer hook, until the script calls ``report``), what the
detectors make of the figures reported, and which checkpoints are complete.

Everything here does nothing outside ``ftrun``. The detectors are imported with the first figure.
"""

import math
import os
import time
from typing import TYPE_CHECKING

from ftcore.shm.page import PAGE_FD_ENV, PageWriter, is_page

if TYPE_CHECKING:
    from ftcore.worker._watch import Watch

LOSS_LIMIT = 8.0
NORM_LIMIT = 10.0
WARMUP_STEPS = 100
"""The detectors' own figures, which a test compares: they are not imported before they are needed."""


class Progress:
    """Counts completed steps into a page.

    Args:
        page: where the counts go; None: nowhere.
    """

    def __init__(self, page: PageWriter | None) -> None:
        self._page = page
        self._steps = 0
        self._step = 0
        self._absolute = False
        self._watch: Watch | None = None
        self._stepped_at = 0
        self._waited = 0
        self.reported = False

    def stepped(self) -> None:
        """The optimizer completed a step; ignored once the script reports by itself."""
        if self._page is None:
            return
        if self.reported:
            self.active(time.monotonic_ns())
            return
        self._steps += 1
        self._step += 1
        mono = time.monotonic_ns()
        self._pace(mono)
        self._page.write(self._steps, self._step, self._absolute, mono, None, None)

    def active(self, mono: int) -> None:
        """A sign of progress that is no step of its own: another optimizer's, or a backward pass."""
        if self._page is not None:
            self._page.active(mono)

    def waited(self, nanoseconds: int) -> None:
        """So much of the step under way was spent in a backward pass, where ranks wait for each other."""
        self._waited += nanoseconds

    def ended(self) -> None:
        """The script came to its end without an error."""
        if self._page is not None:
            self._page.ended(time.monotonic_ns())

    def times_out(self, seconds: float) -> None:
        """The process group of the script has this timeout."""
        if self._page is not None and 0 < seconds < 1e9:
            self._page.timeout(int(seconds * 1e9))

    def _pace(self, mono: int) -> None:
        """Say how long the step took, and how much of that was this rank's own work; once a step."""
        whole, waited = mono - self._stepped_at, self._waited
        if self._page is not None and self._stepped_at and 0 < waited <= whole:
            self._page.paced(whole - waited, whole)
        self._stepped_at, self._waited = mono, 0

    def resumed_at(self, step: int) -> None:
        """The training completed ``step`` steps before the next one that is counted."""
        self._step = step
        self._absolute = True

    def report(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        """The script completed the step with this number."""
        counted = self._steps > 0 and not self.reported  # the optimizer hook has counted this step already
        self.reported = True
        if self._page is None:
            return
        if counted:
            pass
        elif step != self._step or not self._absolute or not self._steps:
            self._steps += 1
        self._step = step
        self._absolute = True
        mono = time.monotonic_ns()
        if not counted:
            self._pace(mono)
        self._page.write(self._steps, step, True, mono, loss, grad_norm)
        if loss is not None or grad_norm is not None:
            if self._watch is None:
                self.watch(LOSS_LIMIT, NORM_LIMIT, None, WARMUP_STEPS)
            if self._watch is not None:
                self._watch.observe(step, mono, loss, grad_norm)

    def watch(
        self, loss_limit: float | None, norm_limit: float | None, norm_threshold: float | None, warmup_steps: int
    ) -> None:
        """Watch with these settings from here on; see ``_watch.Watch``, also for what is raised."""
        from ftcore.worker._watch import Watch

        notes = self._page.notes if self._page is not None else None
        self._watch = Watch(notes, loss_limit, norm_limit, norm_threshold, warmup_steps)

    def saved(self, step: int, path: str, seconds: float, kept: int) -> None:
        """A checkpoint of the script's is complete."""
        if self._page is not None and self._page.notes is not None:
            self._page.notes.saved(step, path, seconds, kept)


def _open() -> Progress:
    text = os.environ.get(PAGE_FD_ENV, "")
    if not text.isdigit() or not is_page(int(text)):
        return Progress(None)
    return Progress(PageWriter(int(text)))


_opened: Progress | None = None


def progress() -> Progress:
    """This process's progress, opened on first use."""
    global _opened
    if _opened is None:
        _opened = _open()
    return _opened


def report(step: int, loss: float | None = None, grad_norm: float | None = None) -> None:
    """Say that a step is complete. Does nothing outside ``ftrun``. Takes over from the counting of optimizer steps.

    Losses and norms are watched at every step; ``watch`` says how. What is found becomes ``fault.observed``.

    Args:
        step: its number, counted from the start of the training (not of the process).
        loss: its loss, if known; one that is not a number is a finding.
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
    """Say what is wrong with a loss or a gradient norm, where the defaults do not fit; before the first ``report``.

    ``ftctl spikes`` tries limits on a recorded curve and suggests them. What is learned so far is forgotten.

    Args:
        loss_limit: a loss at least so many robust standard deviations above the median of the last 40 is a spike; one
            that is not a number is told always. None: losses are not watched.
        norm_limit: the same of gradient norms; None: they are not watched for spikes.
        norm_threshold: a gradient norm at or over this is abnormal, whatever came before; None: no threshold.
        warmup_steps: below this step only what is not a number, or over the threshold, is told.

    Raises:
        ValueError: a limit or the threshold is not over 0, or ``warmup_steps`` is below 0.
    """
    progress().watch(loss_limit, norm_limit, norm_threshold, warmup_steps)


def saved(step: int, path: str = "", *, seconds: float = 0.0, kept: int = 0) -> None:
    """Say that the checkpoint of a step is complete on storage: a rollback may go back to it from now on.

    One rank says it, after all have written their part. Does nothing outside ``ftrun``.

    Args:
        step: the step, counted as for ``report``: the checkpoint holds the state after it.
        path: where it lies, for people; the first 280 bytes are kept.
        seconds: how long training stood still for it, if known.
        kept: how many checkpoints the script keeps, this one included; older ones are not gone back to. 0: as
            ``checkpoints_kept`` of the policy file says, else the last 64.

    Raises:
        ValueError: a figure is below 0 or not finite.
    """
    if step < 0 or kept < 0 or not 0 <= seconds < math.inf:
        raise ValueError(f"expected step, seconds and kept from 0 on; found {step}, {seconds}, {kept}")
    progress().saved(int(step), str(path), float(seconds), int(kept))

"""Runs the detectors in the training process: checks every reported step, and writes findings to the page.

House rules: an error here never interrupts the training; the detectors are then switched off. A step costs
microseconds. The detectors are pure and import only the standard library (``ftcore.faults.detectors``); this module is
imported on first use, under ``ftrun``.
"""

from ftcore.faults.detectors.finding import Finding
from ftcore.faults.detectors.loss import LossDetector
from ftcore.faults.detectors.norm import NormSpike, NormThreshold
from ftcore.shm.notes import NotesWriter


class ProcessDetectors:
    """The detectors of one process.

    Args:
        notes: writer of the findings; None: findings are dropped.
        loss_limit: least score of a loss spike; None: losses are not checked.
        norm_limit: least score of a gradient norm spike; None: not checked.
        norm_threshold: least abnormal gradient norm; None: not checked.
        warmup_steps: steps below this number are start-up, in which only values that are not finite are reported.

    Raises:
        ValueError: a limit or the threshold is not over 0, or ``warmup_steps`` is below 0.
    """

    def __init__(
        self,
        notes: NotesWriter | None,
        loss_limit: float | None,
        norm_limit: float | None,
        norm_threshold: float | None,
        warmup_steps: int,
    ) -> None:
        self._notes = notes
        self._loss = None if loss_limit is None else LossDetector(limit=loss_limit, warmup_steps=warmup_steps)
        self._spike = None if norm_limit is None else NormSpike(limit=norm_limit, warmup_steps=warmup_steps)
        self._threshold = NormThreshold(norm_threshold)

    def use(self, notes: NotesWriter | None) -> None:
        """Write findings elsewhere from now on."""
        self._notes = notes

    def observe(self, step: int, mono: int, loss: float | None, norm: float | None) -> None:
        """Check a reported step; never raises."""
        if self._notes is None:
            return
        try:
            if loss is not None and self._loss is not None:
                self._leave(self._loss.observe(step, loss), mono)
            if norm is not None:
                self._leave(self._threshold.observe(step, norm), mono)
                if self._spike is not None:
                    self._leave(self._spike.observe(step, norm), mono)
        except Exception:  # an error of a detector must not end the training
            self._notes = None

    def _leave(self, found: Finding | None, mono: int) -> None:
        if found is not None and not found.tolerated and self._notes is not None:
            self._notes.found(
                found.kind, found.step, found.since, mono, found.value, found.usual, found.score, found.limit
            )

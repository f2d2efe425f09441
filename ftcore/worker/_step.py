"""One step of the training, as a script sees it."""

from types import TracebackType
from typing import Any, Protocol


class StepOwner(Protocol):
    """The job of a step; see ``_job.TrainingJob``."""

    def next_batch(self, step: int = 0) -> Any:
        """The next batch of the registered data."""

    def check(self, number: int, loss: float | None, norm: float | None) -> None:
        """End the step if its values are abnormal."""

    def step_failed(self, number: int, error: Exception) -> bool:
        """React to an error in a step; returns whether the step is computed again in this process."""

    def end_step(self, number: int, loss: float | None, grad_norm: float | None) -> None:
        """React to the end of a step."""


class TrainingStep:
    """One step of the training; a context manager around its computation.

    If a fault of the step leaves this process alive, and the job can go on in it, the error ends here: ``steps`` yields
    the step again. What follows in the loop's body after ``with`` runs nevertheless.

    Args:
        job: the job.
        number: its number, counted from 1 since the start of the training.
    """

    def __init__(self, job: StepOwner, number: int) -> None:
        self._job = job
        self.number = number
        self._loss: float | None = None
        self._grad_norm: float | None = None
        self._batch: Any = None
        self._ended = False

    def __enter__(self) -> "TrainingStep":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if error is None:
            self.end()
            return False
        self._ended = True  # a step that failed is not complete, whatever the script does with the error
        return isinstance(error, Exception) and self._job.step_failed(self.number, error)

    @property
    def batch(self) -> Any:
        """The next batch of the registered ``data``, which starts again at its end; the same one within a step.

        Raises:
            AttributeError: nothing is registered as ``data``.
            EOFError: it has no batch, also from its beginning.
        """
        if self._batch is None:
            self._batch = self._job.next_batch(self.number - 1)
        return self._batch

    def report(self, loss: float | None = None, grad_norm: float | None = None) -> None:
        """Report the loss and the gradient norm of the step, together or one by one; see ``ftcore.worker.report``.

        If the policy ``recompute_step`` or ``skip_batch`` is enabled and the norm is at or over its threshold, or the
        loss is not finite before the optimizer's step, the call does not return: the step ends here on all ranks, and
        is computed again, on the same or on the next batch. Report the norm of all ranks, before the optimizer's step.
        The loss may be one of this rank's samples.
        """
        if loss is not None:
            self._loss = loss = float(loss)
        if grad_norm is not None:
            self._grad_norm = grad_norm = float(grad_norm)
        self._job.check(self.number, loss, grad_norm)

    def end(self) -> None:
        """End the step: it is reported, saved if it is time, and the job may pause here. Called by ``with``."""
        if not self._ended:
            self._ended = True
            self._job.end_step(self.number, self._loss, self._grad_norm)

"""This process's progress page, and who counts its steps: the optimizer hook, until the script calls ``report``."""

import os
import time

from ftcore.shm.page import PAGE_FD_ENV, PageWriter, is_page


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
        self.reported = False

    def stepped(self) -> None:
        """The optimizer completed a step; ignored once the script reports by itself."""
        if self.reported or self._page is None:
            return
        self._steps += 1
        self._step += 1
        self._page.write(self._steps, self._step, self._absolute, time.monotonic_ns(), None, None)

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
        self._page.write(self._steps, step, True, time.monotonic_ns(), loss, grad_norm)


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

    Args:
        step: its number, counted from the start of the training (not of the process).
        loss: its loss, if known.
        grad_norm: its gradient norm, if known.
    """
    progress().report(int(step), None if loss is None else float(loss), None if grad_norm is None else float(grad_norm))

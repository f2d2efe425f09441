"""Step boundaries: waits while the job is paused, and saves on request, between two steps.

A boundary that has nothing to do costs two accesses of shared memory. The first optimizer's step is a boundary of a
plain script; ``boundary`` replaces it. House rules: a waiting worker needs no lock, no network and no other rank; an
error of ours lets the training go on.
"""

import sys
import time
from collections.abc import Callable

from ftcore.shm.boundary import SAVES, WAITS, BoundaryWords
from ftcore.worker._progress import progress

PAUSE_S = 0.002
"""Interval in seconds at which a waiting worker looks for the end of its wait; it grows up to ``PAUSE_MAX_S``."""

PAUSE_MAX_S = 0.05


class StepBoundary:
    """Counts the boundaries of this process.

    Args:
        words: the page's words; None: nothing is ordered.
        active: records a sign of progress at a time in monotonic nanoseconds.
    """

    def __init__(self, words: BoundaryWords | None, active: Callable[[int], None]) -> None:
        self._words = words
        self._active = active
        self._number = 0
        self._explicit = False
        self._complete = True
        self._save: Callable[[int], None] | None = None
        self._stage: Callable[[int], None] | None = None
        self._mark: Callable[[int], None] | None = None
        if words is not None:
            words.can(WAITS)

    def new_round(self, words: BoundaryWords | None) -> None:
        """Count from the start of the next round.

        Args:
            words: the words of its page.
        """
        self._words, self._number = words, 0

    def stepped(self) -> None:
        """Count a step of the optimizer as a boundary; not once the script calls ``boundary``."""
        if self._words is not None and not self._explicit:
            self._reach(self._words, None)

    def reached(self, step: int, complete: bool = True) -> None:
        """Count a boundary of the script.

        Args:
            step: the number of the last completed step.
            complete: false: a collective of the step has failed; nothing is saved here.
        """
        self._complete = complete
        if self._mark is not None and complete:
            self._mark(step)
        words = self._words
        if words is None:
            return
        if not self._explicit:
            self._explicit = True
            if self._number:  # the optimizer's hook has counted this one already
                self._number -= 1
        self._reach(words, step)

    def on_save(self, save: Callable[[int], None]) -> None:
        """Let a function save at a boundary of the script."""
        self._save = save
        if self._words is not None:
            self._words.can(SAVES)

    def on_stage(self, stage: Callable[[int], None]) -> None:
        """Let a function save in memory at a boundary of the script, where no storage is needed."""
        self._stage = stage

    def on_boundary(self, mark: Callable[[int], None]) -> None:
        """Call a function at each boundary of the script, before anything else, with the last completed step."""
        self._mark = mark

    def _reach(self, words: BoundaryWords, step: int | None) -> None:
        self._number = number = self._number + 1
        if words.reach(number):
            self._carry_out(words, number, step)

    def _carry_out(self, words: BoundaryWords, number: int, step: int | None) -> None:
        pause_s = PAUSE_S
        try:
            while self._must_wait(words, number, step):
                self._active(time.monotonic_ns())
                time.sleep(pause_s)
                pause_s = min(1.05 * pause_s, PAUSE_MAX_S)
        finally:
            words.waits(False)

    def _must_wait(self, words: BoundaryWords, number: int, step: int | None) -> bool:
        """Save if that is ordered; returns whether the worker waits here."""
        waits = words.must_wait(number)  # before `must_save`: an agent orders the save, then lets the worker go on
        words.waits(waits)
        if words.must_save(number):
            self._save_now(words, number, step)
        return waits or words.must_wait(number)  # again: a stop that did not see this worker wait expects it to go on

    def _save_now(self, words: BoundaryWords, number: int, step: int | None) -> None:
        try:
            if not self._complete:
                raise RuntimeError("a collective of this step failed, and the script handled the error")
            save = self._stage if self._stage is not None and words.must_save_in_memory() else self._save
            if save is None or step is None:
                # A hook runs in the middle of the script's loop: a scheduler, for example, may not have stepped yet.
                raise RuntimeError("the script calls `ftcore.worker.boundary` and `on_save` for saves on request")
            save(step)
        except Exception as error:  # the job decides what follows; training goes on
            print(f"ftcore: the requested checkpoint failed: {type(error).__name__}: {error}", file=sys.stderr)
            words.saved(number, f"{type(error).__name__}: {error}")
        else:
            words.saved(number)


_of_process: StepBoundary | None = None


def step_boundary() -> StepBoundary:
    """Return this process's boundaries, made on first use."""
    global _of_process
    if _of_process is None:
        counter = progress()
        _of_process = StepBoundary(counter.boundary_words, counter.active)
    return _of_process


def boundary(step: int) -> None:
    """Mark a step boundary; call it once per step on every rank. Does nothing outside ``ftrun``.

    While the job is paused, the call waits. If a checkpoint is requested, the function given to ``on_save`` runs. All
    ranks wait and save after the same step. Without this call, the end of the first optimizer's ``step`` is the
    boundary, at which ranks can wait but not save. A script without an optimizer of torch calls ``report`` as well:
    workers say with their first completed step what they can do.

    Args:
        step: the number of the last completed step, counted as for ``report``.
    """
    step_boundary().reached(int(step))


def on_save(save: Callable[[int], None]) -> Callable[[int], None]:
    """Set the function that saves a checkpoint on request; usable as a decorator. Does nothing outside ``ftrun``.

    Set it before the first step. It is called on every rank, inside ``boundary`` and after the same step, and may use
    collectives. End it with a barrier, so that it returns on no rank before all have saved: a node that leaves ends
    after its own save. Report the checkpoint with ``saved``, as for the script's own checkpoints. An exception is
    reported as a failed save; training goes on.

    Args:
        save: called with the number of the last completed step.

    Returns:
        The function itself.
    """
    step_boundary().on_save(save)
    return save

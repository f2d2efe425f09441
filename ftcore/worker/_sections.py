"""Shows the agent what this process does between its steps: the sections of the script, on the progress page.

House rules: only the main thread has sections, because the agent wants to know what the training waits for; a save in
the background is none. A forked child, such as a worker of a data loader, writes nothing. A section costs microseconds
and never raises into the script, except for wrong arguments.
"""

import contextlib
import math
import os
import threading
import time
from collections.abc import Iterator

from ftcore.shm.sections import EVALUATION, NAME_BYTES_MAX, SectionWords
from ftcore.worker._progress import progress


class _OpenSection:
    __slots__ = ("began", "deadline", "slot")

    def __init__(self, slot: int, began: int, deadline: int) -> None:
        self.slot, self.began, self.deadline = slot, began, deadline


class ScriptSections:
    """The sections of this process.

    Args:
        words: the page's words; None: nothing is written.
    """

    def __init__(self, words: SectionWords | None) -> None:
        self._words = words
        self._main = threading.main_thread().ident
        self._open: list[_OpenSection] = []
        self._evaluation: _OpenSection | None = None
        if words is not None:
            os.register_at_fork(after_in_child=self._forget)

    @property
    def words(self) -> SectionWords | None:
        """The page's words; None: there are none."""
        return self._words

    def new_round(self, words: SectionWords | None) -> None:
        """Show the sections of the next round.

        Args:
            words: the words of its page.
        """
        self._words, self._evaluation = words, None
        self._open.clear()

    def begin(self, name: str, limit_s: float | None = None) -> _OpenSection | None:
        """Begin a section; None: nothing is written, or this is not the main thread."""
        words = self._words
        if words is None or threading.get_ident() != self._main:
            return None
        now = time.monotonic_ns()
        outer = self._open[-1].deadline if self._open else 0
        own = now + int(limit_s * 1e9) if limit_s is not None else 0
        begun = _OpenSection(words.slot(name), now, min(own, outer) if own and outer else own or outer)
        self._open.append(begun)
        words.show(begun.slot, now, begun.deadline, now)
        return begun

    def end(self, begun: _OpenSection | None) -> None:
        """End a section; sections may end in any order."""
        words = self._words
        if begun is None or words is None or begun not in self._open:
            return
        now = time.monotonic_ns()
        self._open.remove(begun)
        words.over(begun.slot, now - begun.began, not self._open)
        inner = self._open[-1] if self._open else None
        if inner is None:
            words.show(None, 0, 0, now)
        else:
            words.show(inner.slot, inner.began, inner.deadline, now)

    def evaluates(self) -> None:
        """Begin an evaluation that ends with the next sign of training; not before the first step, nor in a section."""
        if not self._open and progress().steps and self._evaluation is None:
            self._evaluation = self.begin(EVALUATION)

    def trains(self) -> None:
        """End the evaluation that ``evaluates`` began."""
        if self._evaluation is not None:
            begun, self._evaluation = self._evaluation, None
            self.end(begun)

    def _forget(self) -> None:
        self._words = None


_of_process: ScriptSections | None = None


def sections() -> ScriptSections:
    """Return this process's sections, made on first use."""
    global _of_process
    if _of_process is None:
        counter = progress()
        _of_process = ScriptSections(counter.section_words)
        counter.on_training = _of_process.trains
    return _of_process


def section(name: str, limit_s: float | None = None) -> contextlib.AbstractContextManager[None]:
    """Mark a part of the script with a duration of its own, for hang detection. Does nothing outside ``ftrun``.

    Use it with ``with``, or as a decorator. ``ftctl`` shows the section that a hanging rank is in. ftcore learns how
    long each section takes; steps are not expected meanwhile. Sections may be nested; the inner one is shown, and the
    earliest declared limit holds. Only the main thread's sections count.

    Args:
        name: its name, at most 32 bytes; evaluation, checkpoint, compile and set-up are begun by ftcore itself.
        limit_s: seconds after which the section counts as a hang, whatever the rank does; None: learned.

    Raises:
        ValueError: the name is empty or too long, or the limit is not over 0.
    """
    if not name or len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"expected a name of 1 to {NAME_BYTES_MAX} bytes; found {name!r}")
    if limit_s is not None and not 0 < limit_s < math.inf:
        raise ValueError(f"expected limit_s over 0; found {limit_s}")
    return _section(name, None if limit_s is None else min(float(limit_s), 1e9))


@contextlib.contextmanager
def _section(name: str, limit_s: float | None) -> Iterator[None]:
    begun = sections().begin(name, limit_s)
    try:
        yield
    finally:
        sections().end(begun)

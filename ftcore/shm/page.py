"""The progress page: 8 KiB of shared memory per worker, written by the worker and read by its agent.

The agent writes only the orders of ``boundary``.

The page is a sealed memfd. The worker finds it through ``FTCORE_PAGE_FD``; the agent has its own mapping. The only
writer never waits: it makes the sequence word odd, stores the fields, and makes it even again (a sequence lock). A
reader that finds an odd or changed sequence reads again; if the writer died or was stopped meanwhile, it keeps its last
sample.

| word (8 bytes each) | field | meaning |
|---|---|---|
| 0 | ``magic`` | identifies the page and its version |
| 1 | ``sequence`` | odd while the writer writes |
| 2 | ``steps`` | steps completed since the process started |
| 3 | ``step`` | number of the last completed step |
| 4 | ``absolute`` | 1: ``step`` counts from the start of the training |
| 5 | ``mono`` | monotonic nanoseconds of its completion |
| 6 | ``loss`` | double; NaN: not reported |
| 7 | ``grad_norm`` | double; NaN: not reported |
| from 8 on | notes | findings and checkpoints: see ``notes``; since version 2 |
| 10 | ``paced`` | steps with measured own work, since the process started; since version 2 |
| 11 | ``own`` | nanoseconds of own work in those steps: without backward passes, which wait for other ranks |
| 12 | ``whole`` | nanoseconds that those steps took |
| 13 | ``active`` | monotonic nanoseconds of the last step, backward pass or report; this and the next since version 2 |
| 14 | ``ended`` | monotonic nanoseconds at which the script finished; 0: it has not |
| 15 | ``timeout`` | timeout of its process group in nanoseconds; 0: not known |
| from 480 on | step boundaries | where the worker waits and saves: see ``boundary``; since version 3 |
| from 768 on | sections | what the worker does between its steps: see ``sections``; since version 4 |
| from 912 on | phases | times of the phases of a step: see ``phases``; since version 4 |

The first eight words have the same meaning in every version. The creator of the page writes its version: a writer of a
newer version does not write fields that an older page lacks, and an older reader reads only the fields that it knows.
Before version 4 a page had 4 KiB.
"""

import fcntl
import math
import mmap
import os
from typing import Final

import attrs

from ftcore.shm.boundary import BoundaryOrders, BoundaryWords
from ftcore.shm.notes import CheckpointNote, FindingNote, NotesReader, NotesWriter
from ftcore.shm.phases import PhaseBlock, PhaseReader, PhaseWriter
from ftcore.shm.sections import SectionState, SectionWords
from ftcore.shm.sections import read as read_sections

PAGE_BYTES: Final = 8192
PAGE_FD_ENV: Final = "FTCORE_PAGE_FD"
"""Environment variable with the descriptor number of a worker's page."""

MAGIC: Final = 0x3430656761507466  # "ftPage04", little-endian
_PLAIN: Final = 0x3130656761507466  # "ftPage01": without notes
_NOTES: Final = 0x3230656761507466  # "ftPage02": without step boundaries
_BOUNDARIES: Final = 0x3330656761507466  # "ftPage03": without sections and phases
_NAME: Final = "ftcore-page"
_MAGIC, _SEQUENCE, _STEPS, _STEP, _ABSOLUTE, _MONO, _LOSS, _GRAD_NORM = range(8)
_PACED, _OWN, _WHOLE = 10, 11, 12
_ACTIVE, _ENDED, _TIMEOUT = 13, 14, 15
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_READ_TRIES: Final = 100


@attrs.frozen
class Sample:
    """One consistent read of a page. See the module's table for the fields; None: not reported."""

    steps: int
    step: int
    absolute: bool
    mono: int
    loss: float | None
    grad_norm: float | None
    paced: int = 0
    own: int = 0
    whole: int = 0


@attrs.frozen
class Life:
    """The fields of a page other than the steps. See the module's table; each is one word."""

    active: int
    ended: int
    timeout: int


def create() -> int:
    """Create an empty page; return its descriptor, which the caller closes. Raises ``OSError``."""
    fd = os.memfd_create(_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, PAGE_BYTES)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        with mmap.mmap(fd, PAGE_BYTES) as view:
            view[0:8] = MAGIC.to_bytes(8, "little")
    except BaseException:
        os.close(fd)
        raise
    return fd


def is_page(fd: int) -> bool:
    """Whether the descriptor is a progress page: the number in the environment may belong to another file."""
    try:
        return os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:{_NAME}")
    except OSError:
        return False


class PageWriter:
    """The worker's side.

    Args:
        fd: the page; mapped here, not closed.
    """

    def __init__(self, fd: int) -> None:
        view = memoryview(mmap.mmap(fd, min(PAGE_BYTES, os.fstat(fd).st_size)))
        self._words = view.cast("q")
        self._doubles = view.cast("d")
        self.notes: NotesWriter | None = NotesWriter(view) if self._words[_MAGIC] != _PLAIN else None
        """Writer of notes; None: the page's version has none."""
        old = self._words[_MAGIC] in (_PLAIN, _NOTES)
        self.boundary: BoundaryWords | None = None if old else BoundaryWords(view)
        """The words of step boundaries; None: the page's version has none."""
        old = old or self._words[_MAGIC] == _BOUNDARIES
        self.sections: SectionWords | None = None if old else SectionWords(view)
        """The words of sections; None: the page's version has none."""
        self.phases: PhaseWriter | None = None if old else PhaseWriter(view)
        """Writer of the phases of steps; None: the page's version has none."""
        self._pace = (0, 0, 0)

    def adopt(self, former: "PageWriter") -> None:
        """Take over what holds for the whole process from its page of the round before."""
        self.timeout(former._words[_TIMEOUT])
        if self.boundary is not None and former.boundary is not None:
            self.boundary.can(former.boundary.able)
        if self.sections is not None and former.sections is not None:
            self.sections.adopt(former.sections)
        if self.phases is not None and former.phases is not None:
            self.phases.adopt(former.phases)

    def paced(self, own_ns: int, whole_ns: int) -> None:
        """Count a step whose own work was measured; published with the next ``write``."""
        self._pace = (self._pace[0] + 1, self._pace[1] + own_ns, self._pace[2] + whole_ns)

    def active(self, mono: int) -> None:
        """Publish a sign of progress."""
        if self.notes is not None:
            self._words[_ACTIVE] = mono

    def ended(self, mono: int) -> None:
        """Publish that the script has finished."""
        if self.notes is not None:
            self._words[_ENDED] = mono

    def timeout(self, nanoseconds: int) -> None:
        """Publish the timeout of the process group."""
        if self.notes is not None:
            self._words[_TIMEOUT] = nanoseconds

    def write(self, steps: int, step: int, absolute: bool, mono: int, loss: float | None, norm: float | None) -> None:
        """Publish a completed step. See the module's table for the arguments."""
        words, doubles = self._words, self._doubles
        sequence = words[_SEQUENCE] | 1
        words[_SEQUENCE] = sequence
        words[_STEPS] = steps
        words[_STEP] = step
        words[_ABSOLUTE] = absolute
        words[_MONO] = mono
        doubles[_LOSS] = math.nan if loss is None else loss
        doubles[_GRAD_NORM] = math.nan if norm is None else norm
        if self.notes is not None:  # version 1 of the page has no such fields
            words[_PACED], words[_OWN], words[_WHOLE] = self._pace
            words[_ACTIVE] = mono
        words[_SEQUENCE] = sequence + 1


class PageReader:
    """The agent's side.

    Args:
        fd: the page; mapped here, not closed.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, min(PAGE_BYTES, os.fstat(fd).st_size))
        self._notes = NotesReader(memoryview(self._map))
        self._phases = PhaseReader(memoryview(self._map))
        self.orders = BoundaryOrders(memoryview(self._map))
        """The orders about step boundaries; the only part of the page that the agent writes."""
        self._last: Sample | None = None

    def read(self) -> Sample | None:
        """Return the newest consistent sample, or None if no step was reported yet."""
        view = memoryview(self._map)
        words, doubles = view.cast("q"), view.cast("d")
        for _ in range(_READ_TRIES):
            before = words[_SEQUENCE]
            if before & 1:
                continue
            sample = Sample(
                words[_STEPS],
                words[_STEP],
                bool(words[_ABSOLUTE]),
                words[_MONO],
                _number(doubles[_LOSS]),
                _number(doubles[_GRAD_NORM]),
                words[_PACED],
                words[_OWN],
                words[_WHOLE],
            )
            if words[_SEQUENCE] == before:
                self._last = sample if sample.mono else None
                break
        return self._last

    def life(self) -> Life:
        """Return the fields other than the steps."""
        words = memoryview(self._map).cast("q")
        return Life(words[_ACTIVE], words[_ENDED], words[_TIMEOUT])

    def sections(self) -> SectionState:
        """Return what the worker does between its steps."""
        return read_sections(memoryview(self._map))

    def findings(self) -> tuple[FindingNote, ...]:
        """Return the latest findings of the worker's detectors, oldest first."""
        return self._notes.findings()

    def saves(self) -> tuple[CheckpointNote, ...]:
        """Return the worker's latest complete checkpoints, oldest first."""
        return self._notes.saves()

    def blocks(self) -> tuple[PhaseBlock, ...]:
        """Return the latest blocks of steps with the times of their phases, oldest first."""
        return self._phases.blocks()

    def role(self) -> tuple[str, bool]:
        """Return the name of the worker's role, empty if unknown, and whether the script has declared it."""
        return self._phases.role()

    def close(self) -> None:
        """Unmap the page."""
        self.orders.close()
        self._phases.close()
        self._notes.close()
        self._map.close()


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value

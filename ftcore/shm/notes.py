"""Notes on the progress page: two rings in which a worker leaves what its agent is to tell.

Beside the sample of the newest step, a page keeps the last findings of the detectors and the last checkpoints that the
script said are complete. There is one writer and it never waits; what is not read in time is overwritten. A slot is a
sequence lock of its own: its stamp is odd while the writer is inside, and even with the note's number once it is
complete, so a reader never takes a torn note, nor one for another. A ring's count is raised last: a note whose writer
died inside of it is never looked at.

| words (8 bytes each) | hold |
|---|---|
| 8, 9 | notes written since the process started: findings, checkpoints |
| 16 to 159 | 16 findings of 9 words: stamp, kind, step, since, mono, value, usual, score, limit |
| 160 to 479 | 8 checkpoints of 40 words: stamp, step, seconds, kept, length of the path, 280 bytes of it |

House rules: nothing but memory is touched here, so that pure floors may name the types. ``KINDS`` is only appended to:
the place of a kind is its number on the page.
"""

from typing import Final

import attrs

KINDS: Final = ("loss-nan", "loss-spike", "loss-divergence", "norm", "norm-nan", "norm-spike", "norm-divergence")
"""What a finding may be, as in ``fault.observed``."""

FINDINGS_MAX: Final = 16
SAVES_MAX: Final = 8
PATH_BYTES_MAX: Final = 280

_FOUND, _SAVED = 8, 9
_FINDINGS, _FINDING_WORDS = 16, 9
_SAVES, _SAVE_WORDS, _SAVE_PATH = 160, 40, 5
_STEP_MAX: Final = (1 << 63) - 1


@attrs.frozen
class Found:
    """A sample that a detector found wrong.

    Args:
        number: 1 for the first one of the process, then counting.
        kind: one of ``KINDS``.
        step: the step of the sample.
        since: the first step of the episode that it belongs to.
        mono: monotonic nanoseconds of the step's completion.
        value: the sample.
        usual: what was expected.
        score: how far off, in robust standard deviations; infinite where there is no such number.
        limit: the score from which on samples are told.
    """

    number: int
    kind: str
    step: int
    since: int
    mono: int
    value: float
    usual: float
    score: float
    limit: float


@attrs.frozen
class Saved:
    """A checkpoint that the script said is complete.

    Args:
        number: 1 for the first one of the process, then counting.
        step: its step.
        path: where it lies, for people; cut to ``PATH_BYTES_MAX`` bytes.
        seconds: how long training stood still for it; 0: not said.
        kept: checkpoints that the script keeps, this one included; 0: not said.
    """

    number: int
    step: int
    path: str
    seconds: float
    kept: int


class NotesWriter:
    """The worker's side.

    Args:
        view: the page.
    """

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._words = view.cast("q")
        self._doubles = view.cast("d")

    def found(
        self, kind: str, step: int, since: int, mono: int, value: float, usual: float, score: float, limit: float
    ) -> None:
        """Leave a finding; see ``Found``. Raises ``ValueError`` if the kind is not one of ``KINDS``."""
        code = KINDS.index(kind) + 1
        words, doubles = self._words, self._doubles
        count = words[_FOUND]
        at = _FINDINGS + count % FINDINGS_MAX * _FINDING_WORDS
        words[at] = 2 * count + 1
        words[at + 1] = code
        words[at + 2] = min(step, _STEP_MAX)
        words[at + 3] = min(since, _STEP_MAX)
        words[at + 4] = mono
        doubles[at + 5] = value
        doubles[at + 6] = usual
        doubles[at + 7] = score
        doubles[at + 8] = limit
        words[at] = 2 * count + 2
        words[_FOUND] = count + 1

    def saved(self, step: int, path: str, seconds: float, kept: int) -> None:
        """Leave word of a checkpoint; see ``Saved``."""
        words = self._words
        count = words[_SAVED]
        at = _SAVES + count % SAVES_MAX * _SAVE_WORDS
        text = path.encode(errors="replace")[:PATH_BYTES_MAX]
        start = 8 * (at + _SAVE_PATH)
        words[at] = 2 * count + 1
        words[at + 1] = min(step, _STEP_MAX)
        self._doubles[at + 2] = seconds
        words[at + 3] = min(kept, _STEP_MAX)
        words[at + 4] = len(text)
        self._bytes[start : start + len(text)] = text
        words[at] = 2 * count + 2
        words[_SAVED] = count + 1


class NotesReader:
    """The agent's side.

    Args:
        view: the page.
    """

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._words = view.cast("q")
        self._doubles = view.cast("d")
        self._findings: tuple[int, tuple[Found, ...]] = (0, ())
        self._saves: tuple[int, tuple[Saved, ...]] = (0, ())

    def findings(self) -> tuple[Found, ...]:
        """The findings that are still there, oldest first; a gap in their numbers shows what was overwritten."""
        count = self._words[_FOUND]
        if count != self._findings[0]:
            read = (self._finding(number) for number in range(max(0, count - FINDINGS_MAX), count))
            self._findings = count, tuple(found for found in read if found is not None)
        return self._findings[1]

    def saves(self) -> tuple[Saved, ...]:
        """The checkpoints that are still there, oldest first."""
        count = self._words[_SAVED]
        if count != self._saves[0]:
            read = (self._save(number) for number in range(max(0, count - SAVES_MAX), count))
            self._saves = count, tuple(saved for saved in read if saved is not None)
        return self._saves[1]

    def close(self) -> None:
        """Let go of the page."""
        for view in (self._words, self._doubles, self._bytes):
            view.release()

    def _finding(self, number: int) -> Found | None:
        words, doubles = self._words, self._doubles
        at = _FINDINGS + number % FINDINGS_MAX * _FINDING_WORDS
        if words[at] != 2 * number + 2:
            return None
        code, numbers, figures = words[at + 1], words[at + 2 : at + 5].tolist(), doubles[at + 5 : at + 9].tolist()
        if words[at] != 2 * number + 2 or not 1 <= code <= len(KINDS):  # a newer ftcore may know more kinds
            return None
        return Found(number + 1, KINDS[code - 1], *numbers, *figures)

    def _save(self, number: int) -> Saved | None:
        words = self._words
        at = _SAVES + number % SAVES_MAX * _SAVE_WORDS
        if words[at] != 2 * number + 2:
            return None
        step, seconds, kept = words[at + 1], self._doubles[at + 2], words[at + 3]
        start = 8 * (at + _SAVE_PATH)
        path = bytes(self._bytes[start : start + min(max(words[at + 4], 0), PATH_BYTES_MAX)])
        if words[at] != 2 * number + 2:
            return None
        return Saved(number + 1, step, path.decode(errors="ignore"), seconds, kept)

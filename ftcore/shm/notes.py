"""Notes on the progress page: two ring buffers for findings and checkpoints, from a worker to its agent.

A page has the sample of the newest step, the last findings of the detectors and the last checkpoints that the script
reported as complete. The only writer never waits; notes that are not read in time are overwritten. Each slot is a
sequence lock: its stamp is odd while the writer writes it, and even, with the note's number, when it is complete, so a
reader accepts neither a torn note nor another one. The ring's count is raised last: a note whose writer died while
writing is never read.

| words (8 bytes each) | contents |
|---|---|
| 8, 9 | notes written since the process started: findings, checkpoints |
| 16 to 159 | 16 findings of 9 words: stamp, kind, step, since, mono, value, usual, score, limit |
| 160 to 479 | 8 checkpoints of 40 words: stamp, step, seconds, kept, length of the path, 280 bytes of it |

House rules: this module accesses memory only, so that pure modules may use its types. ``KINDS`` is only appended to:
the index of a kind is its number on the page.
"""

from typing import Final

import attrs

KINDS: Final = ("loss-nan", "loss-spike", "loss-divergence", "norm", "norm-nan", "norm-spike", "norm-divergence")
"""Kinds of findings, as in ``fault.observed``."""

FINDINGS_MAX: Final = 16
SAVES_MAX: Final = 8
PATH_BYTES_MAX: Final = 280

_FOUND, _SAVED = 8, 9
_FINDINGS, _FINDING_WORDS = 16, 9
_SAVES, _SAVE_WORDS, _SAVE_PATH = 160, 40, 5
_STEP_MAX: Final = (1 << 63) - 1


@attrs.frozen
class FindingNote:
    """A sample that a detector found abnormal.

    Args:
        number: sequence number within the process, from 1.
        kind: one of ``KINDS``.
        step: the step of the sample.
        since: the first step of the episode that it belongs to.
        mono: monotonic nanoseconds of the step's completion.
        value: the sample.
        usual: the expected value.
        score: the deviation in robust standard deviations; infinite if not defined.
        limit: least score that is reported.
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
class CheckpointNote:
    """A checkpoint that the script reported as complete.

    Args:
        number: sequence number within the process, from 1.
        step: its step.
        path: its location, for display; truncated to ``PATH_BYTES_MAX`` bytes.
        seconds: how long training was paused for it; 0: not reported.
        kept: checkpoints that the script keeps, this one included; 0: not reported.
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
        """Write a finding; see ``FindingNote``. Raises ``ValueError`` if the kind is not one of ``KINDS``."""
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
        """Write a checkpoint; see ``CheckpointNote``."""
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
        self._findings: tuple[int, tuple[FindingNote, ...]] = (0, ())
        self._saves: tuple[int, tuple[CheckpointNote, ...]] = (0, ())

    def findings(self) -> tuple[FindingNote, ...]:
        """Return the findings that are not overwritten, oldest first; a gap in the numbers shows overwritten ones."""
        count = self._words[_FOUND]
        if count != self._findings[0]:
            read = (self._finding(number) for number in range(max(0, count - FINDINGS_MAX), count))
            self._findings = count, tuple(found for found in read if found is not None)
        return self._findings[1]

    def saves(self) -> tuple[CheckpointNote, ...]:
        """Return the checkpoints that are not overwritten, oldest first."""
        count = self._words[_SAVED]
        if count != self._saves[0]:
            read = (self._save(number) for number in range(max(0, count - SAVES_MAX), count))
            self._saves = count, tuple(saved for saved in read if saved is not None)
        return self._saves[1]

    def close(self) -> None:
        """Release the page."""
        for view in (self._words, self._doubles, self._bytes):
            view.release()

    def _finding(self, number: int) -> FindingNote | None:
        words, doubles = self._words, self._doubles
        at = _FINDINGS + number % FINDINGS_MAX * _FINDING_WORDS
        if words[at] != 2 * number + 2:
            return None
        code, numbers, figures = words[at + 1], words[at + 2 : at + 5].tolist(), doubles[at + 5 : at + 9].tolist()
        if words[at] != 2 * number + 2 or not 1 <= code <= len(KINDS):  # a newer ftcore may know more kinds
            return None
        return FindingNote(number + 1, KINDS[code - 1], *numbers, *figures)

    def _save(self, number: int) -> CheckpointNote | None:
        words = self._words
        at = _SAVES + number % SAVES_MAX * _SAVE_WORDS
        if words[at] != 2 * number + 2:
            return None
        step, seconds, kept = words[at + 1], self._doubles[at + 2], words[at + 3]
        start = 8 * (at + _SAVE_PATH)
        path = bytes(self._bytes[start : start + min(max(words[at + 4], 0), PATH_BYTES_MAX)])
        if words[at] != 2 * number + 2:
            return None
        return CheckpointNote(number + 1, step, path.decode(errors="ignore"), seconds, kept)

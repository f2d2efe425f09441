"""Sections on the progress page: what a worker does between its steps, and how long that took before.

A section is a part of the script with a duration of its own, such as an evaluation or a checkpoint. Since version 4 of
the page; a page of an earlier version has no such words.

| word (8 bytes) | field | meaning |
|---|---|---|
| 768 | sequence | odd while the worker writes; see ``page`` |
| 769 | ``changed`` | monotonic nanoseconds of the last begin or end of a section; 0: none |
| 770 | current | slot of the current section, plus 1; 0: none |
| 771 | ``began`` | monotonic nanoseconds of its beginning |
| 772 | ``deadline`` | monotonic nanoseconds at which the earliest declared limit ends; 0: none is declared |
| 773 | ``covered`` | nanoseconds of all sections that are over, nested ones counted once |
| 774 | ``trains`` | 1: the script has created an optimizer, so steps are expected |
| 775, 776 | ``calls`` | descriptors, plus 1, of a pipe and of a memfd: see ``worker/_recorder.py``; 0: none |
| 784 to 911 | slots | 16 slots of 8 words: 4 of the name, how often the section ended, its longest nanoseconds |

House rules: this module accesses memory only. The worker alone writes.
"""

from typing import Final

import attrs

NAME_BYTES_MAX: Final = 32
SLOTS: Final = 16
OTHER: Final = "other"
"""Name of the last slot, which all further sections share."""

SETUP, EVALUATION, CHECKPOINT, COMPILE = "set-up", "evaluation", "checkpoint", "compile"
FIRST_STEP: Final = "first step"
"""The agent's name for the time before the first step, outside of any section."""

STEP: Final = "step"
"""The agent's name for the time between two steps, outside of any section."""

BYTES_MIN: Final = 912 * 8
"""Least size of a page with sections."""

_SEQUENCE, _CHANGED, _CURRENT, _BEGAN, _DEADLINE, _COVERED, _TRAINS, _ASK, _ANSWER = range(768, 777)
_FIRST, _SLOT_WORDS, _NAME_WORDS = 784, 8, 4
_COUNT, _LONGEST = 4, 5
_READ_TRIES: Final = 100


@attrs.frozen
class PastSection:
    """A section that has ended at least once.

    Args:
        name: its name.
        count: how often it ended since the process started.
        longest: nanoseconds of its longest time.
    """

    name: str
    count: int
    longest: int


@attrs.frozen
class SectionState:
    """The sections of a worker. See the module's table.

    Args:
        name: the current section; empty: none.
        past: the sections that have ended.
    """

    name: str = ""
    began: int = 0
    deadline: int = 0
    changed: int = 0
    covered: int = 0
    trains: bool = False
    calls: tuple[int, int] = (-1, -1)
    past: tuple[PastSection, ...] = ()


class SectionWords:
    """The worker's side.

    Args:
        view: the page.
    """

    def __init__(self, view: memoryview) -> None:
        self._words = view.cast("q")
        self._bytes = view
        self._slots: dict[str, int] = {}

    def slot(self, name: str) -> int:
        """Return the slot of a section; the last one once all are used."""
        known = self._slots.get(name)
        if known is not None:
            return known
        new = min(len(self._slots), SLOTS - 1)
        text = (name if new < SLOTS - 1 else OTHER).encode()
        if new < SLOTS - 1:
            self._slots[name] = new
        begin = 8 * (_FIRST + _SLOT_WORDS * new)
        self._bytes[begin : begin + NAME_BYTES_MAX] = text[:NAME_BYTES_MAX].ljust(NAME_BYTES_MAX, b"\0")
        return new

    def show(self, slot: int | None, began: int, deadline: int, now: int) -> None:
        """Publish the current section; None: there is none. Times are monotonic nanoseconds."""
        words = self._words
        words[_SEQUENCE] |= 1
        words[_CURRENT] = 0 if slot is None else slot + 1
        words[_BEGAN], words[_DEADLINE], words[_CHANGED] = began, deadline, now
        words[_SEQUENCE] += 1

    def over(self, slot: int, nanoseconds: int, covers: bool) -> None:
        """Count a section that has ended; ``covers``: it was not inside another one."""
        words, at = self._words, _FIRST + _SLOT_WORDS * slot
        words[at + _LONGEST] = max(words[at + _LONGEST], nanoseconds)
        words[at + _COUNT] += 1
        if covers:
            words[_COVERED] += nanoseconds

    def trains(self) -> None:
        """Publish that steps are expected."""
        self._words[_TRAINS] = 1

    def adopt(self, former: "SectionWords") -> None:
        """Take over from the page of the round before that steps are expected, and how the agent asks for the
        collectives of this process.
        """
        for word in (_TRAINS, _ASK, _ANSWER):
            self._words[word] = former._words[word]

    def records_calls(self, ask: int, answer: int) -> None:
        """Publish the descriptors of the record of collectives."""
        self._words[_ASK], self._words[_ANSWER] = ask + 1, answer + 1


def read(view: memoryview) -> SectionState:
    """Read the sections of a page; an empty state if the page has none, or if they change all the time."""
    if view.nbytes < BYTES_MIN:
        return SectionState()
    words = view.cast("q")
    for _ in range(_READ_TRIES):
        before = words[_SEQUENCE]
        current = words[_CURRENT]
        state = SectionState(
            name=_name(view, current - 1) if 0 < current <= SLOTS else "",
            began=words[_BEGAN],
            deadline=words[_DEADLINE],
            changed=words[_CHANGED],
            covered=words[_COVERED],
            trains=bool(words[_TRAINS]),
            calls=(words[_ASK] - 1, words[_ANSWER] - 1),
            past=tuple(_past(view, words)),
        )
        if words[_SEQUENCE] == before and not before & 1:
            return state
    return SectionState()


def _past(view: memoryview, words: memoryview) -> list[PastSection]:
    found = []
    for slot in range(SLOTS):
        at = _FIRST + _SLOT_WORDS * slot
        if words[at + _COUNT] > 0:
            found.append(PastSection(_name(view, slot), words[at + _COUNT], words[at + _LONGEST]))
    return found


def _name(view: memoryview, slot: int) -> str:
    begin = 8 * (_FIRST + _SLOT_WORDS * slot)
    return bytes(view[begin : begin + NAME_BYTES_MAX]).rstrip(b"\0").decode(errors="replace")

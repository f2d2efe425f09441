"""Step boundaries on the progress page: the agent says where a worker waits or saves, the worker says where it is.

A step boundary is the moment between two steps at which a worker holds no unfinished collective. Boundaries are counted
from the start of the process, so all ranks of a round that complete the same steps have the same numbers.

| word (8 bytes) | written by | field | meaning |
|---|---|---|---|
| 480 | agent | ``stop_at`` | the worker waits at this boundary and at every later one; 0: it does not wait |
| 481 | agent | ``save_at`` | the worker saves at this boundary; 0: nowhere |
| 482 | agent | ``in_memory`` | 1: it saves there in memory only |
| 483 | agent | ``pace`` | steps between two saves to storage, times 2^40, plus the first such step; 0: none |
| 488 | worker | ``able`` | bits, see ``ABILITIES`` |
| 489 | worker | ``reached`` | number of boundaries reached |
| 490 | worker | ``waits`` | 1: it waits at boundary ``reached`` |
| 491 | worker | ``saved`` | the boundary of the newest save that is over; see below |
| 492 | worker | ``failed`` | 1: that save failed |
| 493 | worker | ``error`` | length of the error's text, which follows in up to 144 bytes |

A worker first publishes ``reached`` and then reads ``stop_at``. An agent first writes ``stop_at`` and later reads
``reached``. So the boundary at which a worker stops is at most ``reached + 1`` as the agent reads it, or ``reached`` if
it waits there.

An agent that orders a save from a worker which waits, and has saved there before, first sets ``saved`` to 0.

House rules: this module accesses memory only. A word has one writer, but for that.
"""

from typing import Final

import attrs

WAITS: Final = 1
SAVES: Final = 2
STAGES: Final = 4
GOES_BACK: Final = 8
SKIPS: Final = 16
PACED: Final = 32
RETRIES: Final = 64
PARKS: Final = 128
RESIZES: Final = 256
TOKENS: Final = 512
ABILITIES: Final = {
    WAITS: "pause",
    SAVES: "checkpoint",
    STAGES: "save",
    GOES_BACK: "rollback",
    SKIPS: "skip",
    PACED: "interval",
    RETRIES: "retry",
    PARKS: "park",
    RESIZES: "resize",
    TOKENS: "tokens",
}
"""Abilities of the job (``ftcore.policies.base.Ability``) by bit."""

ERROR_BYTES_MAX: Final = 144

_STOP_AT, _SAVE_AT, _IN_MEMORY, _PACE = 480, 481, 482, 483
_ABLE, _REACHED, _WAITS, _SAVED, _FAILED, _ERROR = 488, 489, 490, 491, 492, 493
_TEXT: Final = 8 * (_ERROR + 1)
_SINCE_BITS: Final = 40
_EVERY_MAX: Final = 1 << 22


@attrs.frozen
class BoundaryState:
    """Where a worker is. See the module's table.

    Args:
        able: what the worker can do, as bits.
        reached: number of boundaries reached.
        waits: it waits at the newest one.
        saved: boundary of the newest save that is over; 0: none.
        error: why that save failed; empty: it did not.
    """

    able: int = 0
    reached: int = 0
    waits: bool = False
    saved: int = 0
    error: str = ""

    @property
    def abilities(self) -> tuple[str, ...]:
        """What the worker can do, as abilities of the job."""
        return tuple(name for bit, name in ABILITIES.items() if self.able & bit)

    @property
    def stops_at(self) -> int:
        """The first boundary at which the worker can still stop."""
        return self.reached if self.waits else self.reached + 1


class BoundaryWords:
    """The worker's side.

    Args:
        view: the page, writable.
    """

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._words = view.cast("q")

    def can(self, able: int) -> None:
        """Publish what the worker can do."""
        self._words[_ABLE] |= able

    @property
    def able(self) -> int:
        """What was published, as bits."""
        return self._words[_ABLE]

    def reach(self, number: int) -> bool:
        """Publish a boundary; returns whether there is something to do at it."""
        words = self._words
        words[_REACHED] = number
        return words[_STOP_AT] != 0 or words[_SAVE_AT] == number

    def must_wait(self, number: int) -> bool:
        """Whether the worker waits at this boundary."""
        return 0 < self._words[_STOP_AT] <= number

    def must_save(self, number: int) -> bool:
        """Whether the worker has to save at this boundary, and has not yet."""
        return self._words[_SAVE_AT] == number != self._words[_SAVED]

    def must_save_in_memory(self) -> bool:
        """Whether the save at this boundary need not reach storage."""
        return self._words[_IN_MEMORY] != 0

    def must_persist(self, step: int, every: int) -> bool:
        """Whether the worker has to save to storage after this step.

        Args:
            step: the number of the completed step.
            every: steps between two saves until the agent names another number; 0: none.
        """
        pace = self._words[_PACE]
        if pace:
            every = pace >> _SINCE_BITS
            if step < pace & ((1 << _SINCE_BITS) - 1):
                return False
        return every > 0 and step % every == 0

    def waits(self, waiting: bool) -> None:
        """Publish that the worker begins or ends to wait."""
        self._words[_WAITS] = waiting

    def saved(self, number: int, error: str = "") -> None:
        """Publish the end of a save.

        Args:
            number: its boundary.
            error: why it failed; empty: it did not.
        """
        text = error.encode(errors="replace")[:ERROR_BYTES_MAX]
        self._words[_ERROR] = len(text)
        self._bytes[_TEXT : _TEXT + len(text)] = text
        self._words[_FAILED] = bool(error)
        self._words[_SAVED] = number


class BoundaryOrders:
    """The agent's side.

    Args:
        view: the page, writable.
    """

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._words = view.cast("q")

    def stop_at(self, number: int) -> None:
        """Let the worker wait at a boundary and at every later one; 0: let it go on."""
        self._words[_STOP_AT] = number

    def save_at(self, number: int, in_memory: bool = False) -> None:
        """Let the worker save at a boundary. One that waits there saves again, if it has saved there before.

        Args:
            number: the boundary; 0: nowhere.
            in_memory: the state need not reach storage.
        """
        words = self._words
        words[_SAVE_AT] = 0
        words[_IN_MEMORY] = in_memory
        if words[_WAITS] and words[_REACHED] == number == words[_SAVED]:
            words[_SAVED] = 0  # the save before may have failed, or not be on storage
        words[_SAVE_AT] = number

    def pace(self, every: int, since: int) -> None:
        """Let the worker save to storage after each step that is a multiple of ``every``, from step ``since`` on."""
        self._words[_PACE] = min(every, _EVERY_MAX) << _SINCE_BITS | since

    def read(self) -> BoundaryState:
        """Return where the worker is."""
        words = self._words
        waits, reached = words[_WAITS], words[_REACHED]
        saved, failed = words[_SAVED], words[_FAILED]
        text = bytes(self._bytes[_TEXT : _TEXT + min(max(words[_ERROR], 0), ERROR_BYTES_MAX)]) if failed else b""
        error = (text.decode(errors="ignore") or "the save failed") if failed else ""
        return BoundaryState(words[_ABLE], reached, bool(waits), saved, error)

    def close(self) -> None:
        """Release the page."""
        self._words.release()
        self._bytes.release()
